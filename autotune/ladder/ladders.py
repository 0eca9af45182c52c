"""Ladders: which knob steps down when. Owns the two built-in orders, the form a user writes one in, and the
expansion of a ladder into rungs for a recipe. Must never try anything (walk.py says what to try) nor do I/O:
a ladder file is read elsewhere and arrives here as a mapping.

The form, as TOML:

    name = "keep-detail"
    [floors]                # optional: the lowest value per knob
    resolution = 448
    [[rungs]]
    knob = "batch_size"
    to_floor = true         # as many steps as there are
    [[rungs]]
    knob = "network_dim"
    steps = 1               # this many
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from autotune.errors import ConfigError
from autotune.ladder.knobs import KNOBS, Change, Knob
from autotune.ladder.plan import (
    BATCH_SIZE,
    GRADIENT_CHECKPOINTING,
    NETWORK_DIM,
    RESOLUTION,
    Plan,
    Recipe,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Stage:
    """Steps on one knob in a row: `steps` of them, or on to the floor when None."""

    knob: str
    steps: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The form a ladder file has."""
        return {"knob": self.knob} | ({"to_floor": True} if self.steps is None else {"steps": self.steps})


@dataclass(frozen=True)
class Rung:
    """One step down: the plan it leads to and the one change that leads there."""

    plan: Plan
    change: Change


@dataclass(frozen=True)
class Ladder:
    """A named order of stages, with floors of its own (a knob it leaves out has the workload's floor)."""

    name: str
    stages: tuple[Stage, ...]
    floors: Mapping[str, int] = field(default_factory=dict)

    def rungs(self, recipe: Recipe, knobs: Mapping[str, Knob] = KNOBS) -> Iterator[Rung]:
        """Every step down from the recipe's plan, in order, each one change from the one before.

        A stage for a knob that the plan lacks has no rungs.
        """
        plan = recipe.plan
        for stage in self.stages:
            for rung in self._descend(stage, plan, recipe, knobs):
                yield rung
                plan = rung.plan

    def floor(self, knob: Knob, recipe: Recipe) -> int:
        """The lowest value of `knob`: the higher one of the recipe's floor and this ladder's.

        The knob's default holds where neither names one.
        """
        named = [floors[knob.name] for floors in (recipe.floors, self.floors) if knob.name in floors]
        return max(named, default=knob.default_floor)

    def notes(self, recipe: Recipe) -> tuple[str, ...]:
        """Named warnings: floors of this ladder that can't take effect under the recipe's."""
        return tuple(
            f"ladder {self.name}: floor {knob} = {floor} is under the workload's {recipe.floors[knob]}, "
            f"which holds."
            for knob, floor in self.floors.items()
            if floor < recipe.floors.get(knob, floor)
        )

    def to_json(self) -> dict[str, Any]:
        """The form a ladder file has."""
        return {
            "name": self.name,
            "floors": dict(self.floors),
            "rungs": [stage.to_json() for stage in self.stages],
        }

    def _descend(self, stage: Stage, plan: Plan, recipe: Recipe, knobs: Mapping[str, Knob]) -> Iterator[Rung]:
        knob = knobs[stage.knob]
        steps_left = stage.steps
        while knob.name in plan and steps_left != 0:
            before = plan[knob.name]
            after = knob.step_down(before, self.floor(knob, recipe))
            if after is None:
                return
            plan = plan.replace(knob.name, after)
            yield Rung(plan, Change(knob.name, before, after, knob.cost))
            steps_left = None if steps_left is None else steps_left - 1


CLASSIC = Ladder(
    "classic",
    (
        Stage(BATCH_SIZE),
        Stage(RESOLUTION, 1),
        Stage(GRADIENT_CHECKPOINTING),
        Stage(NETWORK_DIM, 1),
        Stage(RESOLUTION),
        Stage(NETWORK_DIM),
    ),
)
LOSSLESS_FIRST = Ladder(
    "lossless-first",
    (
        Stage(BATCH_SIZE),
        Stage(GRADIENT_CHECKPOINTING),
        Stage(RESOLUTION, 1),
        Stage(NETWORK_DIM, 1),
        Stage(RESOLUTION),
        Stage(NETWORK_DIM),
    ),
)
LADDERS: Mapping[str, Ladder] = MappingProxyType({it.name: it for it in (CLASSIC, LOSSLESS_FIRST)})


def parse_ladder(values: Mapping[str, Any], source: str, knobs: Mapping[str, Knob] = KNOBS) -> Ladder:
    """The ladder that `values` (a parsed file; the form is in the module's text) describes.

    `source` names the file in errors. Raises ConfigError naming the key and its value.
    """
    _refuse_unknown(values, ("name", "floors", "rungs"), source)
    return Ladder(
        _parse_name(values, source),
        _parse_stages(values, source, knobs),
        _parse_floors(values, source, knobs),
    )


def _parse_name(values: Mapping[str, Any], source: str) -> str:
    name = values.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{source}: " + ("name is missing." if name is None else f"name = {name!r} is no ladder name."),
            'Write name = "my-ladder": up to 64 letters, digits, dots, dashes and underscores.',
        )
    if name in LADDERS:
        raise ConfigError(f"{source}: name = {name!r} is a built-in ladder.", "Give yours another name.")
    return name


def _parse_floors(values: Mapping[str, Any], source: str, knobs: Mapping[str, Knob]) -> dict[str, int]:
    floors = values.get("floors", {})
    if not isinstance(floors, Mapping):
        raise ConfigError(f"{source}: floors = {floors!r} is no table.", "Write [floors] with knob = number.")
    for knob, floor in floors.items():
        _known_knob(knob, f"{source}: floors", knobs)
        _positive(floor, f"{source}: floors.{knob}", 1 << 20)
    return dict(floors)


def _parse_stages(values: Mapping[str, Any], source: str, knobs: Mapping[str, Knob]) -> tuple[Stage, ...]:
    rungs = values.get("rungs")
    if not isinstance(rungs, list) or not rungs:
        raise ConfigError(
            f"{source}: rungs = {rungs!r} is no list of rungs.",
            'Write at least one [[rungs]] with knob = "batch_size" and to_floor = true or steps = 1.',
        )
    return tuple(_parse_stage(rung, f"{source}: rungs[{index}]", knobs) for index, rung in enumerate(rungs))


def _parse_stage(rung: Any, where: str, knobs: Mapping[str, Knob]) -> Stage:
    if not isinstance(rung, Mapping):
        raise ConfigError(f"{where} = {rung!r} is no table.", "Write it as [[rungs]] with knob and steps.")
    _refuse_unknown(rung, ("knob", "steps", "to_floor"), where)
    knob = _known_knob(rung.get("knob"), where, knobs)
    if ("steps" in rung) == ("to_floor" in rung):
        raise ConfigError(
            f"{where} (knob {knob}) has {'both steps and' if 'steps' in rung else 'neither steps nor'} to_floor.",
            "Write one of them: steps = 1, or to_floor = true.",
        )
    if "steps" in rung:
        return Stage(knob, _positive(rung["steps"], f"{where}.steps", _MOST_STEPS))
    if rung["to_floor"] is not True:
        raise ConfigError(f"{where}.to_floor = {rung['to_floor']!r} is not true.", "Write steps = N instead.")
    return Stage(knob)


def _refuse_unknown(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key} = {value!r}.", f"Known keys: {', '.join(known)}.")


def _known_knob(knob: Any, where: str, knobs: Mapping[str, Knob]) -> str:
    if not isinstance(knob, str) or knob not in knobs:
        raise ConfigError(f"{where}: unknown knob {knob!r}.", f"Known knobs: {', '.join(knobs)}.")
    return knob


def _positive(value: Any, where: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{where} = {value!r} is out of range.", f"Write a whole number from 1 to {most}.")
    return value
