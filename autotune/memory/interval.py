"""`Interval`: a number of bytes known only to lie between two bounds, and its arithmetic.

Owns sums, scaling and containment. Must never round, widen or narrow by itself: whoever states a bound has its
grounds for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=False)
class Interval:
    """Bytes between `low_bytes` and `high_bytes`, both included and neither negative.

    Raises ValueError where the bounds are in the wrong order or below zero.
    """

    low_bytes: int
    high_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.low_bytes <= self.high_bytes:
            raise ValueError(f"no interval of bytes runs from {self.low_bytes} to {self.high_bytes}")

    @classmethod
    def exactly(cls, size_bytes: int) -> "Interval":
        """The interval of a known number of bytes."""
        return cls(size_bytes, size_bytes)

    @classmethod
    def total(cls, intervals: Iterable["Interval"]) -> "Interval":
        """The sum of `intervals`; nothing is exactly 0 bytes. Bounds add up: the parts may all be at one end."""
        total = cls(0, 0)
        for interval in intervals:
            total += interval
        return total

    @property
    def middle_bytes(self) -> int:
        """Half-way between the bounds, rounded down: the figure to show where only one may be shown."""
        return (self.low_bytes + self.high_bytes) // 2

    @property
    def width_bytes(self) -> int:
        """How much is not known."""
        return self.high_bytes - self.low_bytes

    @property
    def relative_width(self) -> float:
        """The width as a fraction of the middle; 0 where both bounds are 0."""
        return 2 * self.width_bytes / (self.low_bytes + self.high_bytes) if self.high_bytes else 0.0

    def __contains__(self, size_bytes: object) -> bool:
        return isinstance(size_bytes, int) and self.low_bytes <= size_bytes <= self.high_bytes

    def __add__(self, other: "Interval | int") -> "Interval":
        """Shifted by a known number of bytes, or summed with another interval bound by bound."""
        more = other if isinstance(other, Interval) else Interval.exactly(other)
        return Interval(self.low_bytes + more.low_bytes, self.high_bytes + more.high_bytes)

    __radd__ = __add__

    def scaled(self, factor: float) -> "Interval":
        """Both bounds times `factor` (not negative), rounded outwards to whole bytes."""
        low, high = self.low_bytes * factor, self.high_bytes * factor
        return Interval(int(low), -int(-high // 1))

    def rounded_out(self, step_bytes: int) -> "Interval":
        """The bounds moved outwards to multiples of `step_bytes`: what an allocator that takes memory in such
        steps can hold."""
        low = self.low_bytes // step_bytes * step_bytes
        return Interval(low, -(-self.high_bytes // step_bytes) * step_bytes)

    def hull(self, other: "Interval") -> "Interval":
        """The smallest interval that holds both."""
        return Interval(min(self.low_bytes, other.low_bytes), max(self.high_bytes, other.high_bytes))
