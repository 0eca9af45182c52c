"""The walk: which plan to try next, given what the plans before it showed. An immutable state machine.

Owns the order of trials only. Must never run one, read a clock or do I/O. The rules: the recipe as written
comes first; each failure moves one rung down; after the first fit only the batch size rises on that rung, by
doubling and then by bisection, as far as the effective batch allows; the largest batch that fitted is chosen.
What is known beforehand (a forecast, an earlier profile) is walked through without a trial.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from autotune.ladder.knobs import KNOBS, Change, Cost, Knob
from autotune.ladder.ladders import Ladder, Rung
from autotune.ladder.plan import BATCH_SIZE, Plan, Recipe


class Direction(StrEnum):
    """Where a step leads."""

    START = "start"  # the recipe as written
    DOWN = "down"  # one rung lower
    CLIMB = "climb"  # another batch size on the rung that fits


class Source(StrEnum):
    """How the walk learned whether a plan fits."""

    TRIAL = "trial"
    KNOWN = "known"  # told beforehand
    IMPLIED = "implied"  # a larger batch fits, or a smaller one fails, all else equal


@dataclass(frozen=True)
class Step:
    """A plan to try, and the one change from the plan before it (None for the recipe as written)."""

    plan: Plan
    change: Change | None
    direction: Direction


@dataclass(frozen=True)
class Visit:
    """A step that has been answered."""

    step: Step
    fits: bool
    source: Source


@dataclass(frozen=True)
class Walk:
    """Where the walk stands. Every method leaves this object as it is; `record` returns the next state."""

    recipe: Recipe
    rungs: tuple[Rung, ...]
    visits: tuple[Visit, ...] = ()
    known: Mapping[Plan, bool] = field(default_factory=dict)
    tried: frozenset[Plan] = frozenset()

    @classmethod
    def start(
        cls,
        ladder: Ladder,
        recipe: Recipe,
        known: Mapping[Plan, bool] | None = None,
        knobs: Mapping[str, Knob] = KNOBS,
    ) -> "Walk":
        """A walk down `ladder` from `recipe`; `known` says of plans whether they fit, without a trial."""
        return cls(recipe, tuple(ladder.rungs(recipe, knobs)), known=dict(known or {}))._settled()

    def next(self) -> Step | None:
        """What to try now, or None when the walk is over."""
        if self._first_fit is not None:
            return self._next_climb(self._first_fit.step.plan)
        if not self.visits:
            return Step(self.recipe.plan, None, Direction.START)
        if len(self.visits) <= len(self.rungs):
            rung = self.rungs[len(self.visits) - 1]
            return Step(rung.plan, rung.change, Direction.DOWN)
        return None

    def record(self, tried: Step | Plan, fits: bool) -> "Walk":
        """The walk after a trial of `tried`.

        Any plan may be recorded, not only the awaited one: it counts as soon as the walk gets there. A later
        outcome of a plan replaces an earlier one, and the walk goes on from that plan.
        """
        plan = tried.plan if isinstance(tried, Step) else tried
        return replace(
            self,
            known={**self.known, plan: fits},
            tried=self.tried | {plan},
            visits=self._visits_after(plan, fits),
        )._settled()

    @property
    def chosen(self) -> Plan | None:
        """The best plan that fits so far: on the first fitting rung, the largest batch. Final when `done`."""
        if self._first_fit is None:
            return None
        fitting = [visit.step.plan for visit in self.visits if visit.fits]
        return max(fitting, key=lambda plan: plan.batch_size) if BATCH_SIZE in fitting[0] else fitting[0]

    @property
    def done(self) -> bool:
        """Whether nothing is left to try."""
        return self.next() is None

    @property
    def exhausted(self) -> bool:
        """Whether every rung failed."""
        return self.done and self.chosen is None

    @property
    def receipts(self) -> tuple[Change, ...]:
        """The changes that lead from the recipe's plan to the chosen one: each rung taken, then the climb."""
        chosen, base = self.chosen, self._first_fit
        if chosen is None or base is None:
            return ()
        taken = tuple(rung.change for rung in self.rungs[: self.visits.index(base)])
        climbed = chosen != base.step.plan
        return (*taken, _batch_change(base.step.plan, chosen)) if climbed else taken

    @cached_property
    def _first_fit(self) -> Visit | None:
        return next((visit for visit in self.visits if visit.fits), None)

    def _visits_after(self, plan: Plan, fits: bool) -> tuple[Visit, ...]:
        """The visits that stand once a trial of `plan` has been recorded."""
        for place, visit in enumerate(self.visits):
            if visit.step.plan == plan:
                before, after = self.visits[:place], self.visits[place + 1 :]
                return (*before, replace(visit, source=Source.TRIAL), *after) if visit.fits == fits else before
        awaited = self.next()
        if awaited and awaited.plan == plan:
            return (*self.visits, Visit(awaited, fits, Source.TRIAL))
        return self.visits

    def _next_climb(self, base: Plan) -> Step | None:
        if BATCH_SIZE not in base:
            return None
        best = self.chosen or base
        batch = self._next_batch(best)
        if batch is None:
            return None
        plan = base.replace(BATCH_SIZE, batch)
        return Step(plan, _batch_change(self.visits[-1].step.plan, plan), Direction.CLIMB)

    def _next_batch(self, best: Plan) -> int | None:
        """The batch to try above `best`: twice that, or the middle once a larger one is known to fail.

        Sizes that don't divide the effective batch count too: samples of one shape share microbatches, so
        with buckets any larger batch may save one.
        """
        low, limit = best.batch_size, largest_batch(self.recipe)
        failing = min((b for b in self._batches_beside(best, fits=False) if b > low), default=None)
        if failing is not None and failing <= limit:
            return (low + failing) // 2 if failing - low > 1 else None
        return min(2 * low, limit) if low < limit else None

    def _batches_beside(self, plan: Plan, fits: bool) -> Iterator[int]:
        """Batch sizes known to fit (or fail) with every other knob as in `plan`."""
        answers = {visit.step.plan: visit.fits for visit in self.visits} | dict(self.known)
        for other, answer in answers.items():
            alike = other.keys() == plan.keys() and all(other[k] == plan[k] for k in plan if k != BATCH_SIZE)
            if answer == fits and alike:
                yield other.batch_size

    def _verdict(self, plan: Plan) -> tuple[bool, Source] | None:
        """Whether `plan` fits and how we know; None if only a trial can tell."""
        if plan in self.known:
            return self.known[plan], Source.TRIAL if plan in self.tried else Source.KNOWN
        if BATCH_SIZE not in plan:
            return None
        if any(batch <= plan.batch_size for batch in self._batches_beside(plan, fits=False)):
            return False, Source.IMPLIED
        if any(batch >= plan.batch_size for batch in self._batches_beside(plan, fits=True)):
            return True, Source.IMPLIED
        return None

    def _settled(self) -> "Walk":
        """This walk moved on through every step whose answer is known."""
        walk = self
        while (step := walk.next()) and (verdict := walk._verdict(step.plan)):
            walk = replace(walk, visits=(*walk.visits, Visit(step, *verdict)))
        return walk


def largest_batch(recipe: Recipe) -> int:
    """The most samples one microbatch on one device may hold: one process's share of the effective batch."""
    return -(-recipe.effective_batch // recipe.processes)


def _batch_change(before: Plan, after: Plan) -> Change:
    """A change of the batch size in the climb. It costs nothing: the plan it starts from fits anyway."""
    return Change(BATCH_SIZE, before.batch_size, after.batch_size, Cost.NONE)
