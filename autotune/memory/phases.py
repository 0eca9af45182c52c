"""Peaks by phase: what each part of a run took at most. Owns the record only; devices do the counting."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PhasePeak:
    """The most memory one phase held at once, in bytes, and the allocator's trouble while it ran."""

    phase: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    alloc_retries: int = 0

    @classmethod
    def read(cls, phase: str, before: Mapping[str, int], after: Mapping[str, int]) -> "PhasePeak":
        """The peak of a phase from `memory_stats` taken before (peaks reset) and after it."""
        return cls(
            phase,
            after["allocated_bytes.all.peak"],
            after["reserved_bytes.all.peak"],
            after["num_alloc_retries"] - before["num_alloc_retries"],
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PhasePeak":
        """The record whose JSON form is `values`."""
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, one key per field."""
        return asdict(self)
