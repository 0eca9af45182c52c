"""A program, not a test: the generated allocator workload on the current card. Arguments: the memory fraction.

Prints the allocator's counters as JSON. The generator is a 64-bit linear congruential one, so that the sizes are
the same everywhere; an allocation that fails is passed over.
"""

import contextlib
import json
import sys

import torch

STEPS = 4000
COUNTERS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "requested_bytes.all.current",
    "segment.all.current",
    "active.all.current",
    "inactive_split.all.current",
    "inactive_split_bytes.all.current",
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
)


def main(fraction: float) -> None:
    if fraction < 1:
        torch.cuda.set_per_process_memory_fraction(fraction, 0)
    state = 2026
    live: list[torch.Tensor] = []
    for _ in range(STEPS):
        state, draw = advance(state)
        if draw % 100 < 54 or not live:
            state, kind = advance(state)
            state, value = advance(state)
            allocate(live, size_of(kind % 4, value))
        else:
            state, index = advance(state)
            del live[index % len(live)]
    counted = torch.cuda.memory_stats()
    numbers = [counted[name] for name in COUNTERS]
    torch.cuda.empty_cache()
    print(json.dumps([*numbers, torch.cuda.memory_reserved()]))


def advance(state: int) -> tuple[int, int]:
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return state, state >> 33


def size_of(kind: int, value: int) -> int:
    if kind == 0:
        return 1 + value % 1048576
    if kind == 1:
        return 1048577 + value % 9437183
    if kind == 2:
        return 10485760 + value % 62914560
    return 512 * (1 + value % 64)


def allocate(live: list[torch.Tensor], size_bytes: int) -> None:
    with contextlib.suppress(torch.OutOfMemoryError):
        live.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))


if __name__ == "__main__":
    main(float(sys.argv[1]))
