// The state every stub library shares: the cards, who holds how much of them, addresses, and what was called
// without being modelled. Implemented once, in core.cpp, in a library of its own that all stubs link.
#pragma once
#include <cstddef>
#include <cstdint>

#define NULL_API extern "C" __attribute__((visibility("default")))

namespace null_gpu {

constexpr int kMaxCards = 16;
constexpr int kMaxProcesses = 256;
constexpr int kMaxNames = 1024;
constexpr int kNameBytes = 64;

// The control file, mapped by every process on these cards and by the controller. Mirrored in control.py.
struct CardRow {
  uint64_t total_bytes;
  uint64_t context_bytes;    // each process takes this much when it first uses the card
  uint64_t neighbour_bytes;  // taken by somebody else; written by the controller at any time
};
struct ProcessRow {
  int32_t pid;  // 0: free
  uint32_t unused;
  uint64_t used_bytes[kMaxCards];  // context included
};
struct NameRow {
  char name[kNameBytes];  // "" : free
  uint64_t calls;
};
struct Control {
  char magic[8];  // "ATNULL01"
  int32_t lock;   // pid of the holder, 0 if nobody
  int32_t card_count;
  CardRow cards[kMaxCards];
  ProcessRow processes[kMaxProcesses];
  char last_unmodelled[kNameBytes];
  NameRow unmodelled[kMaxNames];
};

// A card's figures, from AUTOTUNE_NULL_CARDS.
struct Card {
  char name[128];
  uint64_t total_bytes, context_bytes, convolution_workspace_bytes;
  int major, minor, sm_count, shared_bytes, block_shared_bytes, threads;
};

enum class Where { host, device, managed };
struct Found {
  Where where;
  int card;
  uintptr_t base;
  size_t size;
};

int card_count();
const Card& card(int index);
int current_card();            // of this thread
bool set_current_card(int index);
bool is_in_use(int index);     // this process has a context there

void use(int index);                            // take the context, once
bool take(int index, size_t bytes);             // false: not enough is free
void give(int index, size_t bytes);
uint64_t free_bytes(int index);
uint64_t used_by_this_process(int index);
int list_processes(int index, int32_t* pids, uint64_t* bytes, int capacity);

uintptr_t new_address(size_t bytes);            // never readable: a stray read faults at once
void remember(uintptr_t base, size_t size, Where where, int card);
bool forget(uintptr_t base, Found* found);
Found find(const void* pointer);

// Contents: what a program copied to a card is there until something runs on the card. Small copies are kept until
// the next launch, so that a flag sent up and read back (as data-parallel wrappers do) is what it was; all else
// reads as zeros.
void write_device(uintptr_t to, const void* from, size_t bytes);  // from == nullptr: contents unknown
void copy_device(uintptr_t to, uintptr_t from, size_t bytes);
void read_device(void* to, uintptr_t from, size_t bytes);

}  // namespace null_gpu

// Counts a call that has no behaviour here, by name, and says it was the last one.
NULL_API void null_gpu_unmodelled(const char* name);
// Something ran on the card: whatever was written there before may have changed.
NULL_API void null_gpu_launched(void);
NULL_API unsigned long null_gpu_launches(void);
