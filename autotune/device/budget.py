"""How many bytes may a run use? The budget of a card and its parts, and PyTorch's share of it.

Pure arithmetic over a reading: opens nothing. The budget counts everything a training process takes on the
device, its CUDA context included; PyTorch's memory fraction caps reserved bytes only, so the context is taken
off before it is set (c10/cuda/CUDACachingAllocator.cpp: allowed = floor(fraction x totalGlobalMem), compared
with the bytes in segments).
"""

import math
from dataclasses import dataclass

from autotune.device.nvml import MemoryUse, ProcessUse
from autotune.errors import DeviceError
from autotune.units import MIB, format_mib

# Chosen, not measured. What else runs on the device moves while a training runs for hours, and an allocation
# that fails at the last step costs more than these bytes bring.
HEADLESS_RESERVE_BYTES = 128 * MIB
"""No display: covers kernels the context loads late and the driver's own bookkeeping."""
DISPLAY_RESERVE_BYTES = 512 * MIB
"""A display: a desktop grows by a window, a browser's GPU process or 4K frame buffers (33 MB each)."""
WDDM_RESERVE_BYTES = 768 * MIB
"""Windows or WSL2: as above, and WDDM pages memory to the host, without an error, before all is used."""

SMALLEST_CONTEXT_BYTES = 100 * MIB
"""Below every CUDA context seen (111 MiB on a T4 is the smallest): what surely comes back when a process that
only read the memory ends."""
DEFAULT_CONTEXT_BYTES = (100 * MIB, 800 * MIB)
"""Contexts seen on cards from T4 to H200: 111 to 768 MiB, rounded outwards. For where none is measured."""


@dataclass(frozen=True)
class Budget:
    """The bytes a run may use, context included, and why.

    bytes = total - driver - others - reserve, or less if the user's limit is lower. All parts in bytes;
    `limit_bytes` is what the user asked for, or None; `notes` are sentences about it and its sources.
    """

    bytes: int
    total_bytes: int
    driver_bytes: int = 0
    others_bytes: int = 0
    reserve_bytes: int = 0
    limit_bytes: int | None = None
    reserve_reason: str = ""
    notes: tuple[str, ...] = ()

    def explain(self) -> str:
        """One line: the budget and how it comes about."""
        parts = [f"{format_mib(self.total_bytes)} total"]
        parts += _part(self.driver_bytes, "kept by the driver")
        parts += _part(self.others_bytes, "used by others")
        parts += _part(self.reserve_bytes, f"in reserve ({self.reserve_reason})")
        line = f"budget {format_mib(self.bytes)} = " + " - ".join(parts)
        return line if self.limit_bytes is None else f"{line}, limited to {format_mib(self.limit_bytes)}"


@dataclass(frozen=True)
class Reserve:
    """Bytes left free on purpose, and the reason."""

    bytes: int
    reason: str


def choose_reserve(display_active: bool | None, pages_to_host: bool) -> Reserve:
    """The reserve for a card: largest under WDDM or WSL2 (`pages_to_host`), larger with a display.

    `display_active` None (could not be read) counts as no display: desktop drivers do tell.
    """
    if pages_to_host:
        return Reserve(WDDM_RESERVE_BYTES, "Windows or WSL2 pages memory to the host when the card is nearly full")
    if display_active:
        return Reserve(DISPLAY_RESERVE_BYTES, "a display is active and its use grows")
    return Reserve(HEADLESS_RESERVE_BYTES, "no display is active")


def make_budget(
    device: str,
    memory: MemoryUse,
    reserve: Reserve,
    processes: tuple[ProcessUse, ...] = (),
    own_pids: frozenset[int] = frozenset(),
    limit_bytes: int | None = None,
) -> Budget:
    """The budget on `device` (its name, for messages). Own processes' bytes do not count as others'.

    A limit replaces the reserve, since the user chose it, but never raises the budget above what is there.
    Raises DeviceError if the memory is not known and no limit is given, or if nothing is left.
    """
    total, free, driver = memory.total_bytes, memory.free_bytes, memory.driver_bytes or 0
    if total is None or free is None:
        return _unknown_budget(device, limit_bytes)
    own = sum(use.used_bytes or 0 for use in processes if use.pid in own_pids)
    others, notes = _others(memory.source, total - driver - free - own)
    there = total - driver - others
    kept = reserve if limit_bytes is None else Reserve(0, "")
    size = there - kept.bytes if limit_bytes is None else min(limit_bytes, there)
    if limit_bytes is not None and limit_bytes > there:
        notes.append(_above(limit_bytes, max(there, 0)))
    if size <= 0:
        raise DeviceError(
            f"{device} has no memory left for a run: {format_mib(total)} total, "
            f"{format_mib(driver + others)} in use, {format_mib(kept.bytes)} in reserve.",
            "Close other programs on this card, or choose another with --device.",
        )
    return Budget(size, total, driver, others, kept.bytes, limit_bytes, kept.reason, tuple(notes))


def plain_budget(total_bytes: int, limit_bytes: int | None = None) -> Budget:
    """The budget of a device that nobody shares, such as a virtual GPU of `total_bytes`."""
    size = total_bytes if limit_bytes is None else min(limit_bytes, total_bytes)
    notes: tuple[str, ...] = ()
    if limit_bytes is not None and limit_bytes > total_bytes:
        notes = (_above(limit_bytes, total_bytes),)
    return Budget(size, total_bytes, limit_bytes=limit_bytes, notes=notes)


def reserved_cap(budget_bytes: int, context_bytes: int) -> int:
    """The bytes PyTorch's allocator may reserve under a budget that includes the context.

    Raises DeviceError if the context alone takes the budget.
    """
    cap = budget_bytes - context_bytes
    if cap <= 0:
        raise DeviceError(
            f"the budget of {format_mib(budget_bytes)} is used up by the CUDA context "
            f"({format_mib(context_bytes)}).",
            "Allow more with --vram-limit, or free memory on the card.",
        )
    return cap


def memory_fraction(cap_bytes: int, device_total_bytes: int) -> float:
    """The fraction for `torch.cuda.set_per_process_memory_fraction` that allows at most `cap_bytes`.

    Always below 1.0, which PyTorch takes as "no limit". `device_total_bytes` is
    `get_device_properties().total_memory`.
    """
    fraction = min(cap_bytes / device_total_bytes, math.nextafter(1.0, 0.0))
    while math.floor(fraction * device_total_bytes) > cap_bytes:
        fraction = math.nextafter(fraction, 0.0)
    return fraction


def _others(source: str, used_bytes: int) -> tuple[int, list[str]]:
    """What others use of `used_bytes`, which a CUDA child process inflates by its own context."""
    if source != "cuda":
        return max(used_bytes, 0), []
    note = "Free memory was read by a process with a CUDA context: a little more is free than counted."
    return max(used_bytes - SMALLEST_CONTEXT_BYTES, 0), [note]


def _unknown_budget(device: str, limit_bytes: int | None) -> Budget:
    if limit_bytes is None:
        raise DeviceError(
            f"the memory of {device} can't be read, neither through NVML nor through CUDA.",
            "Say what a run may use with --vram-limit, for example --vram-limit 8GiB.",
        )
    note = "The memory of the card could not be read: the limit is taken as it is."
    return Budget(limit_bytes, limit_bytes, limit_bytes=limit_bytes, notes=(note,))


def _above(limit_bytes: int, there_bytes: int) -> str:
    return f"The limit of {format_mib(limit_bytes)} is above the {format_mib(there_bytes)} there are."


def _part(size_bytes: int, what: str) -> list[str]:
    return [f"{format_mib(size_bytes)} {what}"] if size_bytes else []
