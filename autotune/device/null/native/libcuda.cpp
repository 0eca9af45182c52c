// The driver: what PyTorch reaches by name for expandable segments, contexts and modules.
#include <cstring>
#include <map>
#include <mutex>

#include "core.h"
#include "cuda_types.h"

using namespace null_gpu;

NULL_API Error cudaDeviceGetAttribute(int* value, int attribute, int device);  // libcudart: the numbers are shared
NULL_API Error cudaGetDeviceProperties(DeviceProp* p, int device);

NULL_API Error cuInit(unsigned) { return kSuccess; }
NULL_API Error cuDriverGetVersion(int* version) { return *version = CUDA_VERSION_NUMBER, kSuccess; }
NULL_API Error cuDeviceGetCount(int* count) { return *count = card_count(), kSuccess; }
NULL_API Error cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal < card_count() ? kSuccess : kInvalidDevice; }
NULL_API Error cuDeviceGetAttribute(int* value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
NULL_API Error cuDeviceGetName(char* text, int size, int device) { return strncpy(text, card(device).name, size_t(size) - 1), text[size - 1] = 0, kSuccess; }
NULL_API Error cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = card(device).total_bytes, kSuccess; }
NULL_API Error cuDeviceGetUuid(char* uuid, int device) { return memset(uuid, 0, 16), uuid[0] = char(0xA7), uuid[15] = char(device + 1), kSuccess; }
NULL_API Error cuGetErrorString(Error error, const char** text) {
  return *text = error == kOutOfMemory ? "out of memory" : error == kSuccess ? "no error" : "error of the null GPU's driver", kSuccess;
}
NULL_API Error cuGetErrorName(Error error, const char** text) {
  return *text = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : error == kSuccess ? "CUDA_SUCCESS" : "CUDA_ERROR_UNKNOWN", kSuccess;
}

// --- contexts: one per card, made when the card is first used ----------------------------------------------------
static void* context_of(int index) { return reinterpret_cast<void*>(uintptr_t(0xC0) + uintptr_t(index)); }
NULL_API Error cuCtxGetCurrent(void** context) { return *context = context_of(current_card()), kSuccess; }
NULL_API Error cuCtxGetDevice(int* device) { return *device = current_card(), kSuccess; }
NULL_API Error cuCtxSetCurrent(void* context) { return set_current_card(int(reinterpret_cast<uintptr_t>(context)) - 0xC0), kSuccess; }
NULL_API Error cuCtxPushCurrent(void* context) { return cuCtxSetCurrent(context); }
NULL_API Error cuCtxPopCurrent(void** context) { return cuCtxGetCurrent(context); }
NULL_API Error cuDevicePrimaryCtxRetain(void** context, int device) { return use(device), *context = context_of(device), kSuccess; }
NULL_API Error cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  return *active = is_in_use(device), kSuccess;
}

// --- virtual memory: pages are what takes memory, addresses are free ---------------------------------------------
struct Page { int card; size_t bytes; int references; };
static std::mutex lock;
static std::map<uint64_t, Page> pages;
static std::map<uint64_t, uint64_t> mapped;  // address -> handle; a mapping keeps its page alive
static uint64_t next_handle = 1;

static void drop(uint64_t handle) {
  auto page = pages.find(handle);
  if (page == pages.end() || --page->second.references > 0) return;
  give(page->second.card, page->second.bytes);
  pages.erase(page);
}
NULL_API Error cuMemGetAllocationGranularity(size_t* bytes, const void*, int) { return *bytes = 2 << 20, kSuccess; }
NULL_API Error cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  *address = new_address(bytes);
  if (*address == 0) return kOutOfMemory;
  return remember(*address, bytes, Where::device, current_card()), kSuccess;
}
NULL_API Error cuMemAddressFree(uint64_t address, size_t) { Found found{}; return forget(address, &found) ? kSuccess : kInvalidValue; }
NULL_API Error cuMemCreate(uint64_t* handle, size_t bytes, const AllocationProp* property, unsigned long long) {
  const int index = property->locationId;
  if (index < 0 || index >= card_count()) return kInvalidDevice;
  if (!take(index, bytes)) return kOutOfMemory;
  std::lock_guard<std::mutex> guard(lock);
  *handle = next_handle++;
  return pages[*handle] = Page{index, bytes, 1}, kSuccess;
}
NULL_API Error cuMemRelease(uint64_t handle) { std::lock_guard<std::mutex> guard(lock); return drop(handle), kSuccess; }
NULL_API Error cuMemMap(uint64_t address, size_t, size_t, uint64_t handle, unsigned long long) {
  std::lock_guard<std::mutex> guard(lock);
  auto page = pages.find(handle);
  if (page == pages.end()) return kInvalidValue;
  page->second.references++;
  return mapped[address] = handle, kSuccess;
}
NULL_API Error cuMemUnmap(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  for (auto entry = mapped.lower_bound(address); entry != mapped.end() && entry->first < address + bytes;) {
    drop(entry->second);
    entry = mapped.erase(entry);
  }
  return kSuccess;
}
NULL_API Error cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return kSuccess; }
NULL_API Error cuMemExportToShareableHandle(void*, uint64_t, int, unsigned long long) { return kNotSupported; }
NULL_API Error cuMemImportFromShareableHandle(uint64_t*, void*, int) { return kNotSupported; }
NULL_API Error cuMemGetAddressRange(uint64_t* base, size_t* bytes, uint64_t address) {
  const Found found = find(reinterpret_cast<void*>(address));
  if (found.where != Where::device) return kInvalidValue;
  if (base) *base = found.base;
  if (bytes) *bytes = found.size;
  return kSuccess;
}
NULL_API Error cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t address) { return cuMemGetAddressRange(base, bytes, address); }
NULL_API Error cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  const Found found = find(reinterpret_cast<void*>(address));
  if (attribute == 1) *static_cast<void**>(value) = context_of(found.card < 0 ? 0 : found.card);
  else if (attribute == 2) *static_cast<unsigned*>(value) = found.where == Where::device ? 2 : 1;
  else if (attribute == 3) *static_cast<uint64_t*>(value) = address;
  else if (attribute == 9) *static_cast<int*>(value) = found.card < 0 ? 0 : found.card;
  else return kNotSupported;
  return kSuccess;
}

// --- modules and launches -----------------------------------------------------------------------------------------
static void* handle(void) { return reinterpret_cast<void*>(uintptr_t(0xF00)); }
NULL_API Error cuModuleLoad(void** module, const char*) { return *module = handle(), kSuccess; }
NULL_API Error cuModuleLoadData(void** module, const void*) { return *module = handle(), kSuccess; }
NULL_API Error cuModuleLoadDataEx(void** module, ...) { return *module = handle(), kSuccess; }
NULL_API Error cuModuleGetFunction(void** function, void*, const char*) { return *function = handle(), kSuccess; }
NULL_API Error cuFuncGetAttribute(int* value, int attribute, void*) { return *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0, kSuccess; }
NULL_API Error cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) { return *blocks = 1, kSuccess; }
NULL_API Error cuLaunchKernel(void) { return null_gpu_launched(), kSuccess; }
NULL_API Error cuLaunchKernelEx(void) { return null_gpu_launched(), kSuccess; }
NULL_API Error cuLaunchCooperativeKernel(void) { return null_gpu_launched(), kSuccess; }
