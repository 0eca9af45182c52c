"""Where the bytes of a trial went: each phase at its peak by category, and memory over the trial.

Owns the records and their JSON form. Must never touch a device or import torch: `trial.record` fills them in.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

WEIGHTS = "weights"
ADAPTERS = "adapters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
ACTIVATIONS = "activations"
WORKSPACE = "workspace"
OTHER = "other"

CATEGORIES = (WEIGHTS, ADAPTERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, WORKSPACE, OTHER)
"""Weights are the base model's; adapters what is trained; gradients and optimizer state theirs; activations all
that comes and goes within a phase (scratch memory of single kernels too); workspace what a library such as cuBLAS
keeps for good; other what was there before the trial, and what the allocator adds to requests by rounding."""


@dataclass(frozen=True)
class PhaseAccount:
    """One phase: its peaks in bytes, and what was alive when the allocated bytes peaked, by category.

    `parts` has every one of CATEGORIES, and their sum is `peak_allocated_bytes`.
    """

    phase: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    parts: Mapping[str, int]

    @property
    def cache_slack_bytes(self) -> int:
        """What the allocator's cache took at its peak above what was alive at its own."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes


@dataclass(frozen=True)
class Span:
    """A phase on the timeline, from sample `start` up to, not including, sample `end`."""

    phase: str
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """Memory over the trial, in the order of allocator events and not of time: equally many samples of both
    counters in bytes, each the largest value of its stretch, so that no peak is lost."""

    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Account:
    """A trial's phases in order, as far as it got, and its timeline."""

    phases: tuple[PhaseAccount, ...]
    timeline: Timeline

    @property
    def peak(self) -> PhaseAccount:
        """The phase in which the allocated bytes peaked. Raises ValueError for an account without phases."""
        return max(self.phases, key=lambda phase: phase.peak_allocated_bytes)

    def to_json(self) -> dict[str, Any]:
        """The JSON form: plain values, one key per field."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Account":
        """The account whose JSON form is `values`."""
        timeline = values["timeline"]
        return cls(
            tuple(PhaseAccount(**phase) for phase in values["phases"]),
            Timeline(
                tuple(timeline["allocated_bytes"]),
                tuple(timeline["reserved_bytes"]),
                tuple(Span(**span) for span in timeline["spans"]),
            ),
        )
