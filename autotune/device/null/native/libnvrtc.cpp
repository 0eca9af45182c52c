// NVRTC: every program compiles to nothing.
#include "core.h"

NULL_API int nvrtcVersion(int* major, int* minor) { return *major = CUDA_MAJOR, *minor = 0; }
NULL_API const char* nvrtcGetErrorString(int) { return "an error of the null GPU's NVRTC"; }
NULL_API int nvrtcCreateProgram(void** made, ...) { return *made = reinterpret_cast<void*>(0x60), 0; }
static int one(size_t* bytes) { return *bytes = 1, 0; }
NULL_API int nvrtcGetCUBINSize(void*, size_t* bytes) { return one(bytes); }
NULL_API int nvrtcGetPTXSize(void*, size_t* bytes) { return one(bytes); }
NULL_API int nvrtcGetProgramLogSize(void*, size_t* bytes) { return one(bytes); }
static int empty(char* text) { return *text = 0; }
NULL_API int nvrtcGetCUBIN(void*, char* text) { return empty(text); }
NULL_API int nvrtcGetPTX(void*, char* text) { return empty(text); }
NULL_API int nvrtcGetProgramLog(void*, char* text) { return empty(text); }
NULL_API int nvrtcGetLoweredName(void*, const char*, const char** name) { return *name = "kernel", 0; }
