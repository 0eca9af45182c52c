// cuBLASLt: descriptors, and one heuristic result that asks for no workspace of its own.
#include <cstring>

#include "core.h"

static void* descriptor() { return new char[256](); }
NULL_API int cublasLtCreate(void** handle) { return *handle = descriptor(), 0; }
NULL_API int cublasLtMatmulDescCreate(void** made, int, int) { return *made = descriptor(), 0; }
NULL_API int cublasLtMatrixLayoutCreate(void** made, int, uint64_t, uint64_t, int64_t) { return *made = descriptor(), 0; }
NULL_API int cublasLtMatmulPreferenceCreate(void** made) { return *made = descriptor(), 0; }
static int destroy(void* made) { return delete[] static_cast<char*>(made), 0; }
NULL_API int cublasLtMatmulDescDestroy(void* made) { return destroy(made); }
NULL_API int cublasLtMatrixLayoutDestroy(void* made) { return destroy(made); }
NULL_API int cublasLtMatmulPreferenceDestroy(void* made) { return destroy(made); }
// cublasLtMatmulHeuristicResult_t: algo (64 bytes), workspaceSize, state, wavesCount, reserved: 96 bytes of zeros.
NULL_API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {
  return memset(results, 0, 96), *count = 1, 0;
}
