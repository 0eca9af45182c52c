"""The caching allocator's blocks, replayed from PyTorch's own trace of what it did.

Owns the reading of trace events and the one rule that they leave out: how much of a free block a request takes,
which is what `allocated_bytes` counts. Must never touch a device: events come in as PyTorch's snapshot gives them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.memory.account import ACTIVATIONS, OTHER
from autotune.units import MIB

Event = Mapping[str, Any]

# c10/cuda/CUDACachingAllocator: blocks are multiples of 512 bytes; a large segment's rest stays with the block
# unless it is more than 1 MiB; segments of 2 MiB are the small pool's.
_BLOCK_BYTES = 512
_LARGE_REST_BYTES = MIB
_SMALL_SEGMENT_BYTES = 2 * MIB
_EXPANDABLE = -1


@dataclass
class Block:
    """Memory that is in use: its size as the allocator counts it, what was asked for, and whose it is."""

    size_bytes: int
    requested_bytes: int
    segment: int
    category: str


@dataclass(frozen=True)
class Change:
    """What one event did: reserved bytes by `reserved_bytes`, and `block` came (+1) or went (-1)."""

    reserved_bytes: int = 0
    block: Block | None = None
    sign: int = 0


_NOTHING = Change()


class Ledger:
    """The state of one device's allocator; `apply` its events in order."""

    def __init__(self, segments: Iterable[Mapping[str, Any]]) -> None:
        """`segments` of the snapshot taken when the trace began."""
        self.live: dict[int, Block] = {}
        self._leaving: dict[int, Block] = {}
        self._free: dict[int, tuple[int, int]] = {}  # address: size, segment
        self._free_ends: dict[int, int] = {}
        self._small: set[int] = set()
        self._reserved_at_start = 0
        for segment in segments:
            self._seed(segment)

    @property
    def reserved_at_start(self) -> int:
        """Bytes of the segments that were there already."""
        return self._reserved_at_start

    def apply(self, event: Event) -> Change:
        """Follow one trace event; what is no matter of memory (a snapshot, an out-of-memory) changes nothing."""
        address, size = int(event.get("addr", 0)), int(event["size"])  # an out-of-memory has no address
        match event["action"]:
            case "alloc":
                return self._allocate(address, size)
            case "free_requested":
                return self._request_free(address)
            case "free_completed":
                return self._complete_free(address)
            case "segment_alloc":
                return self._add_segment(address, size, address)
            case "segment_map":
                return self._add_segment(address, size, _EXPANDABLE)
            case "segment_free" | "segment_unmap":
                return self._remove(address, size)
        return _NOTHING

    def claim(self, address: int, category: str) -> None:
        """The block in use at `address`, if there is one, is of `category`, since it came."""
        if address in self.live:
            self.live[address].category = category

    def _seed(self, segment: Mapping[str, Any]) -> None:
        key = _EXPANDABLE if segment.get("is_expandable") else int(segment["address"])
        self._reserved_at_start += segment["total_size"]
        if segment["segment_type"] == "small":
            self._small.add(key)
        address = int(segment["address"])
        for block in segment["blocks"]:
            self._seed_block(int(block.get("address", address)), block, key)
            address += block["size"]

    def _seed_block(self, address: int, found: Mapping[str, Any], segment: int) -> None:
        block = Block(found["size"], found["requested_size"], segment, OTHER)
        if found["state"] == "active_allocated":
            self.live[address] = block
        elif found["state"] == "inactive":
            self._add_free(address, block.size_bytes, segment)
        else:
            self._leaving[address] = block

    def _allocate(self, address: int, requested_bytes: int) -> Change:
        rounded = -(-max(requested_bytes, 1) // _BLOCK_BYTES) * _BLOCK_BYTES
        size, segment = rounded, address
        if address in self._free:
            room, segment = self._take_free(address)
            size = rounded if self._splits(segment, room - rounded) else room
            if room > size:
                self._add_free(address + size, room - size, segment)
        block = self.live[address] = Block(size, requested_bytes, segment, ACTIVATIONS)
        return Change(block=block, sign=1)

    def _splits(self, segment: int, rest_bytes: int) -> bool:
        if segment == _EXPANDABLE or segment in self._small:
            return rest_bytes >= _BLOCK_BYTES
        return rest_bytes > _LARGE_REST_BYTES

    def _request_free(self, address: int) -> Change:
        block = self.live.pop(address, None)
        if block is None:
            return _NOTHING
        self._leaving[address] = block
        return Change(block=block, sign=-1)

    def _complete_free(self, address: int) -> Change:
        block = self._leaving.pop(address, None)
        if block is not None:
            self._merge_free(address, block.size_bytes, block.segment)
        return _NOTHING

    def _add_segment(self, address: int, size: int, segment: int) -> Change:
        if segment != _EXPANDABLE and size == _SMALL_SEGMENT_BYTES:
            self._small.add(segment)
        self._merge_free(address, size, segment)
        return Change(reserved_bytes=size)

    def _remove(self, address: int, size: int) -> Change:
        """Take a range that is free off, from the middle of a free block too (expandable segments only)."""
        start = address if address in self._free else self._free_block_around(address)
        if start is not None:
            room, segment = self._take_free(start)
            if address > start:
                self._add_free(start, address - start, segment)
            if start + room > address + size:
                self._add_free(address + size, start + room - address - size, segment)
        self._small.discard(address)
        return Change(reserved_bytes=-size)

    def _free_block_around(self, address: int) -> int | None:
        inside = (start for start, (size, _) in self._free.items() if start <= address < start + size)
        return next(inside, None)

    def _merge_free(self, address: int, size: int, segment: int) -> None:
        before = self._free_ends.get(address)
        if before is not None and self._free[before][1] == segment:
            size += self._take_free(before)[0]
            address = before
        after = self._free.get(address + size)
        if after is not None and after[1] == segment:
            size += self._take_free(address + size)[0]
        self._add_free(address, size, segment)

    def _add_free(self, address: int, size: int, segment: int) -> None:
        self._free[address] = (size, segment)
        self._free_ends[address + size] = address

    def _take_free(self, address: int) -> tuple[int, int]:
        size, segment = self._free.pop(address)
        self._free_ends.pop(address + size, None)
        return size, segment
