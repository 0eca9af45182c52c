"""A forecast: what a plan needs on a card nobody has to own, as an interval with its parts, and the verdict.

Owns the arithmetic between what the null GPU counted and what a card has. Pure: it must never run anything, and
never call a forecast a measurement.

The interval of a phase runs from what was counted, plus the unseen parts at their smallest, to the same with the
parts at their largest. A plan fits where the top of the interval is within the card. It does not fit where what
was alive at once (allocated, not reserved) and the unseen at its smallest pass the card: no allocator can help
then. Between the two PyTorch's own allocator is asked, in the least and in the most room that the card may leave
it: a plan that runs out even in the most does not fit; one that gets along by giving its cache back, at a price in
time, is too close to call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.memory.interval import Interval
from autotune.memory.phases import PhasePeak
from autotune.memory.unseen import Part

COUNT_ERROR = 0.02
"""How far counts of reserved memory were off where every setting of a measured run was known (LoRA and full
fine-tuning of FLUX.2-klein): scratch of NVIDIA's libraries, and the segments it leaves."""


class FitVerdict(StrEnum):
    """Whether a plan fits a card, as far as a forecast can tell."""

    FITS = "fits"
    CLOSE = "too close to call"
    NO = "does not fit"


class Squeeze(StrEnum):
    """How a plan got along in a room smaller than all it would reserve."""

    FITS = "fits"
    RETRIES = "fits while the allocator gives its cache back"
    FAILS = "runs out of memory"


@dataclass(frozen=True)
class Forecast:
    """What a plan needs: its phases as counted on the null GPU, and the parts that the null GPU can't see.

    `parts` come on top of the counted reserved bytes of every phase; the context is not among them, for it belongs
    to a card. Evidence is `forecast`, always.
    """

    phases: tuple[PhasePeak, ...]
    parts: tuple[Part, ...]

    @property
    def counted_bytes(self) -> int:
        """The reserved bytes at their peak, as counted."""
        return max((phase.peak_reserved_bytes for phase in self.phases), default=0)

    @property
    def allocated_bytes(self) -> int:
        """The allocated bytes at their peak, as counted."""
        return max((phase.peak_allocated_bytes for phase in self.phases), default=0)

    @property
    def peak_phase(self) -> str:
        """The phase that drives the reserved bytes to their peak: later ones only inherit them."""
        return next((p.phase for p in self.phases if p.peak_reserved_bytes == self.counted_bytes), "")

    def reserved(self) -> Interval:
        """What PyTorch reserves at most, unseen scratch included."""
        return Interval.total(part.interval for part in self.parts) + self.counted_bytes

    def need(self, context: Interval) -> Interval:
        """What the process takes at most, its CUDA context included."""
        return self.reserved() + context

    def phase_need(self, phase: PhasePeak, context: Interval) -> Interval:
        """The same for one phase."""
        return self._unseen(context) + phase.peak_reserved_bytes

    def judge(self, total_bytes: int, context: Interval) -> FitVerdict:
        """Whether the plan fits a card, or a budget, of `total_bytes`, as far as the counts alone tell."""
        if self.need(context).high_bytes <= total_bytes:
            return FitVerdict.FITS
        if self.allocated_bytes + self._unseen(context).low_bytes > total_bytes:
            return FitVerdict.NO
        return FitVerdict.CLOSE

    def room(self, total_bytes: int, context: Interval) -> Interval:
        """What a card of `total_bytes` leaves for the bytes that were counted, the unseen taken off."""
        unseen = self._unseen(context)
        return Interval(max(0, total_bytes - unseen.high_bytes), max(0, total_bytes - unseen.low_bytes))

    def to_json(self) -> dict[str, Any]:
        """The JSON form: plain values, sizes in bytes."""
        return {
            "evidence": "forecast",
            "peak_phase": self.peak_phase,
            "reserved_bytes": interval_json(self.reserved()),
            "phases": [phase.to_json() for phase in self.phases],
            "unseen": [
                {"name": part.name, "bytes": interval_json(part.interval), "basis": part.basis}
                for part in self.parts
            ],
        }

    def _unseen(self, context: Interval) -> Interval:
        return Interval.total(part.interval for part in self.parts) + context


def settle(least: Squeeze, most: Squeeze) -> FitVerdict:
    """The verdict on a plan that was tried in the `least` and in the `most` room that a card may leave it."""
    if most is Squeeze.FAILS:
        return FitVerdict.NO
    return FitVerdict.FITS if least is Squeeze.FITS else FitVerdict.CLOSE


def scratch_part(phases: Sequence[PhasePeak]) -> Part:
    """Scratch memory of NVIDIA's libraries (cuDNN, cuBLASLt), which the null GPU can't see."""
    most = max((phase.peak_reserved_bytes for phase in phases), default=0)
    return Part(
        "scratch of NVIDIA's libraries",
        Interval(0, round(COUNT_ERROR * most)),
        f"counts of reserved memory were off by at most {COUNT_ERROR:.0%} where every setting of a run was known",
    )


def forecast_of(phases: Sequence[PhasePeak]) -> Forecast:
    """The forecast of a plan from its trial's phases on the null GPU."""
    return Forecast(tuple(phases), (scratch_part(phases),))


def interval_json(interval: Interval) -> Mapping[str, int]:
    """`{"low": ..., "high": ...}` in bytes."""
    return {"low": interval.low_bytes, "high": interval.high_bytes}
