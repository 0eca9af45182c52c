// The CUDA runtime: memory is counted, everything else succeeds and does nothing. Signatures are those of
// cuda_runtime_api.h; a function absent here is generated and counted as unmodelled, or reviewed in
// compute_only.txt.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "core.h"
#include "cuda_types.h"

using namespace null_gpu;
using Stream = void*;
using Event = void*;

static thread_local Error last_error = kSuccess;
static Error result(Error error) {
  if (error != kSuccess) last_error = error;
  return error;
}

// --- devices ------------------------------------------------------------------------------------------------
NULL_API Error cudaGetDeviceCount(int* count) { return *count = card_count(), kSuccess; }
NULL_API Error cudaGetDevice(int* device) { return *device = current_card(), kSuccess; }
NULL_API Error cudaSetDevice(int device) { return set_current_card(device) ? kSuccess : result(kInvalidDevice); }
NULL_API Error cudaDriverGetVersion(int* version) { return *version = CUDA_VERSION_NUMBER, kSuccess; }
NULL_API Error cudaRuntimeGetVersion(int* version) { return *version = CUDA_VERSION_NUMBER, kSuccess; }
NULL_API Error cudaGetLastError(void) { Error error = last_error; return last_error = kSuccess, error; }
NULL_API Error cudaPeekAtLastError(void) { return last_error; }

static void describe(DeviceProp* p, int index) {
  const Card& c = card(index);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", c.name);
  p->uuid[0] = char(0xA7), p->uuid[15] = char(index + 1);
  p->totalGlobalMem = c.total_bytes;
  p->major = c.major, p->minor = c.minor;
  p->multiProcessorCount = c.sm_count;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = c.block_shared_bytes;
  p->sharedMemPerMultiprocessor = c.shared_bytes;
  p->reservedSharedMemPerBlock = c.major >= 8 ? 1024 : 0;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = c.threads;
  p->maxBlocksPerMultiProcessor = c.threads / 64;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->totalConstMem = 65536;
  p->memPitch = 2147483647;
  p->textureAlignment = 512, p->texturePitchAlignment = 32, p->surfaceAlignment = 512;
  p->l2CacheSize = 4 << 20;
  p->memoryBusWidth = 256;
  p->pciBusID = index + 1;
  p->unifiedAddressing = p->managedMemory = p->concurrentManagedAccess = p->concurrentKernels = 1;
  p->canMapHostMemory = p->cooperativeLaunch = p->streamPrioritiesSupported = p->memoryPoolsSupported = 1;
  p->asyncEngineCount = 2;
  p->clusterLaunch = c.major >= 9;
#if CUDA_MAJOR < 13
  p->clockRate = 1500000, p->memoryClockRate = 7000000;
#endif
}
NULL_API Error cudaGetDeviceProperties(DeviceProp* p, int device) {
  if (device < 0 || device >= card_count()) return result(kInvalidDevice);
  return describe(p, device), kSuccess;
}
NULL_API Error cudaGetDeviceProperties_v2(DeviceProp* p, int device) { return cudaGetDeviceProperties(p, device); }

// The driver's attributes (CUdevice_attribute) have the same numbers, so libcuda asks here.
NULL_API Error cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= card_count()) return result(kInvalidDevice);
  DeviceProp p;
  describe(&p, device);
  const std::map<int, long> figures = {
      {1, p.maxThreadsPerBlock}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},
      {8, long(p.sharedMemPerBlock)}, {9, long(p.totalConstMem)}, {10, 32}, {11, long(p.memPitch)},
      {12, p.regsPerBlock}, {13, 1500000}, {14, 512}, {15, 1}, {16, p.multiProcessorCount}, {19, 1}, {31, 1},
      {33, p.pciBusID}, {34, 0}, {36, 7000000}, {37, p.memoryBusWidth}, {38, p.l2CacheSize},
      {39, p.maxThreadsPerMultiProcessor}, {40, 2}, {41, 1}, {50, 0}, {75, p.major}, {76, p.minor}, {78, 1},
      {79, 1}, {80, 1}, {81, long(p.sharedMemPerMultiprocessor)}, {82, 65536}, {83, 1}, {89, 1}, {90, 1}, {95, 1},
      {97, long(p.sharedMemPerBlockOptin)}, {102, 1}, {103, 1}, {106, p.maxBlocksPerMultiProcessor},
      {111, long(p.reservedSharedMemPerBlock)}, {115, 1}, {120, p.clusterLaunch}};
  auto found = figures.find(attribute);
  return *value = found == figures.end() ? 0 : int(found->second), kSuccess;
}
NULL_API Error cudaDeviceGetPCIBusId(char* text, int size, int device) {
  return snprintf(text, size_t(size), "0000:%02x:00.0", device + 1), kSuccess;
}
NULL_API Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, kSuccess; }
NULL_API Error cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, kSuccess; }
NULL_API const char* cudaGetErrorName(Error error) {
  switch (error) {
    case kSuccess: return "cudaSuccess";
    case kInvalidValue: return "cudaErrorInvalidValue";
    case kOutOfMemory: return "cudaErrorMemoryAllocation";
    case kInvalidDevice: return "cudaErrorInvalidDevice";
    case kNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}
NULL_API const char* cudaGetErrorString(Error error) {
  switch (error) {
    case kSuccess: return "no error";
    case kInvalidValue: return "invalid argument";
    case kOutOfMemory: return "out of memory";
    case kInvalidDevice: return "invalid device ordinal";
    case kNotSupported: return "operation not supported (null GPU)";
    default: return "unknown error (null GPU)";
  }
}

// --- memory -------------------------------------------------------------------------------------------------
static Error allocate(void** pointer, size_t bytes) {
  const int index = current_card();
  *pointer = nullptr;
  if (bytes == 0) return kSuccess;
  if (!take(index, bytes)) return result(kOutOfMemory);
  const uintptr_t base = new_address(bytes);
  if (base == 0) return give(index, bytes), result(kOutOfMemory);
  remember(base, bytes, Where::device, index);
  return *pointer = reinterpret_cast<void*>(base), kSuccess;
}
static Error release(void* pointer) {
  if (pointer == nullptr) return kSuccess;
  Found found{};
  if (!forget(reinterpret_cast<uintptr_t>(pointer), &found)) return result(kInvalidValue);
  if (found.where == Where::device) give(found.card, found.size);
  if (found.where == Where::managed) free(pointer);
  return kSuccess;
}
static Error host_memory(void** pointer, size_t bytes) {
  *pointer = calloc(1, bytes ? bytes : 1);
  return *pointer ? kSuccess : result(kOutOfMemory);
}
NULL_API Error cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes); }
NULL_API Error cudaFree(void* pointer) { return use(current_card()), release(pointer); }
NULL_API Error cudaMallocAsync(void** pointer, size_t bytes, Stream) { return allocate(pointer, bytes); }
NULL_API Error cudaMallocFromPoolAsync(void** pointer, size_t bytes, void*, Stream) { return allocate(pointer, bytes); }
NULL_API Error cudaFreeAsync(void* pointer, Stream) { return release(pointer); }
// Managed memory lives on the host and is paged in by the driver, so no card holds it for good.
NULL_API Error cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
  const Error error = host_memory(pointer, bytes);
  if (error == kSuccess) remember(reinterpret_cast<uintptr_t>(*pointer), bytes, Where::managed, current_card());
  return error;
}
NULL_API Error cudaMemGetInfo(size_t* free_now, size_t* total) {
  const int index = current_card();
  use(index);
  return *free_now = free_bytes(index), *total = card(index).total_bytes, kSuccess;
}
NULL_API Error cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return host_memory(pointer, bytes); }
NULL_API Error cudaMallocHost(void** pointer, size_t bytes) { return host_memory(pointer, bytes); }
NULL_API Error cudaFreeHost(void* pointer) { return free(pointer), kSuccess; }
NULL_API Error cudaHostGetDevicePointer(void** device, void* host, unsigned) { return *device = host, kSuccess; }
NULL_API Error cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
  const Found found = find(pointer);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = found.where == Where::device ? kDeviceMemory : found.where == Where::managed ? kManagedMemory : kUnregistered;
  attributes->device = found.card < 0 ? 0 : found.card;
  if (found.where != Where::host) attributes->devicePointer = const_cast<void*>(pointer);
  return kSuccess;
}
NULL_API Error cudaDeviceGetDefaultMemPool(void** pool, int device) { return *pool = reinterpret_cast<void*>(uintptr_t(device) + 1), kSuccess; }
NULL_API Error cudaMemPoolGetAttribute(void* pool, int attribute, void* value) {
  const int index = int(reinterpret_cast<uintptr_t>(pool)) - 1;
  uint64_t bytes = attribute >= 5 && index >= 0 && index < card_count() ? used_by_this_process(index) : 0;
  return memcpy(value, &bytes, attribute <= 3 ? sizeof(int) : sizeof bytes), kSuccess;  // 5..8: used and reserved
}

static void copy(void* to, const void* from, size_t bytes) {
  const bool to_card = find(to).where == Where::device, from_card = find(from).where == Where::device;
  const auto target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  if (to_card && from_card) copy_device(target, source, bytes);
  else if (to_card) write_device(target, from, bytes);
  else if (from_card) read_device(to, source, bytes);
  else memmove(to, from, bytes);
}
NULL_API Error cudaMemcpy(void* to, const void* from, size_t bytes, int) { return copy(to, from, bytes), kSuccess; }
NULL_API Error cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, Stream) { return copy(to, from, bytes), kSuccess; }
NULL_API Error cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, Stream) { return copy(to, from, bytes), kSuccess; }
NULL_API Error cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int, Stream) {
  if (find(to).where == Where::device) return write_device(reinterpret_cast<uintptr_t>(to), nullptr, to_pitch * height), kSuccess;
  for (size_t row = 0; row < height; row++)
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return kSuccess;
}
NULL_API Error cudaMemset(void* to, int value, size_t bytes) {
  if (find(to).where != Where::device) memset(to, value, bytes);
  else write_device(reinterpret_cast<uintptr_t>(to), nullptr, bytes);
  return kSuccess;
}
NULL_API Error cudaMemsetAsync(void* to, int value, size_t bytes, Stream) { return cudaMemset(to, value, bytes); }
NULL_API Error cudaGetSymbolAddress(void** pointer, const void*) {
  static const uintptr_t one = [] { uintptr_t a = new_address(1 << 20); remember(a, 1 << 20, Where::device, 0); return a; }();
  return *pointer = reinterpret_cast<void*>(one), kSuccess;
}
// Another process can't map what is only an address here: say so rather than hand out nonsense.
NULL_API Error cudaIpcGetMemHandle(void*, void*) { return result(kNotSupported); }
NULL_API Error cudaIpcOpenMemHandle(void**, ...) { return result(kNotSupported); }
NULL_API Error cudaIpcGetEventHandle(void*, void*) { return result(kNotSupported); }
NULL_API Error cudaIpcOpenEventHandle(void**, ...) { return result(kNotSupported); }

// --- streams, events, capture -------------------------------------------------------------------------------
static std::mutex capture_lock;
static std::map<Stream, unsigned long long> captures;
static void* fresh(void) {
  static std::mutex lock;
  static uintptr_t next = 0x1000;
  std::lock_guard<std::mutex> guard(lock);
  return reinterpret_cast<void*>(next += 0x100);
}
static int capture_state(Stream stream, unsigned long long* id) {
  std::lock_guard<std::mutex> guard(capture_lock);
  auto found = captures.find(stream);
  if (id) *id = found == captures.end() ? 0 : found->second;
  return found == captures.end() ? 0 : 1;  // none, active
}
NULL_API Error cudaStreamCreate(Stream* stream) { return *stream = fresh(), kSuccess; }
NULL_API Error cudaStreamCreateWithFlags(Stream* stream, unsigned) { return *stream = fresh(), kSuccess; }
NULL_API Error cudaStreamCreateWithPriority(Stream* stream, unsigned, int) { return *stream = fresh(), kSuccess; }
NULL_API Error cudaStreamGetPriority(Stream, int* priority) { return *priority = 0, kSuccess; }
NULL_API Error cudaStreamIsCapturing(Stream stream, int* status) { return *status = capture_state(stream, nullptr), kSuccess; }
static Error capture_info(Stream stream, int* status, unsigned long long* id, void** graph, const void*** nodes, size_t* count) {
  *status = capture_state(stream, id);
  if (graph) *graph = nullptr;
  if (nodes) *nodes = nullptr;
  if (count) *count = 0;
  return kSuccess;
}
NULL_API Error cudaStreamGetCaptureInfo_v2(Stream s, int* status, unsigned long long* id, void** graph, const void*** nodes, size_t* count) {
  return capture_info(s, status, id, graph, nodes, count);
}
NULL_API Error cudaStreamGetCaptureInfo_v3(Stream s, int* status, unsigned long long* id, void** graph, const void*** nodes, const void** edges, size_t* count) {
  if (edges) *edges = nullptr;
  return capture_info(s, status, id, graph, nodes, count);
}
#if CUDA_MAJOR >= 13
NULL_API Error cudaStreamGetCaptureInfo(Stream s, int* status, unsigned long long* id, void** graph, const void*** nodes, const void** edges, size_t* count) {
  return cudaStreamGetCaptureInfo_v3(s, status, id, graph, nodes, edges, count);
}
#else
NULL_API Error cudaStreamGetCaptureInfo(Stream s, int* status, unsigned long long* id) { return capture_info(s, status, id, nullptr, nullptr, nullptr); }
#endif
NULL_API Error cudaStreamBeginCapture(Stream stream, int) {
  static unsigned long long next = 0;
  std::lock_guard<std::mutex> guard(capture_lock);
  return captures[stream] = ++next, kSuccess;
}
NULL_API Error cudaStreamEndCapture(Stream stream, void** graph) {
  std::lock_guard<std::mutex> guard(capture_lock);
  captures.erase(stream);
  return *graph = fresh(), kSuccess;
}
NULL_API Error cudaThreadExchangeStreamCaptureMode(int* mode) { return *mode = 0, kSuccess; }
NULL_API Error cudaGraphInstantiateWithFlags(void** executable, void*, unsigned long long) { return *executable = fresh(), kSuccess; }
NULL_API Error cudaGraphInstantiate(void** executable, void*, unsigned long long) { return *executable = fresh(), kSuccess; }
NULL_API Error cudaGraphGetNodes(void*, void** nodes, size_t* count) { return (void)nodes, *count = 1, kSuccess; }
NULL_API Error cudaEventCreate(Event* event) { return *event = fresh(), kSuccess; }
NULL_API Error cudaEventCreateWithFlags(Event* event, unsigned) { return *event = fresh(), kSuccess; }
NULL_API Error cudaEventElapsedTime(float* ms, Event, Event) { return *ms = 0, kSuccess; }
NULL_API Error cudaEventElapsedTime_v2(float* ms, Event, Event) { return *ms = 0, kSuccess; }
NULL_API Error cudaLaunchHostFunc(Stream, void (*function)(void*), void* data) { return function(data), kSuccess; }
NULL_API Error cudaStreamAddCallback(Stream stream, void (*function)(Stream, Error, void*), void* data, unsigned) {
  return function(stream, kSuccess, data), kSuccess;
}

// --- kernels ------------------------------------------------------------------------------------------------
// PyTorch's wheels carry kernels for these architectures; a card runs those of the highest at or below its own, and
// CUB looks for a policy under that number: on 8.9 it must be told 8.6 or it refuses (cudaErrorInvalidDeviceFunction).
static int kernel_architecture(const Card& c) {
  const int own = 10 * c.major + c.minor;
  int found = 50;
  for (int carried : {60, 70, 75, 80, 86, 90, 100, 120}) if (carried <= own) found = carried;
  return found;
}
NULL_API Error cudaFuncGetAttributes(FuncAttributes* attributes, const void*) {
  const Card& c = card(current_card());
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = kernel_architecture(c);
  attributes->maxDynamicSharedSizeBytes = c.block_shared_bytes;
  return kSuccess;
}
static Error occupancy(int* blocks, int threads) {
  const int fit = threads > 0 ? card(current_card()).threads / threads : 1;
  return *blocks = fit > 0 ? fit : 1, kSuccess;
}
NULL_API Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) { return occupancy(blocks, threads); }
NULL_API Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads, size_t, unsigned) { return occupancy(blocks, threads); }
static thread_local struct { Dim3 grid, block; size_t shared; void* stream; } launch;
NULL_API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  launch = {grid, block, shared, stream};
  return 0;
}
NULL_API Error __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void* stream) {
  *grid = launch.grid, *block = launch.block, *shared = launch.shared, *static_cast<void**>(stream) = launch.stream;
  return kSuccess;
}
NULL_API void** __cudaRegisterFatBinary(void*) { static void* handle[4]; return handle; }
NULL_API Error __cudaGetKernel(void** kernel, const void* function) { return *kernel = const_cast<void*>(function), kSuccess; }
NULL_API Error __cudaLaunchKernel(void) { return null_gpu_launched(), kSuccess; }
NULL_API Error cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, Stream) { return null_gpu_launched(), kSuccess; }
NULL_API Error cudaLaunchKernelExC(const void*, const void*, void**) { return null_gpu_launched(), kSuccess; }
NULL_API Error cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, size_t, Stream) { return null_gpu_launched(), kSuccess; }
NULL_API Error cudaLibraryLoadData(void** library, ...) { return *library = fresh(), kSuccess; }
NULL_API Error cudaLibraryGetKernel(void** kernel, void*, const char*) { return *kernel = fresh(), kSuccess; }

// --- the driver, reached by name ------------------------------------------------------------------------------
static Error entry_point(const char* name, void** function, int* status) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  *function = driver ? dlsym(driver, name) : nullptr;
  if (status) *status = *function ? 0 : 1;  // found, symbol not found
  return kSuccess;
}
NULL_API Error cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* status) { return entry_point(name, function, status); }
NULL_API Error cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* status) { return entry_point(name, function, status); }
