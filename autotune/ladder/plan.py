"""Plans and recipes: the concrete values of every knob. Owns their meaning and JSON form, not how to choose.

A plan holds a value for each knob the workload has. The knobs we know are `batch_size` (samples per device in
one microbatch), `resolution` (one or more (width, height) in pixels), `gradient_checkpointing` and
`network_dim` (LoRA rank); a workload may lack some of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

Size = tuple[int, int]
KnobValue = int | bool | tuple[Size, ...]

BATCH_SIZE = "batch_size"
RESOLUTION = "resolution"
GRADIENT_CHECKPOINTING = "gradient_checkpointing"
NETWORK_DIM = "network_dim"


@dataclass(frozen=True, eq=False)
class Plan(Mapping[str, KnobValue]):
    """An immutable mapping from knob name to value, in the order the workload lists its knobs.

    Plans with equal values are equal in any order: canonical JSON sorts the keys.
    """

    items_: tuple[tuple[str, KnobValue], ...]

    @classmethod
    def of(cls, **values: KnobValue) -> "Plan":
        """A plan from keyword arguments: `Plan.of(batch_size=4, gradient_checkpointing=False)`."""
        return cls(tuple(values.items()))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Plan":
        """The plan whose JSON form is `values` (lists of [width, height] become tuples)."""
        return cls(tuple((knob, _from_json(value)) for knob, value in values.items()))

    def to_json(self) -> dict[str, Any]:
        """The JSON form: integers, booleans, and resolutions as lists of [width, height]."""
        return {
            knob: [list(size) for size in value] if isinstance(value, tuple) else value
            for knob, value in self.items_
        }

    def replace(self, knob: str, value: KnobValue) -> "Plan":
        """This plan with one knob changed. Raises KeyError for a knob the plan lacks."""
        if knob not in self:
            raise KeyError(knob)
        return Plan(tuple((name, value if name == knob else old) for name, old in self.items_))

    @property
    def batch_size(self) -> int:
        """Samples in one microbatch on one device."""
        return cast("int", self[BATCH_SIZE])

    @property
    def resolutions(self) -> tuple[Size, ...]:
        """(width, height) in pixels, at least one."""
        return cast("tuple[Size, ...]", self[RESOLUTION])

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether activations are recomputed in backward."""
        return cast("bool", self[GRADIENT_CHECKPOINTING])

    @property
    def network_dim(self) -> int:
        """The LoRA rank."""
        return cast("int", self[NETWORK_DIM])

    def __hash__(self) -> int:
        return hash(frozenset(self.items_))

    def __getitem__(self, knob: str) -> KnobValue:
        for name, value in self.items_:
            if name == knob:
                return value
        raise KeyError(knob)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)


@dataclass(frozen=True)
class Recipe:
    """What the user asked for: the plan as written, the effective batch it means, and each knob's floor.

    `effective_batch` = batch_size x gradient_accumulation x processes; the ladder keeps it constant.
    `floors` maps a knob to the lowest value the ladder may reach for this workload (pixels for resolution).
    """

    plan: Plan
    effective_batch: int
    processes: int = 1
    floors: Mapping[str, int] = field(default_factory=dict)

    def accumulation(self, plan: Plan) -> int:
        """Microbatches per logical batch on one process under `plan` (the last one may be smaller)."""
        share = -(-self.effective_batch // self.processes)
        return -(-share // plan.batch_size)


def _from_json(value: Any) -> KnobValue:
    if isinstance(value, list | tuple):
        return tuple((int(width), int(height)) for width, height in value)
    if isinstance(value, bool | int):
        return value
    raise ValueError(f"{value!r} is no knob value: use an integer, a boolean or a list of [width, height]")
