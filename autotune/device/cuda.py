"""A real card inside a worker: PyTorch's own allocator counts, and a memory fraction caps it.

Owns opening the card and the cap. Only workers import this module: it imports torch and creates the CUDA
context. It must never be used by the controller.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from autotune.device.budget import DEFAULT_CONTEXT_BYTES, memory_fraction, reserved_cap
from autotune.device.catalogue import match_card
from autotune.device.nvml import GpuReading, MachineReading, MigInstance, read_nvml
from autotune.device.ordinals import Seen, match_device
from autotune.device.session import Evidence, Placed
from autotune.errors import DeviceError

ReadMachine = Callable[[], MachineReading]
_COUNTERS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "num_alloc_retries",
    "num_ooms",
)
_NO_CACHE = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # whatever its value (CUDACachingAllocator.cpp)


class CudaSession:
    """`cuda:N` opened in this process; see DeviceSession for the contract.

    The caching allocator counts by itself, so `scope` only makes the card the current one and `host` does
    nothing: tensors are device memory where they are made with `device=torch_device` or placed.
    """

    evidence = Evidence.MEASURED

    def __init__(
        self,
        ordinal: int,
        context_interval: tuple[int, int] | None = None,
        read_machine: ReadMachine = read_nvml,
    ) -> None:
        """Open the card and create its context. `context_interval` is what its context takes, in bytes, used
        where it can't be measured: by default what the GPU catalogue says of this card.

        Raises DeviceError if torch can't use CUDA, there is no such card, or it refuses to work.
        """
        self.name = f"cuda:{ordinal}"
        self._ordinal = ordinal
        self._read_machine = read_machine
        _check_available(ordinal)
        before = read_machine()  # before the context exists
        self._total_bytes = _start(ordinal)
        self._interval = context_interval or _usual_context(ordinal, self._total_bytes)
        self._before = self._own_part(before)

    @property
    def torch_device(self) -> torch.device:
        """`cuda:N`."""
        return torch.device("cuda", self._ordinal)

    def scope(self) -> AbstractContextManager[None]:
        """The card is the current CUDA device inside."""
        return torch.cuda.device(self._ordinal)

    def host(self) -> AbstractContextManager[None]:
        """Nothing to do: a tensor made without a device is host memory already."""
        return nullcontext()

    def place(self, thing: Placed) -> Placed:
        """Move a module in place, or a tensor as a copy, to the card. May raise torch.OutOfMemoryError."""
        return thing.to(self.torch_device)

    def evict(self, thing: Placed) -> Placed:
        """Move a module in place, or a tensor as a copy, to the host."""
        return thing.to("cpu")

    def limit(self, budget_bytes: int) -> None:
        """Cap PyTorch so that with its context this process stays within `budget_bytes`.

        The memory fraction caps reserved bytes only, so the context is measured now and taken off; call it
        again to measure again. Raises DeviceError if the context alone takes the budget.
        """
        cap = reserved_cap(budget_bytes, self.context_bytes())
        torch.cuda.set_per_process_memory_fraction(memory_fraction(cap, self._total_bytes), self._ordinal)

    def context_bytes(self) -> int:
        """What this process takes on the card beside PyTorch's reserved bytes.

        Measured: this process's memory in NVML; else (a container hides the pid, or WDDM the bytes) what left
        the card's free memory since before the context, kept within the catalogue's interval, since
        neighbours move too. Not measurable: the interval's upper end.
        """
        now = self._own_part(self._read_machine())
        reserved = torch.cuda.memory_reserved(self._ordinal)
        own = [use.used_bytes for use in now.processes if use.pid == os.getpid()] if now else []
        if own and own[0] is not None and own[0] > reserved:
            return own[0] - reserved
        low, high = self._interval
        was = self._before.memory.free_bytes if self._before else None
        if was is None:
            return high
        free, _ = torch.cuda.mem_get_info(self._ordinal)
        return min(max(was - free - reserved, low), high)

    def statistics(self) -> dict[str, int]:
        """The counters of `torch.cuda.memory_stats` that the contract names."""
        counted = torch.cuda.memory_stats(self._ordinal)
        return {name: int(counted.get(name, 0)) for name in _COUNTERS}

    def reset_peak(self) -> None:
        """Start new peaks from what is live now."""
        torch.cuda.reset_peak_memory_stats(self._ordinal)

    def empty_cache(self) -> None:
        """Give unused segments back to the driver."""
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for everything queued on the card."""
        torch.cuda.synchronize(self._ordinal)

    def _own_part(self, machine: MachineReading) -> GpuReading | MigInstance | None:
        """This card, or the MIG instance it is, in a reading of the machine."""
        match = match_device(machine.gpus, _identity(torch.cuda.get_device_properties(self._ordinal)))
        return (match.instance or match.gpu) if match else None


def _check_available(ordinal: int) -> None:
    way_out = "Use --device virtual:2GiB to try without a card."
    if _NO_CACHE in os.environ:
        raise DeviceError(f"{_NO_CACHE} is set, and with it PyTorch counts no memory.", "Unset it.")
    if torch.version.cuda is None:
        raise DeviceError(
            f"cuda:{ordinal} can't be used: the installed torch {torch.__version__} is built without CUDA.",
            f"Install a CUDA build of torch (https://pytorch.org/get-started/locally). {way_out}",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    setting = "" if shown is None else f" (CUDA_VISIBLE_DEVICES={shown!r})"
    if count == 0:
        raise DeviceError(f"cuda:{ordinal} can't be used: torch sees no card{setting}.", way_out)
    if ordinal >= count:
        raise DeviceError(
            f"there is no cuda:{ordinal}: torch sees {count} card(s){setting}.",
            f"Use cuda:0 to cuda:{count - 1}.",
        )


def _usual_context(ordinal: int, total_bytes: int) -> tuple[int, int]:
    """The interval of the catalogue's entry for this card; of all cards seen, if it has none."""
    card = match_card(torch.cuda.get_device_properties(ordinal).name, total_bytes)
    return (card.context.low_bytes, card.context.high_bytes) if card else DEFAULT_CONTEXT_BYTES


def _identity(properties: Any) -> Seen:
    """UUID and PCI address; an older torch does not tell the address."""
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    address = ":".join(f"{getattr(properties, name):x}" for name in names if hasattr(properties, name))
    return Seen(str(getattr(properties, "uuid", "")), address)


def _start(ordinal: int) -> int:
    """Create the context and load the matrix kernels that every training needs; the card's bytes."""
    try:
        ones = torch.ones(16, 16, device=torch.device("cuda", ordinal))
        (ones @ ones).sum().item()
        total = int(torch.cuda.get_device_properties(ordinal).total_memory)
    except RuntimeError as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DeviceError(
            f"cuda:{ordinal} is there but refuses to work: {first}",
            "Close other programs on the card, or check torch.cuda.get_arch_list() for this torch.",
        ) from None
    del ones
    torch.cuda.empty_cache()
    return total
