"""The one interface of every device inside a worker: `cuda`, `null` and `virtual` differ only behind it.

Owns the protocol and the device's spelling (`cuda:0`, `null:rtx-3060-12gb`, `virtual:2GiB`); opens a session
by importing the right backend. Must never touch a device in the controller: only workers open sessions.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from autotune.errors import DeviceError
from autotune.units import parse_size

if TYPE_CHECKING:
    import torch

Placed = TypeVar("Placed", "torch.Tensor", "torch.nn.Module")


class Evidence(StrEnum):
    """Where a number comes from. It never changes class on the way."""

    MEASURED = "measured"  # a real GPU
    FORECAST = "forecast"  # the null GPU
    SIMULATED = "simulated"  # the virtual GPU

    @property
    def has_values(self) -> bool:
        """Whether tensors hold what was computed: the null GPU computes nothing, and all that is read is zeros."""
        return self is not Evidence.FORECAST


@dataclass(frozen=True)
class DeviceSpec:
    """A device as the user names it: its kind and what stands behind the colon (empty if nothing does)."""

    kind: str
    argument: str

    @classmethod
    def parse(cls, text: str) -> "DeviceSpec":
        """Read `cuda`, `cuda:1`, `null:NAME` or `virtual:SIZE`. Raises DeviceError naming the spellings."""
        kind, _, argument = text.strip().partition(":")
        spec = cls(kind.lower(), argument)
        spec._check(text)
        return spec

    @property
    def evidence(self) -> Evidence:
        """The class of every number this kind of device gives."""
        return _EVIDENCE[self.kind]

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    def _check(self, text: str) -> None:
        way_out = "Use cuda, cuda:N, null:CARD such as null:rtx-3060-12gb, or virtual:SIZE such as virtual:2GiB."
        if self.kind == "cuda" and (not self.argument or self.argument.isdigit()):
            return
        if self.kind == "null" and self.argument:
            from autotune.device.null.card import NullCard

            NullCard.parse(self.argument)
            return
        if self.kind == "virtual":
            try:
                parse_size(self.argument)
            except ValueError as error:
                raise DeviceError(f"device {text!r}: {error}.", way_out) from None
            return
        raise DeviceError(f"device {text!r} is not understood.", way_out)


_EVIDENCE = {"cuda": Evidence.MEASURED, "null": Evidence.FORECAST, "virtual": Evidence.SIMULATED}


class DeviceSession(Protocol):
    """A device opened in this process, with its memory counted and capped.

    Everything a training job does on the device happens inside `scope()`; there every new tensor is device
    memory unless it is made under `host()`. `place` and `evict` move what exists.
    """

    name: str
    evidence: Evidence

    @property
    def torch_device(self) -> "torch.device":
        """The torch device to run on: `cuda:N` or `cpu`."""

    def scope(self) -> AbstractContextManager[None]:
        """Operations inside run on the device and their results are device memory."""

    def host(self) -> AbstractContextManager[None]:
        """Tensors made inside are host memory. Only meaningful within `scope()`."""

    def place(self, thing: Placed) -> Placed:
        """Move a module in place, or a tensor as a copy, to the device. May raise torch.OutOfMemoryError."""

    def evict(self, thing: Placed) -> Placed:
        """Move a module in place, or a tensor as a copy, to the host and give its device bytes back."""

    def limit(self, budget_bytes: int) -> None:
        """Cap what this process may use at `budget_bytes` (context included where there is one)."""

    def statistics(self) -> dict[str, int]:
        """Counters under the names of `torch.cuda.memory_stats`, in bytes: `allocated_bytes.all.current`
        and `.peak`, `reserved_bytes.all.current` and `.peak`, `num_alloc_retries`, `num_ooms`."""

    def reset_peak(self) -> None:
        """Start new peaks from what is live now."""

    def empty_cache(self) -> None:
        """Give unused cached memory back."""

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it, so that a clock tells the truth."""


def open_session(spec: DeviceSpec) -> DeviceSession:
    """Open `spec` in this (worker) process. Raises DeviceError if it can't be had here."""
    if spec.kind == "virtual":
        from autotune.device.virtual import VirtualSession

        return VirtualSession(parse_size(spec.argument))
    if spec.kind == "cuda":
        from autotune.device.cuda import CudaSession

        return CudaSession(int(spec.argument or 0))
    from autotune.device.null.card import NullCard
    from autotune.device.null.session import NullSession

    return NullSession(NullCard.parse(spec.argument))
