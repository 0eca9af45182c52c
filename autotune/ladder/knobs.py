"""The knobs a ladder may turn: how each steps down, what a step costs, how its value reads.

Owns the `Knob` protocol and the knobs we know. Must never decide the order of steps (ladders.py does) nor do
I/O. A new knob is one more object in `KNOBS`, or in the mapping handed to a ladder and a walk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, cast

from autotune.ladder.plan import (
    BATCH_SIZE,
    GRADIENT_CHECKPOINTING,
    NETWORK_DIM,
    RESOLUTION,
    KnobValue,
    Size,
)

RESOLUTION_STEP = 64  # pixels; the grid that buckets and U-Nets share


class Cost(StrEnum):
    """What one step down takes from the user."""

    NONE = "none"
    SPEED = "speed"  # the same result, later
    QUALITY = "quality"  # another result


@dataclass(frozen=True)
class Change:
    """One knob turned, from one value to another, and what that costs."""

    knob: str
    before: KnobValue
    after: KnobValue
    cost: Cost


class Knob(Protocol):
    """One thing the ladder may change. Pure: the same value and floor give the same step."""

    @property
    def name(self) -> str:
        """The knob's key in plans."""

    @property
    def cost(self) -> Cost:
        """What a step down costs."""

    @property
    def default_floor(self) -> int:
        """The lowest value to reach when neither the recipe nor the ladder names one."""

    def step_down(self, value: KnobValue, floor: int) -> KnobValue | None:
        """The next lower value that needs strictly less memory, never under `floor`; None at the end."""

    def describe(self, value: KnobValue) -> str:
        """`value` as tables show it."""


@dataclass(frozen=True)
class Halving:
    """An integer that halves (rounded down) until its floor."""

    name: str
    cost: Cost
    default_floor: int

    def step_down(self, value: KnobValue, floor: int) -> KnobValue | None:
        """Half of `value`, or `floor` if that is higher; None once `value` is there."""
        number = cast("int", value)
        return max(number // 2, floor) if number > floor else None

    def describe(self, value: KnobValue) -> str:
        """The number."""
        return str(value)


@dataclass(frozen=True)
class Switch:
    """A boolean that saves memory when on. Its floor has no meaning."""

    name: str
    cost: Cost
    default_floor: int = 0

    def step_down(self, value: KnobValue, floor: int) -> KnobValue | None:
        """Off becomes on; on is the end."""
        return None if value else True

    def describe(self, value: KnobValue) -> str:
        """`on` or `off`."""
        return "on" if value else "off"


@dataclass(frozen=True)
class Resolution:
    """One or more picture sizes; a step lowers the largest one that still can be lowered.

    Sizes keep their positions, and may become equal: which pictures belong to which size is the workload's.
    """

    name: str = RESOLUTION
    cost: Cost = Cost.QUALITY
    default_floor: int = 256

    def step_down(self, value: KnobValue, floor: int) -> KnobValue | None:
        """The sizes with the largest area lowered by one step; None when all are at `floor` pixels."""
        sizes = cast("tuple[Size, ...]", value)
        for index in sorted(range(len(sizes)), key=lambda i: -sizes[i][0] * sizes[i][1]):
            lower = _lower_size(sizes[index], floor)
            if lower is not None:
                return (*sizes[:index], lower, *sizes[index + 1 :])
        return None

    def describe(self, value: KnobValue) -> str:
        """`512x512`, several sizes joined by commas."""
        return ", ".join(f"{width}x{height}" for width, height in cast("tuple[Size, ...]", value))


_ALL: tuple[Knob, ...] = (
    Halving(BATCH_SIZE, Cost.SPEED, default_floor=1),
    Resolution(),
    Switch(GRADIENT_CHECKPOINTING, Cost.SPEED),
    Halving(NETWORK_DIM, Cost.QUALITY, default_floor=4),
)
KNOBS: Mapping[str, Knob] = MappingProxyType({knob.name: knob for knob in _ALL})


def describe_value(knob: str, value: KnobValue, knobs: Mapping[str, Knob] = KNOBS) -> str:
    """`value` of the knob named `knob` for a table; a knob nobody knows reads as Python prints it."""
    known = knobs.get(knob)
    return known.describe(value) if known else str(value)


def _lower_size(size: Size, floor: int) -> Size | None:
    """`size` with its longer side one step lower and the shorter in proportion, both on the grid.

    The shorter side stops at the floor and never grows; the longer side ends at the first grid line at or
    above the floor, where there is no step left (None).
    """
    longer, shorter = max(size), min(size)
    lowest = -(-floor // RESOLUTION_STEP) * RESOLUTION_STEP
    if longer <= lowest:
        return None
    new_longer = max(_nearest_on_grid(longer - RESOLUTION_STEP, 1), lowest)
    new_shorter = min(max(_nearest_on_grid(shorter * new_longer, longer), lowest), shorter)
    return (new_longer, new_shorter) if size[0] >= size[1] else (new_shorter, new_longer)


def _nearest_on_grid(numerator: int, denominator: int) -> int:
    """numerator / denominator rounded to the nearest multiple of the step, halves up, in whole numbers."""
    return (2 * numerator + RESOLUTION_STEP * denominator) // (2 * RESOLUTION_STEP * denominator) * RESOLUTION_STEP
