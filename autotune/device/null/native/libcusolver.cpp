// cuSOLVER: factorisations ask for no workspace here; what NVIDIA's library would ask for is unknown, so each such
// question is counted as unmodelled.
#include "core.h"

#define NONE(name, ...) NULL_API int name(__VA_ARGS__, int* count) { return null_gpu_unmodelled(#name), *count = 0; }
#define EACH(dtype)                                                                      \
  NONE(cusolverDn##dtype##getrf_bufferSize, void*, int, int, void*, int)                 \
  NONE(cusolverDn##dtype##geqrf_bufferSize, void*, int, int, void*, int)                 \
  NONE(cusolverDn##dtype##potrf_bufferSize, void*, int, int, void*, int)                 \
  NONE(cusolverDn##dtype##gesvd_bufferSize, void*, int, int)
EACH(S) EACH(D) EACH(C) EACH(Z)
NONE(cusolverDnSorgqr_bufferSize, void*, int, int, int, const void*, int, const void*)
NONE(cusolverDnDorgqr_bufferSize, void*, int, int, int, const void*, int, const void*)
NULL_API int cusolverDnXgeqrf_bufferSize(void*, void*, int64_t, int64_t, int, const void*, int64_t, int, const void*, int, size_t* device, size_t* host) {
  return null_gpu_unmodelled("cusolverDnXgeqrf_bufferSize"), *device = 0, *host = 0;
}
NULL_API int cusolverDnXpotrf_bufferSize(void*, void*, int, int64_t, int, const void*, int64_t, int, size_t* device, size_t* host) {
  return null_gpu_unmodelled("cusolverDnXpotrf_bufferSize"), *device = 0, *host = 0;
}
NULL_API int cusolverDnXsyevd_bufferSize(void*, void*, int, int, int64_t, int, const void*, int64_t, int, const void*, int, size_t* device, size_t* host) {
  return null_gpu_unmodelled("cusolverDnXsyevd_bufferSize"), *device = 0, *host = 0;
}
static int made(void** handle) { return *handle = reinterpret_cast<void*>(0x40), 0; }
NULL_API int cusolverDnCreate(void** handle) { return made(handle); }
NULL_API int cusolverDnCreateParams(void** handle) { return made(handle); }
NULL_API int cusolverDnCreateGesvdjInfo(void** handle) { return made(handle); }
NULL_API int cusolverDnCreateSyevjInfo(void** handle) { return made(handle); }
