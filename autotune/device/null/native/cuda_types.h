// The few CUDA structs that cross the interface, declared here so that no CUDA headers are needed. Layouts are
// those of the public headers of CUDA 12 and 13 (driver_types.h, cuda.h); CUDA_MAJOR says which.
#pragma once
#include <cstddef>
#include <cstdint>

using Error = int;  // cudaError_t and CUresult share these numbers
constexpr Error kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kNotFound = 500,
                kNotSupported = 801;

enum MemoryType { kUnregistered = 0, kHostMemory = 1, kDeviceMemory = 2, kManagedMemory = 3 };
enum CopyKind { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefaultCopy = 4 };

struct DeviceProp {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned int luidDeviceNodeMask;
  size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
#if CUDA_MAJOR < 13
  int clockRate;
#endif
  size_t totalConstMem;
  int major, minor;
  size_t textureAlignment, texturePitchAlignment;
#if CUDA_MAJOR < 13
  int deviceOverlap;
#endif
  int multiProcessorCount;
#if CUDA_MAJOR < 13
  int kernelExecTimeoutEnabled;
#endif
  int integrated, canMapHostMemory;
#if CUDA_MAJOR < 13
  int computeMode;
#endif
  int maxTexture1D, maxTexture1DMipmap;
#if CUDA_MAJOR < 13
  int maxTexture1DLinear;
#endif
  int maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2], maxTexture3D[3],
      maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2], maxTexture2DLayered[3],
      maxTextureCubemapLayered[2], maxSurface1D, maxSurface2D[2], maxSurface3D[3], maxSurface1DLayered[2],
      maxSurface2DLayered[3], maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount,
      unifiedAddressing;
#if CUDA_MAJOR < 13
  int memoryClockRate;
#endif
  int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported,
      globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported;
#if CUDA_MAJOR < 13
  int singleToDoublePrecisionPerfRatio;
#endif
  int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem,
      cooperativeLaunch;
#if CUDA_MAJOR < 13
  int cooperativeMultiDeviceLaunch;
#endif
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor,
      accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported,
      timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
  unsigned int gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned int memoryPoolSupportedHandleTypes;
  int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers;
#if CUDA_MAJOR >= 13
  int deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
  unsigned int gpuPciDeviceID, gpuPciSubsystemID;
  int hostNumaMultinodeIpcSupported, reserved[56];
#else
  int reserved[63];
#endif
};

#if CUDA_MAJOR >= 13
static_assert(offsetof(DeviceProp, totalGlobalMem) == 288 && offsetof(DeviceProp, major) == 360, "CUDA 13 layout");
static_assert(offsetof(DeviceProp, sharedMemPerBlockOptin) == 672 && sizeof(DeviceProp) == 1008, "CUDA 13 layout");
#else
static_assert(offsetof(DeviceProp, totalGlobalMem) == 288 && offsetof(DeviceProp, major) == 360, "CUDA 12 layout");
static_assert(offsetof(DeviceProp, sharedMemPerBlockOptin) == 696 && sizeof(DeviceProp) == 1032, "CUDA 12 layout");
#endif

struct PointerAttributes {
  int type, device;
  void *devicePointer, *hostPointer;
#if CUDA_MAJOR >= 13
  long reserved[8];
#endif
};

struct FuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes,
      preferredShmemCarveout, clusterDimMustBeSet, requiredClusterWidth, requiredClusterHeight, requiredClusterDepth,
      clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed, reserved[16];
};

struct Dim3 {
  unsigned x, y, z;
};

// CUmemAllocationProp, up to what is read here: the location's id is the card.
struct AllocationProp {
  int type, requestedHandleTypes, locationType, locationId;
};

// CUmemLocation as cudaMemPrefetchAsync and pools pass it.
struct Location {
  int type, id;
};
