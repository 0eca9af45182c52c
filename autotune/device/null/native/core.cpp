// Cards, accounting, addresses, and the record of unmodelled calls. Must never allocate what it only counts.
#include "core.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace null_gpu {
namespace {

constexpr char kMagic[9] = "ATNULL01";
constexpr size_t kGranule = 2u << 20;  // what cudaMalloc hands out is aligned to 2 MiB here; 256 would do
constexpr size_t kAddressSpace = size_t{1} << 44;

std::recursive_mutex local;  // guards what belongs to this process
using Guard = std::lock_guard<std::recursive_mutex>;

Card cards[kMaxCards];
int count = 0;
thread_local int current = 0;
Control* control = nullptr;
std::atomic<unsigned long> launch_count{0};

// AUTOTUNE_NULL_CARDS: cards separated by ';', figures by '|', in the order of Card.
void read_cards() {
  const char* text = getenv("AUTOTUNE_NULL_CARDS");
  while (text && *text && count < kMaxCards) {
    Card c{};
    unsigned long long total = 0, context = 0, workspace = 0;
    int got = sscanf(text, "%127[^|]|%llu|%llu|%llu|%d|%d|%d|%d|%d|%d", c.name, &total, &context, &workspace,
                     &c.major, &c.minor, &c.sm_count, &c.shared_bytes, &c.block_shared_bytes, &c.threads);
    if (got != 10) {
      fprintf(stderr, "null GPU: AUTOTUNE_NULL_CARDS is not understood at '%s'\n", text);
      break;
    }
    c.total_bytes = total, c.context_bytes = context, c.convolution_workspace_bytes = workspace;
    cards[count++] = c;
    const char* next = strchr(text, ';');
    text = next ? next + 1 : nullptr;
  }
}

void* map_file(const char* path) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat state {};
  void* mapped = MAP_FAILED;
  if (fstat(fd, &state) == 0 && size_t(state.st_size) >= sizeof(Control))
    mapped = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) return nullptr;
  return memcmp(mapped, kMagic, 8) == 0 ? mapped : nullptr;
}

// The shared control file if there is one, else memory of this process alone.
void open_control() {
  const char* path = getenv("AUTOTUNE_NULL_CONTROL");
  control = path && *path ? static_cast<Control*>(map_file(path)) : nullptr;
  if (control) return;
  if (path && *path) fprintf(stderr, "null GPU: control file %s can't be used; this process counts alone\n", path);
  void* own = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) abort();
  control = static_cast<Control*>(own);
  memcpy(control->magic, kMagic, 8);
  control->card_count = count;
  for (int i = 0; i < count; i++) control->cards[i] = {cards[i].total_bytes, cards[i].context_bytes, 0};
}

bool is_alive(int32_t pid) { return kill(pid, 0) == 0 || errno == EPERM; }

// Holds the control file; the lock of a dead process is taken over.
struct Shared {
  Shared() {
    auto* word = reinterpret_cast<std::atomic<int32_t>*>(&control->lock);
    const int32_t self = getpid();
    for (unsigned turn = 1;; turn++) {
      int32_t holder = 0;
      if (word->compare_exchange_weak(holder, self)) return;
      if (turn % 1024 == 0 && holder != 0 && !is_alive(holder) && word->compare_exchange_strong(holder, self)) return;
      if (turn % 64 == 0) usleep(50);
    }
  }
  ~Shared() { reinterpret_cast<std::atomic<int32_t>*>(&control->lock)->store(0); }
};

// This process's row; the pid is compared each time, for a fork has another.
ProcessRow* own_row() {
  static ProcessRow* row = nullptr;
  static int32_t owner = 0;
  const int32_t self = getpid();
  if (row && owner == self && row->pid == self) return row;
  for (auto& candidate : control->processes) {
    if (candidate.pid != 0 && candidate.pid != self && is_alive(candidate.pid)) continue;
    candidate = ProcessRow{};
    candidate.pid = self;
    owner = self;
    return row = &candidate;
  }
  fprintf(stderr, "null GPU: more than %d processes on these cards\n", kMaxProcesses);
  abort();
}

uint64_t held_by_all(int index) {
  uint64_t sum = control->cards[index].neighbour_bytes;
  for (auto& row : control->processes) {
    if (row.pid == 0 || row.used_bytes[index] == 0) continue;
    if (row.pid != getpid() && !is_alive(row.pid)) row = ProcessRow{};  // its driver would have freed it
    sum += row.used_bytes[index];
  }
  return sum;
}

std::map<uintptr_t, Found> ranges;  // by base
std::unordered_map<size_t, std::vector<uintptr_t>> reusable;
uintptr_t next_address = 0, last_address = 0;

// Address space that nothing else gets and that no access passes.
void reserve_addresses() {
  void* space = mmap(nullptr, kAddressSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  next_address = space == MAP_FAILED ? uintptr_t{0x100000000000} : reinterpret_cast<uintptr_t>(space);
  next_address = (next_address + kGranule - 1) / kGranule * kGranule;
  last_address = next_address + kAddressSpace - 2 * kGranule;
}

constexpr size_t kKeptBytes = 64u << 10;
std::map<uintptr_t, std::vector<char>> contents;  // by address, never overlapping
std::atomic<bool> has_contents{false};

void drop_contents(uintptr_t start, size_t bytes) {
  auto entry = contents.lower_bound(start);
  if (entry != contents.begin()) {
    auto before = std::prev(entry);
    if (before->first + before->second.size() > start) contents.erase(before);
  }
  while (entry != contents.end() && entry->first < start + bytes) entry = contents.erase(entry);
}

struct Start {
  Start() {
    read_cards();
    open_control();
    reserve_addresses();
  }
};
void start() { static Start once; }
__attribute__((constructor)) void at_load() { start(); }

size_t rounded(size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

}  // namespace

int card_count() { return start(), count; }
const Card& card(int index) { return start(), cards[index]; }
int current_card() { return current; }
bool set_current_card(int index) {
  if (index < 0 || index >= card_count()) return false;
  current = index;
  return true;
}

bool is_in_use(int index) {
  Guard guard(local);
  Shared shared;
  return own_row()->used_bytes[index] > 0;
}

void use(int index) {
  static int32_t owner = 0;
  static bool taken[kMaxCards] = {};
  Guard guard(local);
  if (owner != getpid()) {
    owner = getpid();
    memset(taken, 0, sizeof taken);
  }
  if (taken[index]) return;
  taken[index] = true;
  Shared shared;
  own_row()->used_bytes[index] += control->cards[index].context_bytes;
}

bool take(int index, size_t bytes) {
  use(index);
  Guard guard(local);
  Shared shared;
  if (held_by_all(index) + bytes > control->cards[index].total_bytes) return false;
  own_row()->used_bytes[index] += bytes;
  return true;
}

void give(int index, size_t bytes) {
  Guard guard(local);
  Shared shared;
  own_row()->used_bytes[index] -= bytes;
}

uint64_t free_bytes(int index) {
  Guard guard(local);
  Shared shared;
  const uint64_t held = held_by_all(index), total = control->cards[index].total_bytes;
  return held < total ? total - held : 0;
}

uint64_t used_by_this_process(int index) {
  Guard guard(local);
  Shared shared;
  return own_row()->used_bytes[index];
}

int list_processes(int index, int32_t* pids, uint64_t* bytes, int capacity) {
  Guard guard(local);
  Shared shared;
  held_by_all(index);  // drops the dead
  int found = 0;
  for (auto& row : control->processes) {
    if (row.pid == 0 || row.used_bytes[index] == 0) continue;
    if (found < capacity) pids[found] = row.pid, bytes[found] = row.used_bytes[index];
    found++;
  }
  return found;
}

uintptr_t new_address(size_t bytes) {
  Guard guard(local);
  const size_t size = rounded(bytes);
  auto& stack = reusable[size];
  if (!stack.empty()) {
    const uintptr_t address = stack.back();
    stack.pop_back();
    return address;
  }
  if (next_address + size > last_address) return 0;
  const uintptr_t address = next_address;
  next_address += size;
  return address;
}

void remember(uintptr_t base, size_t size, Where where, int card_index) {
  Guard guard(local);
  ranges[base] = Found{where, card_index, base, size};
}

bool forget(uintptr_t base, Found* found) {
  Guard guard(local);
  auto entry = ranges.find(base);
  if (entry == ranges.end()) return false;
  *found = entry->second;
  ranges.erase(entry);
  if (found->where == Where::device && has_contents) drop_contents(base, found->size);
  if (found->where == Where::device) reusable[rounded(found->size)].push_back(base);
  return true;
}

Found find(const void* pointer) {
  Guard guard(local);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto entry = ranges.upper_bound(address);
  if (entry != ranges.begin()) {
    const Found& candidate = std::prev(entry)->second;
    if (address < candidate.base + candidate.size) return candidate;
  }
  return Found{Where::host, -1, address, 0};
}

void write_device(uintptr_t to, const void* from, size_t bytes) {
  if (!has_contents && (from == nullptr || bytes > kKeptBytes)) return;
  Guard guard(local);
  drop_contents(to, bytes);
  if (from == nullptr || bytes == 0 || bytes > kKeptBytes) return;
  const char* first = static_cast<const char*>(from);
  contents[to] = std::vector<char>(first, first + bytes);
  has_contents = true;
}

void copy_device(uintptr_t to, uintptr_t from, size_t bytes) {
  if (!has_contents) return;
  if (bytes > kKeptBytes) return write_device(to, nullptr, bytes);
  std::vector<char> values(bytes);
  read_device(values.data(), from, bytes);
  write_device(to, values.data(), bytes);
}

void read_device(void* to, uintptr_t from, size_t bytes) {
  memset(to, 0, bytes);
  if (!has_contents) return;
  Guard guard(local);
  auto entry = contents.lower_bound(from);
  if (entry != contents.begin()) --entry;
  for (; entry != contents.end() && entry->first < from + bytes; ++entry) {
    const uintptr_t start = entry->first, end = start + entry->second.size();
    const uintptr_t low = start > from ? start : from, high = end < from + bytes ? end : from + bytes;
    if (low < high) memcpy(static_cast<char*>(to) + (low - from), entry->second.data() + (low - start), high - low);
  }
}

}  // namespace null_gpu

NULL_API void null_gpu_unmodelled(const char* name) {
  using namespace null_gpu;
  start();
  Guard guard(local);
  Shared shared;
  snprintf(control->last_unmodelled, kNameBytes, "%s", name);
  for (auto& row : control->unmodelled) {
    if (row.name[0] == 0) snprintf(row.name, kNameBytes, "%s", name);
    if (strncmp(row.name, name, kNameBytes - 1) == 0) {
      row.calls++;
      return;
    }
  }
}

NULL_API void null_gpu_launched(void) {
  using namespace null_gpu;
  launch_count++;
  if (!has_contents) return;
  Guard guard(local);
  contents.clear();
  has_contents = false;
}
NULL_API unsigned long null_gpu_launches(void) { return null_gpu::launch_count; }
