// cuDNN: graphs are accepted, heuristics give one engine without notes, whose plan asks for the workspace the card
// was given (convolution_workspace_bytes). What NVIDIA's library would choose can't be known here.
#include <cstring>

#include "core.h"

using namespace null_gpu;

NULL_API int cudnnCreate(void** handle) { return *handle = reinterpret_cast<void*>(0x20), 0; }
NULL_API size_t cudnnGetVersion(void) { return 92000; }
NULL_API size_t cudnnGetCudartVersion(void) { return CUDA_VERSION_NUMBER; }
NULL_API const char* cudnnGetErrorString(int) { return "an error of the null GPU's cuDNN"; }
NULL_API int cudnnGetStream(void*, void** stream) { return *stream = nullptr, 0; }
NULL_API int cudnnGetProperty(int which, int* value) { return *value = which == 0 ? 9 : which == 1 ? 20 : 0, 0; }
NULL_API int cudnnBackendCreateDescriptor(int, void** made) { return *made = new char[16](), 0; }
NULL_API int cudnnBackendDestroyDescriptor(void* made) { return delete[] static_cast<char*>(made), 0; }

enum Attribute { kHeuristicResults = 202, kPlanWorkspace = 402 };            // cudnnBackendAttributeName_t
enum Type { kDataType = 1, kBoolean = 2, kInt64 = 3, kNumericalNote = 11, kDescriptor = 15, kBehaviourNote = 19, kInt32 = 23 };
NULL_API int cudnnBackendGetAttribute(void*, int attribute, int type, int64_t wanted, int64_t* count, void* values) {
  if (type == kNumericalNote || type == kBehaviourNote) return count ? *count = 0, 0 : 0;
  const bool one = wanted > 0 || attribute == kHeuristicResults;
  if (count) *count = one ? 1 : 0;
  if (values == nullptr || wanted <= 0) return 0;
  if (type == kInt64) {
    const int64_t value = attribute == kPlanWorkspace ? int64_t(card(current_card()).convolution_workspace_bytes) : 0;
    memcpy(values, &value, sizeof value);
  } else if (type == kDataType || type == kInt32) {
    memset(values, 0, 4);
  } else if (type == kBoolean) {
    memset(values, 0, 1);
  }
  return 0;
}
NULL_API int cudnnDropoutGetStatesSize(void*, size_t* bytes) { return *bytes = 0, 0; }
