// NVML: the same cards, with who holds how much of them. What a null card has no answer to is not supported.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core.h"

using namespace null_gpu;

namespace {
constexpr int kOk = 0, kBadArgument = 2, kUnsupported = 3, kNotFoundHere = 6, kTooSmall = 7;
struct Memory { unsigned long long total, free, used; };
struct Memory2 { unsigned version; unsigned long long total, reserved, free, used; };
struct Process1 { unsigned pid; unsigned long long used; };
struct Process2 { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct Pci { char legacy_id[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };

int index_of(void* handle) { return int(reinterpret_cast<uintptr_t>(handle)) - 1; }
void* handle_of(int index) { return reinterpret_cast<void*>(uintptr_t(index) + 1); }
int copy_text(char* to, unsigned size, const char* text) { return snprintf(to, size, "%s", text), kOk; }

template <class Row>
int list(void* handle, unsigned* count, Row* rows) {
  int32_t pids[kMaxProcesses];
  uint64_t bytes[kMaxProcesses];
  const unsigned found = unsigned(list_processes(index_of(handle), pids, bytes, kMaxProcesses));
  const unsigned room = *count;
  *count = found;
  if (found > room) return kTooSmall;
  for (unsigned i = 0; i < found; i++) {
    rows[i] = Row{};
    rows[i].pid = unsigned(pids[i]), rows[i].used = bytes[i];
  }
  return kOk;
}
}  // namespace

NULL_API int nvmlInit(void) { return kOk; }
NULL_API int nvmlInit_v2(void) { return kOk; }
NULL_API int nvmlInitWithFlags(unsigned) { return kOk; }
NULL_API int nvmlShutdown(void) { return kOk; }
NULL_API const char* nvmlErrorString(int error) {
  return error == kOk ? "Success" : error == kUnsupported ? "Not Supported" : error == kNotFoundHere ? "Not Found" : error == kTooSmall ? "Insufficient Size" : "Invalid Argument";
}
NULL_API int nvmlSystemGetDriverVersion(char* text, unsigned size) { return copy_text(text, size, "580.95.05"); }
NULL_API int nvmlSystemGetNVMLVersion(char* text, unsigned size) { return copy_text(text, size, "13.580.95.05"); }
NULL_API int nvmlSystemGetCudaDriverVersion(int* version) { return *version = CUDA_VERSION_NUMBER, kOk; }
NULL_API int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = CUDA_VERSION_NUMBER, kOk; }
NULL_API int nvmlDeviceGetCount(unsigned* count) { return *count = unsigned(card_count()), kOk; }
NULL_API int nvmlDeviceGetCount_v2(unsigned* count) { return *count = unsigned(card_count()), kOk; }
NULL_API int nvmlDeviceGetHandleByIndex(unsigned index, void** handle) {
  if (int(index) >= card_count()) return kBadArgument;
  return *handle = handle_of(int(index)), kOk;
}
NULL_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) { return nvmlDeviceGetHandleByIndex(index, handle); }
NULL_API int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {
  const char* bus = strchr(id, ':');
  const long number = bus ? strtol(bus + 1, nullptr, 16) : 0;
  if (number < 1 || number > card_count()) return kNotFoundHere;
  return *handle = handle_of(int(number) - 1), kOk;
}
NULL_API int nvmlDeviceGetIndex(void* handle, unsigned* index) { return *index = unsigned(index_of(handle)), kOk; }
NULL_API int nvmlDeviceGetMinorNumber(void* handle, unsigned* number) { return *number = unsigned(index_of(handle)), kOk; }
NULL_API int nvmlDeviceGetName(void* handle, char* text, unsigned size) { return copy_text(text, size, card(index_of(handle)).name); }
NULL_API int nvmlDeviceGetUUID(void* handle, char* text, unsigned size) {
  return snprintf(text, size, "GPU-a7000000-0000-0000-0000-0000000000%02x", index_of(handle) + 1), kOk;
}
NULL_API int nvmlDeviceGetPciInfo_v3(void* handle, Pci* pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = unsigned(index_of(handle)) + 1;
  snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
  snprintf(pci->legacy_id, sizeof pci->legacy_id, "0000:%02X:00.0", pci->bus);
  return kOk;
}
NULL_API int nvmlDeviceGetPciInfo_v2(void* handle, Pci* pci) { return nvmlDeviceGetPciInfo_v3(handle, pci); }
NULL_API int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  const int index = index_of(handle);
  const auto total = card(index).total_bytes, left = free_bytes(index);
  return *memory = Memory{total, left, total - left}, kOk;
}
NULL_API int nvmlDeviceGetMemoryInfo_v2(void* handle, Memory2* memory) {
  const int index = index_of(handle);
  const auto total = card(index).total_bytes, left = free_bytes(index);
  return *memory = Memory2{memory->version, total, 0, left, total - left}, kOk;
}
NULL_API int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
  return *major = card(index_of(handle)).major, *minor = card(index_of(handle)).minor, kOk;
}
NULL_API int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, Process1* rows) { return list(handle, count, rows); }
NULL_API int nvmlDeviceGetComputeRunningProcesses_v2(void* handle, unsigned* count, Process2* rows) { return list(handle, count, rows); }
NULL_API int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process2* rows) { return list(handle, count, rows); }
NULL_API int nvmlDeviceGetGraphicsRunningProcesses_v3(void*, unsigned* count, Process2*) { return *count = 0, kOk; }
NULL_API int nvmlDeviceGetGraphicsRunningProcesses_v2(void*, unsigned* count, Process2*) { return *count = 0, kOk; }
NULL_API int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) { return rates[0] = rates[1] = 0, kOk; }
NULL_API int nvmlDeviceGetMigMode(void*, unsigned*, unsigned*) { return kUnsupported; }
NULL_API int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) { return *count = 0, kOk; }
NULL_API int nvmlDeviceGetDriverModel(void*, unsigned*, unsigned*) { return kUnsupported; }
NULL_API int nvmlDeviceGetDriverModel_v2(void*, unsigned*, unsigned*) { return kUnsupported; }
NULL_API int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) { return kUnsupported; }
NULL_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kUnsupported; }
// Expandable segments insist on an answer: version, cluster, status, clique, state (0: not supported), health.
NULL_API int nvmlDeviceGetGpuFabricInfoV(void*, unsigned char* info) { return memset(info + 4, 0, 28), kOk; }
NULL_API int nvmlDeviceGetTemperature(void*, unsigned, unsigned*) { return kUnsupported; }
NULL_API int nvmlDeviceGetPowerUsage(void*, unsigned*) { return kUnsupported; }
NULL_API int nvmlDeviceGetClockInfo(void*, unsigned, unsigned*) { return kUnsupported; }
