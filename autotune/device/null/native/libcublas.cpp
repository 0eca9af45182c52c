// cuBLAS: handles differ, for PyTorch keys its workspace by handle and stream and the autograd thread has its own.
#include <atomic>

#include "core.h"

static void* fresh() { static std::atomic<uintptr_t> next{0x10}; return reinterpret_cast<void*>(next += 0x10); }
NULL_API int cublasCreate_v2(void** handle) { return *handle = fresh(), 0; }
NULL_API int cublasGetMathMode(void*, int* mode) { return *mode = 0, 0; }
NULL_API int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0, 0; }
NULL_API int cublasGetStream_v2(void*, void** stream) { return *stream = nullptr, 0; }
NULL_API int cublasGetVersion_v2(void*, int* version) { return *version = CUDA_VERSION_NUMBER * 10, 0; }
NULL_API int cublasGetSmCountTarget(void*, int* count) { return *count = 0, 0; }
