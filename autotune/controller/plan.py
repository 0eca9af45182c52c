"""`plan`: what a job needs and which cards it fits, from forecasts alone.

Owns which forecasts are made and what they are put together to. Must never touch a card.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.frontier import BatchSearch, largest_batches, shares
from autotune.device.null.card import NullCard
from autotune.ladder.knobs import KNOBS, Change, Cost
from autotune.ladder.plan import BATCH_SIZE, GRADIENT_CHECKPOINTING, RESOLUTION, Plan, Recipe
from autotune.memory.account import Account
from autotune.memory.forecast import FitVerdict, Forecast, Squeeze, settle
from autotune.memory.interval import Interval
from autotune.trial.workload import Job

MakeForecaster = Callable[[Architecture], Forecaster]
_SIDES = (0.5, 0.625, 0.75, 0.875, 1.0)  # of the plan's side, for the frontier
_SIDE_STEP = 64
# By how a plan got along in the least and in the most room.
_REASONS = {
    (
        Squeeze.RETRIES,
        Squeeze.FITS,
    ): "it runs, but the allocator may have to give its cache back, which takes time",
    (Squeeze.RETRIES, Squeeze.RETRIES): "it runs only while the allocator gives its cache back, which takes time",
    (Squeeze.FAILS, Squeeze.FITS): "it fits with a small CUDA context and little scratch, but not with large ones",
    (Squeeze.FAILS, Squeeze.RETRIES): "at best it runs while the allocator gives its cache back, which takes time",
    (Squeeze.FAILS, Squeeze.FAILS): "even with all its cache given back it runs out of memory",
}


@dataclass(frozen=True)
class Asked:
    """What is asked of a job: which cards, and which of the dear answers. `snapshot` is a file to write."""

    cards: tuple[NullCard, ...]
    largest_batches: bool = True
    frontier: bool = False
    snapshot: Path | None = None


@dataclass(frozen=True)
class CardRow:
    """One card: what the plan needs there, the verdict and, near the limit, its reason; the largest batch without
    and with checkpointing; and, for a plan that does not surely fit, the one step down after which it does."""

    card: NullCard
    forecast: Forecast
    verdict: FitVerdict
    reason: str = ""
    largest: tuple[int | None, int | None] = (None, None)
    enough: Change | None = None

    @property
    def context(self) -> Interval:
        """What the CUDA context takes there."""
        return context_of(self.card)

    @property
    def need(self) -> Interval:
        """What the plan needs there in all."""
        return self.forecast.need(self.context)


@dataclass(frozen=True)
class Saving:
    """One step down on one knob, the bytes it saves at the peak (negative: it needs more), and what it leaves."""

    change: Change
    saved_bytes: int
    forecast: Forecast


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
    groups = [_forecast_group(asked, cards, make) for cards in _by_capability(asked.cards)]
    rows = {row.card.slug: row for group in groups for row in group.rows}
    first = groups[0]
    return Planned(
        first.job,
        first.job.recipe.plan,
        tuple(rows[card.slug] for card in asked.cards),
        first.account,
        first.savings,
        tuple(curve for group in groups for curve in group.curves),
    )


def context_of(card: NullCard) -> Interval:
    """What a process's CUDA context takes on `card`."""
    return Interval(card.context_low_bytes, card.context_high_bytes)


@dataclass(frozen=True)
class _Group:
    """What was found for the cards of one capability."""

    job: Job
    rows: Sequence[CardRow]
    account: Account | None
    savings: tuple[Saving, ...]
    curves: Sequence[FrontierCurve]


def _by_capability(cards: Sequence[NullCard]) -> list[list[NullCard]]:
    groups: defaultdict[tuple[int, int], list[NullCard]] = defaultdict(list)
    for card in cards:
        groups[card.compute_capability].append(card)
    return list(groups.values())


def _forecast_group(asked: Asked, cards: Sequence[NullCard], make: MakeForecaster) -> _Group:
    """Everything about the cards of one capability, on as many threads as there are workers."""
    is_first = cards[0] == asked.cards[0]
    forecaster = make(Architecture.of(*cards))
    # On an error the forecaster ends its workers first, and with them what the threads wait for.
    with ThreadPoolExecutor(forecaster.workers) as threads, forecaster:
        plan = forecaster.job.recipe.plan
        account = threads.submit(forecaster.account, plan, asked.snapshot) if is_first else None
        early = threads.submit(_savings, forecaster) if is_first else None
        frontier = _Frontier(forecaster, threads, cards)
        if asked.largest_batches:
            frontier.start(plan)
        sides = frontier_sides(plan, forecaster.job.recipe.floors.get(RESOLUTION, _SIDE_STEP))
        for side in sides if asked.frontier else ():
            frontier.start(_at_side(plan, side))
        rows = list(threads.map(lambda card: _judge(forecaster, plan, card), cards))
        some_fail = any(row.verdict is not FitVerdict.FITS for row in rows)
        savings = early.result() if early else _savings(forecaster) if some_fail else ()
        rows = [
            replace(row, largest=frontier.largest(plan, row.card), enough=cheapest_enough(row, savings))
            for row in rows
        ]
        curves = frontier.curves(plan, sides) if asked.frontier else []
        return _Group(forecaster.job, rows, account.result() if account else None, savings, curves)


def _savings(forecaster: Forecaster) -> tuple[Saving, ...]:
    recipe = forecaster.job.recipe
    whole = forecaster.forecast(recipe.plan).counted_bytes
    lowered = [
        (step, forecaster.forecast(recipe.plan.replace(step.knob, step.after))) for step in single_steps(recipe)
    ]
    return tuple(Saving(step, whole - forecast.counted_bytes, forecast) for step, forecast in lowered)


def cheapest_enough(row: CardRow, savings: Sequence[Saving]) -> Change | None:
    """The one step down after which the plan surely fits the card of `row`: of several the one that costs least,
    and of these the one that saves least. None where it fits as it is, or no single step is enough."""
    if row.verdict is FitVerdict.FITS:
        return None
    enough = [one for one in savings if one.forecast.judge(row.card.total_bytes, row.context) is FitVerdict.FITS]
    best = min(enough, key=lambda one: (list(Cost).index(one.change.cost), one.saved_bytes), default=None)
    return best.change if best else None


def single_steps(recipe: Recipe) -> list[Change]:
    """One step down from the recipe's plan on each knob that can go down."""
    steps = []
    for name, knob in KNOBS.items():
        if name in recipe.plan:
            after = knob.step_down(recipe.plan[name], recipe.floors.get(name, knob.default_floor))
            if after is not None:
                steps.append(Change(name, recipe.plan[name], after, knob.cost))
    return steps


def _judge(forecaster: Forecaster, plan: Plan, card: NullCard) -> CardRow:
    """The verdict on one card; near the limit PyTorch's own allocator is asked, in the room that the card has."""
    forecast, context = forecaster.forecast(plan), context_of(card)
    verdict = forecast.judge(card.total_bytes, context)
    if verdict is not FitVerdict.CLOSE:
        return CardRow(card, forecast, verdict)
    room = forecast.room(card.total_bytes, context)
    most = forecaster.squeeze(plan, room.high_bytes)
    least = forecaster.squeeze(plan, room.low_bytes) if most is not Squeeze.FAILS else most
    return CardRow(card, forecast, settle(least, most), _REASONS.get((least, most), ""))


class _Frontier:
    """The largest batches of kinds of plans (all but batch and checkpointing), looked for on threads."""

    def __init__(self, forecaster: Forecaster, threads: Executor, cards: Sequence[NullCard]) -> None:
        self._forecaster = forecaster
        self._threads = threads
        self._cards = cards
        self._found: dict[Plan, list[Future[dict[str, int]]]] = {}

    def start(self, plan: Plan) -> None:
        """Look for the largest batches of `plan`'s kind on every card, without and with checkpointing."""
        if GRADIENT_CHECKPOINTING not in plan or BATCH_SIZE not in plan:
            return
        rooms = {card.slug: card.total_bytes - card.context_high_bytes for card in self._cards}
        for on in (True, False):  # the longer search first
            kind = _kind_of(plan, on)
            if kind not in self._found:
                parts = [part for part in shares(rooms) if part]
                self._found[kind] = [self._threads.submit(self._search, kind, part) for part in parts]

    def largest(self, plan: Plan, card: NullCard) -> tuple[int | None, int | None]:
        """What was found for one card, without and with checkpointing; None where nothing was looked for."""
        return self._one(_kind_of(plan, False), card), self._one(_kind_of(plan, True), card)

    def curves(self, plan: Plan, sides: Sequence[int]) -> list[FrontierCurve]:
        """The largest batch by side on each card."""
        found = {side: _at_side(plan, side) for side in sides}
        return [
            FrontierCurve(
                card, on, tuple((side, self._one(_kind_of(found[side], on), card) or 0) for side in sides)
            )
            for card in self._cards
            for on in (True, False)
        ]

    def _one(self, kind: Plan, card: NullCard) -> int | None:
        found = (part.result() for part in self._found.get(kind, ()))
        return next((batches[card.slug] for batches in found if card.slug in batches), None)

    def _search(self, kind: Plan, rooms: Mapping[str, int]) -> dict[str, int]:
        def ask(batch: int) -> int:
            return self._forecaster.batch_need_bytes(kind.replace(BATCH_SIZE, batch))

        return largest_batches(BatchSearch(ask), rooms)


def _kind_of(plan: Plan, checkpointing: bool) -> Plan:
    if GRADIENT_CHECKPOINTING not in plan or BATCH_SIZE not in plan:
        return plan
    return plan.replace(BATCH_SIZE, 1).replace(GRADIENT_CHECKPOINTING, checkpointing)


def _at_side(plan: Plan, side: int) -> Plan:
    return plan.replace(RESOLUTION, ((side, side),))


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
        "cards": [_row_json(planned.plan, row) for row in planned.rows],
        "breakdown": account.to_json() if account else None,
        "savings": [
            _change_json(planned.plan, saving.change) | {"saved_bytes": saving.saved_bytes}
            for saving in planned.savings
        ],
        "frontier": [
            {"card": curve.card.slug, "gradient_checkpointing": curve.checkpointing, "points": curve.points}
            for curve in planned.curves
        ],
        "notes": list(planned.job.notes),
    }


def _change_json(plan: Plan, change: Change) -> dict[str, Any]:
    before, after = (plan.replace(change.knob, value).to_json() for value in (change.before, change.after))
    knob = change.knob
    return {"knob": knob, "before": before[knob], "after": after[knob], "cost": change.cost.value}


def _row_json(plan: Plan, row: CardRow) -> dict[str, Any]:
    return {
        "card": row.card.slug,
        "name": row.card.name,
        "total_bytes": row.card.total_bytes,
        "context_bytes": {"low": row.context.low_bytes, "high": row.context.high_bytes},
        "need_bytes": {"low": row.need.low_bytes, "high": row.need.high_bytes},
        "verdict": row.verdict.value,
        "reason": row.reason,
        "one_step_that_fits": _change_json(plan, row.enough) if row.enough else None,
        "largest_batch": {"without_checkpointing": row.largest[0], "with_checkpointing": row.largest[1]},
        **row.forecast.to_json(),
    }
