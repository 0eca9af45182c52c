"""The outcome of a trial: one word, its evidence, its peaks. Owns the record, never what to try next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.device.session import Evidence
from autotune.ladder.plan import Plan
from autotune.memory.phases import PhasePeak


class Verdict(StrEnum):
    """How a trial ended. Only FITS lets a plan be chosen."""

    FITS = "fits"
    OOM = "oom"  # device memory ran out
    THRASH = "thrash"  # it ran, but the allocator had to give memory back and retry
    SPILL = "spill"  # device memory was paged to the host
    CRASHED = "crashed"  # any other failure
    HUNG = "hung"  # no sign of life within the time limit


@dataclass(frozen=True)
class Outcome:
    """What one trial of `plan` showed.

    Peaks are bytes over all phases, step_ms the median of the steps after the first; both are None when the
    trial did not get that far. `reason` is one line: the OOM's text, the error, or empty.
    `failed_phase` names where it ended when it did not fit.
    """

    plan: Plan
    verdict: Verdict
    evidence: Evidence
    reason: str = ""
    failed_phase: str = ""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    step_ms: float | None = None
    phases: Sequence[PhasePeak] = field(default_factory=tuple)

    @property
    def fits(self) -> bool:
        """Whether the plan may be used."""
        return self.verdict is Verdict.FITS

    def to_json(self) -> dict[str, Any]:
        """The JSON form used on the pipe, in events and in profiles."""
        return {
            "plan": self.plan.to_json(),
            "verdict": self.verdict.value,
            "evidence": self.evidence.value,
            "reason": self.reason,
            "failed_phase": self.failed_phase,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "step_ms": self.step_ms,
            "phases": [peak.to_json() for peak in self.phases],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Outcome":
        """The outcome whose JSON form is `values`."""
        return cls(
            plan=Plan.from_json(values["plan"]),
            verdict=Verdict(values["verdict"]),
            evidence=Evidence(values["evidence"]),
            reason=values["reason"],
            failed_phase=values["failed_phase"],
            peak_allocated_bytes=values["peak_allocated_bytes"],
            peak_reserved_bytes=values["peak_reserved_bytes"],
            step_ms=values["step_ms"],
            phases=tuple(PhasePeak.from_json(peak) for peak in values["phases"]),
        )
