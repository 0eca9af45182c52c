"""What a memory report shows, as plain values in bytes: the input of the charts and of the page.

Owns the shapes only. Must never compute a forecast, read a file or import a drawing library.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CATEGORIES = (
    "weights",
    "adapters",
    "gradients",
    "optimizer",
    "activations",
    "workspace",
    "other",
    "cache slack",
    "context",
)
"""Where bytes go, in the order they are stacked: what stays first, what comes and goes after it."""


@dataclass(frozen=True)
class Limit:
    """A line that memory must stay under: a card or a budget."""

    label: str
    size_bytes: int


@dataclass(frozen=True)
class Span:
    """A phase on the timeline, from sample `start` up to, not including, sample `end`."""

    phase: str
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """Memory over the run: equally many samples of both counters, in the order of allocator events."""

    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class PhaseBytes:
    """One phase at its peak: bytes by category, and the interval of what it needs in all (low, high)."""

    phase: str
    parts: Mapping[str, int]
    interval: tuple[int, int] | None = None


@dataclass(frozen=True)
class Curve:
    """The largest batch that fits one card by resolution: points (pixels of a side, batch; 0 is none)."""

    card: str
    checkpointing: bool
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Verdict:
    """One card's row: what it has, what the run needs there, the words for it, the largest batch without and
    with checkpointing (None: not looked for)."""

    card: str
    total_bytes: int
    need: tuple[int, int]
    verdict: str
    largest_batch: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class Saving:
    """What one change of a knob buys on this workload."""

    change: str
    saved_bytes: int
    cost: str


@dataclass(frozen=True)
class Report:
    """All that one page or picture shows. What is empty is left out."""

    title: str
    evidence: str
    facts: tuple[tuple[str, str], ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    timeline: Timeline | None = None
    phases: tuple[PhaseBytes, ...] = ()
    curves: tuple[Curve, ...] = ()
    savings: tuple[Saving, ...] = ()
    unseen: tuple[tuple[str, tuple[int, int], str], ...] = ()
    notes: tuple[str, ...] = field(default=())
