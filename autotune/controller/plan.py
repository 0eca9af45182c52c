"""`plan`: what a job needs and which cards it fits, from forecasts alone.

Owns which forecasts are made and what they are put together to. Must never touch a card.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.frontier import BatchSearch, largest_batches
from autotune.device.null.card import NullCard
from autotune.ladder.knobs import KNOBS, Change
from autotune.ladder.plan import BATCH_SIZE, GRADIENT_CHECKPOINTING, RESOLUTION, Plan, Recipe
from autotune.memory.account import Account
from autotune.memory.forecast import FitVerdict, Forecast
from autotune.memory.interval import Interval
from autotune.trial.workload import Job

MakeForecaster = Callable[[Architecture], Forecaster]
_SIDES = (0.5, 0.625, 0.75, 0.875, 1.0)  # of the plan's side, for the frontier
_SIDE_STEP = 64


@dataclass(frozen=True)
class Asked:
    """What is asked of a job: which cards, and which of the dear answers. `snapshot` is a file to write."""

    cards: tuple[NullCard, ...]
    largest_batches: bool = True
    frontier: bool = False
    snapshot: Path | None = None


@dataclass(frozen=True)
class CardRow:
    """One card: what the plan needs there, the verdict, the largest batch without and with checkpointing."""

    card: NullCard
    forecast: Forecast
    largest: tuple[int | None, int | None] = (None, None)

    @property
    def context(self) -> Interval:
        """What the CUDA context takes there."""
        return Interval(self.card.context_low_bytes, self.card.context_high_bytes)

    @property
    def need(self) -> Interval:
        """What the plan needs there in all."""
        return self.forecast.need(self.context)

    @property
    def verdict(self) -> FitVerdict:
        """Whether it fits."""
        return self.forecast.judge(self.card.total_bytes, self.context)


@dataclass(frozen=True)
class Saving:
    """One step down on one knob, and the bytes it saves at the peak (negative: it needs more)."""

    change: Change
    saved_bytes: int


@dataclass(frozen=True)
class FrontierCurve:
    """The largest batch on one card by side in pixels, with or without checkpointing."""

    card: NullCard
    checkpointing: bool
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Planned:
    """All that `plan` found. `account` is of the first card's architecture."""

    job: Job
    plan: Plan
    rows: tuple[CardRow, ...]
    account: Account | None
    savings: tuple[Saving, ...]
    curves: tuple[FrontierCurve, ...]


def plan_job(asked: Asked, make: MakeForecaster) -> Planned:
    """Forecast the job behind `make` for every card asked about. Raises AutotuneError."""
    groups = _by_capability(asked.cards)
    rows: dict[str, CardRow] = {}
    curves: list[FrontierCurve] = []
    first: _First | None = None
    for cards in groups:
        with make(Architecture.of(*cards)) as forecaster:
            plan = forecaster.job.recipe.plan
            first = first or _first_of(forecaster, plan, asked)
            rows |= _rows_of(forecaster, plan, cards, asked.largest_batches)
            if asked.frontier:
                curves += _curves_of(forecaster, plan, cards)
    assert first is not None
    ordered = tuple(rows[card.slug] for card in asked.cards)
    return Planned(first.job, first.plan, ordered, first.account, first.savings, tuple(curves))


@dataclass(frozen=True)
class _First:
    job: Job
    plan: Plan
    account: Account | None
    savings: tuple[Saving, ...]


def _by_capability(cards: Sequence[NullCard]) -> list[list[NullCard]]:
    groups: defaultdict[tuple[int, int], list[NullCard]] = defaultdict(list)
    for card in cards:
        groups[card.compute_capability].append(card)
    return list(groups.values())


def _first_of(forecaster: Forecaster, plan: Plan, asked: Asked) -> _First:
    job = forecaster.job
    account = forecaster.account(plan, asked.snapshot)
    whole = forecaster.forecast(plan).counted_bytes
    savings = [
        Saving(change, whole - forecaster.forecast(plan.replace(change.knob, change.after)).counted_bytes)
        for change in single_steps(job.recipe)
    ]
    return _First(job, plan, account, tuple(savings))


def single_steps(recipe: Recipe) -> list[Change]:
    """One step down from the recipe's plan on each knob that can go down."""
    steps = []
    for name, knob in KNOBS.items():
        if name in recipe.plan:
            after = knob.step_down(recipe.plan[name], recipe.floors.get(name, knob.default_floor))
            if after is not None:
                steps.append(Change(name, recipe.plan[name], after, knob.cost))
    return steps


def _rows_of(
    forecaster: Forecaster, plan: Plan, cards: Sequence[NullCard], with_batches: bool
) -> dict[str, CardRow]:
    forecast = forecaster.forecast(plan)
    if not with_batches:
        return {card.slug: CardRow(card, forecast) for card in cards}
    without, checkpointed = (_largest_by_card(forecaster, plan, cards, on) for on in (False, True))
    return {c.slug: CardRow(c, forecast, (without.get(c.slug), checkpointed.get(c.slug))) for c in cards}


def _largest_by_card(
    forecaster: Forecaster, plan: Plan, cards: Sequence[NullCard], checkpointing: bool
) -> Mapping[str, int]:
    if GRADIENT_CHECKPOINTING not in plan or BATCH_SIZE not in plan:
        return {}
    kind = plan.replace(GRADIENT_CHECKPOINTING, checkpointing)

    def ask(batch: int) -> int:
        return forecaster.batch_need_bytes(kind.replace(BATCH_SIZE, batch))

    rooms = {card.slug: card.total_bytes - card.context_high_bytes for card in cards}
    return largest_batches(BatchSearch(ask), rooms)


def _curves_of(forecaster: Forecaster, plan: Plan, cards: Sequence[NullCard]) -> list[FrontierCurve]:
    sides = frontier_sides(plan, forecaster.job.recipe.floors.get(RESOLUTION, _SIDE_STEP))
    found = {
        (on, side): _largest_by_card(forecaster, plan.replace(RESOLUTION, ((side, side),)), cards, on)
        for on in (False, True)
        for side in sides
    }
    return [
        FrontierCurve(card, on, tuple((side, found[on, side].get(card.slug, 0)) for side in sides))
        for card in cards
        for on in (True, False)
    ]


def frontier_sides(plan: Plan, floor: int) -> tuple[int, ...]:
    """The sides in pixels that the frontier is drawn for: from half the plan's larger side up to it."""
    whole = max(max(size) for size in plan.resolutions)
    sides = {max(floor, round(whole * share / _SIDE_STEP) * _SIDE_STEP) for share in _SIDES}
    return tuple(sorted(sides))


def planned_json(planned: Planned) -> dict[str, Any]:
    """What `plan --json` prints: plain values, sizes in bytes."""
    account = planned.account
    return {
        "evidence": "forecast",
        "label": planned.job.label,
        "plan": planned.plan.to_json(),
        "effective_batch": planned.job.recipe.effective_batch,
        "workload": dict(planned.job.workload),
        "cards": [_row_json(row) for row in planned.rows],
        "breakdown": account.to_json() if account else None,
        "savings": [
            {
                "knob": saving.change.knob,
                "before": planned.plan.to_json()[saving.change.knob],
                "after": planned.plan.replace(saving.change.knob, saving.change.after).to_json()[
                    saving.change.knob
                ],
                "cost": saving.change.cost.value,
                "saved_bytes": saving.saved_bytes,
            }
            for saving in planned.savings
        ],
        "frontier": [
            {"card": curve.card.slug, "gradient_checkpointing": curve.checkpointing, "points": curve.points}
            for curve in planned.curves
        ],
        "notes": list(planned.job.notes),
    }


def _row_json(row: CardRow) -> dict[str, Any]:
    return {
        "card": row.card.slug,
        "name": row.card.name,
        "total_bytes": row.card.total_bytes,
        "context_bytes": {"low": row.context.low_bytes, "high": row.context.high_bytes},
        "need_bytes": {"low": row.need.low_bytes, "high": row.need.high_bytes},
        "verdict": row.verdict.value,
        "largest_batch": {"without_checkpointing": row.largest[0], "with_checkpointing": row.largest[1]},
        **row.forecast.to_json(),
    }
