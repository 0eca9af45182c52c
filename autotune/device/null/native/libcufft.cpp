// cuFFT: plans without a work area.
#include "core.h"

NULL_API int cufftCreate(int* plan) { return *plan = 1, 0; }
NULL_API int cufftXtMakePlanMany(int, int, long long*, long long*, long long, long long, int, long long*, long long, long long,
                                 int, long long, size_t* work_bytes, int) {
  return *work_bytes = 0, 0;
}
NULL_API int cufftGetSize(int, size_t* work_bytes) { return *work_bytes = 0, 0; }
