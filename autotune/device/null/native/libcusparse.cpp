// cuSPARSE: handles only; sparse products are not modelled.
#include "core.h"

NULL_API int cusparseCreate(void** handle) { return *handle = reinterpret_cast<void*>(0x50), 0; }
NULL_API const char* cusparseGetErrorString(int) { return "an error of the null GPU's cuSPARSE"; }
