// NCCL: communicators exist and collectives move nothing; no memory of its own is counted.
#include "core.h"

NULL_API int ncclGetVersion(int* version) { return *version = 22700, 0; }
NULL_API int ncclCommInitRank(void** made, ...) { return *made = reinterpret_cast<void*>(0x30), 0; }
NULL_API int ncclCommInitRankConfig(void** made, ...) { return *made = reinterpret_cast<void*>(0x30), 0; }
NULL_API int ncclCommInitAll(void** made, int count, const int*) {
  for (int i = 0; i < count; i++) made[i] = reinterpret_cast<void*>(0x30);
  return 0;
}
NULL_API int ncclCommGetAsyncError(void*, int* error) { return *error = 0, 0; }
NULL_API const char* ncclGetErrorString(int) { return "an error of the null GPU's NCCL"; }
NULL_API const char* ncclGetLastError(void*) { return ""; }
