"""The account of a virtual GPU: which storages are device memory, what they take, what they may take.

Owns the bytes: each live storage is charged once, rounded up to the 512-byte blocks of PyTorch's CUDA
allocator, and gives them back when it dies, whoever held it (a tensor, the autograd graph, optimizer state,
the frames of an exception). It must never keep a storage alive and must never decide which storages are
device memory: that is the rule of `counting` and `virtual`. There is no cache behind it, so reserved bytes
equal allocated bytes.

It rests on a property of PyTorch: the Python object of a storage lives, and stays the same object, as long
as the C++ storage does. So its `id` is the storage's identity, and a weak reference to it sees the storage
die.
"""

from collections.abc import Iterator
from typing import Any, cast
from weakref import ref

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from autotune.units import format_size, spell_size

BLOCK_BYTES = 512


def block_bytes(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole blocks (CUDACachingAllocator's kMinBlockSize); 0 takes no block."""
    return (size_bytes + BLOCK_BYTES - 1) & -BLOCK_BYTES


def storages_of(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """The CPU storages behind `tensor`: one for an ordinary tensor; those of the parts of a sparse tensor or
    a wrapper subclass; none on other devices (meta, fake) and where there is no storage at all (mkldnn)."""
    parts = _parts_of(tensor)
    for part in parts:
        yield from storages_of(part)
    if not parts and tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        if storage.device.type == "cpu":
            yield storage


class Account:
    """Live device bytes of one virtual GPU of `total_bytes`, capped at `budget_bytes` (at first the same).

    `live` maps the `id` of a living storage to its charge; the dispatch mode reads it. What was charged and
    what was given back are two counters that only grow, so that a storage that dies on another thread, or in
    the middle of a charge, can spoil neither.
    """

    __slots__ = ("_on_death", "allocated_bytes", "budget_bytes", "freed_bytes", "live", "name", "ooms",
                 "peak_bytes", "total_bytes")  # fmt: skip

    def __init__(self, total_bytes: int) -> None:
        self.name = f"virtual:{spell_size(total_bytes)}"
        self.total_bytes = total_bytes
        self.budget_bytes = total_bytes
        self.live: dict[int, _Charge] = {}
        self.allocated_bytes = 0
        self.freed_bytes = 0
        self.peak_bytes = 0
        self.ooms = 0
        self._on_death = self._free  # bound once, not once per charge

    @property
    def current_bytes(self) -> int:
        """Bytes of the storages that are charged and alive."""
        return self.allocated_bytes - self.freed_bytes

    def charge(self, storage: torch.UntypedStorage) -> int:
        """Count `storage`, which must not be live, as device memory, if the budget allows.

        Returns 0 when it is counted, else the bytes refused, with nothing counted. The caller lets go of the
        storage before it raises `out_of_memory`: a traceback keeps the frames it passed through alive.
        """
        size_bytes = (storage.nbytes() + 511) & -512
        current_bytes = self.allocated_bytes + size_bytes - self.freed_bytes
        if current_bytes > self.budget_bytes and size_bytes:
            return size_bytes
        charge = _Charge(storage, self._on_death)
        charge.key = key = id(storage)
        charge.size_bytes = size_bytes
        self.live[key] = charge
        self.allocated_bytes += size_bytes
        if current_bytes > self.peak_bytes:
            self.peak_bytes = current_bytes
        return 0

    def release(self, storage: torch.UntypedStorage) -> None:
        """Count `storage` as host memory from now on; nothing happens if it already is."""
        charge = self.live.pop(id(storage), None)
        if charge is not None:
            self.freed_bytes += charge.size_bytes

    def resize(self, storage: torch.UntypedStorage) -> int:
        """Bring the charge of a live `storage` in line with its size, which an operation may have changed.

        Like the CUDA allocator, growth takes a new block before the old one is given back: both count for the
        peak. Returns 0, or the bytes refused, with the old charge standing, if both do not fit the budget.
        """
        charge = self.live[id(storage)]
        if block_bytes(storage.nbytes()) == charge.size_bytes:
            return 0
        refused_bytes = self.charge(storage)
        if not refused_bytes:
            self.freed_bytes += charge.size_bytes
        return refused_bytes

    def out_of_memory(self, size_bytes: int) -> torch.OutOfMemoryError:
        """The error for a refused request of `size_bytes`, counted here, in the shape of PyTorch's text."""
        self.ooms += 1
        total_bytes, used_bytes = self.total_bytes, self.current_bytes
        capped = self.budget_bytes < total_bytes
        return torch.OutOfMemoryError(
            f"Virtual GPU out of memory. Tried to allocate {format_size(size_bytes)}. "
            f"GPU {self.name} has a total capacity of {format_size(total_bytes)} "
            f"of which {format_size(max(0, total_bytes - used_bytes))} is free. "
            f"{f'{format_size(self.budget_bytes)} allowed; ' if capped else ''}"
            f"Of the allocated memory {format_size(used_bytes)} is allocated by PyTorch, and 0 bytes is "
            "reserved by PyTorch but unallocated. These bytes are simulated: live tensors counted on the CPU."
        )

    def statistics(self) -> dict[str, int]:
        """Counters in bytes under the names of `torch.cuda.memory_stats`. Reserved bytes equal allocated
        bytes, and `num_alloc_retries` is 0, for there is no cache to give back."""
        counters = {
            "current": self.current_bytes,
            "peak": self.peak_bytes,
            "allocated": self.allocated_bytes,
            "freed": self.freed_bytes,
        }
        kinds = ("allocated_bytes", "reserved_bytes")
        sizes = {f"{kind}.all.{name}": value for kind in kinds for name, value in counters.items()}
        return {**sizes, "num_alloc_retries": 0, "num_ooms": self.ooms}

    def reset_peak(self) -> None:
        """Start a new peak from what is live now."""
        self.peak_bytes = self.current_bytes

    def _free(self, charge: "_Charge") -> None:
        """The storage of `charge` died: its bytes come back."""
        self.freed_bytes += charge.size_bytes
        del self.live[charge.key]


class _Charge(ref[torch.UntypedStorage]):
    """What one live storage was charged. Dies with its storage or when the account drops it."""

    __slots__ = ("key", "size_bytes")
    key: int
    size_bytes: int


def _parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that make up a wrapper subclass or a sparse tensor; nothing for any other."""
    if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(cast("Any", tensor)):
        names, _ = cast("Any", tensor).__tensor_flatten__()
        return [getattr(tensor, name) for name in names]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
