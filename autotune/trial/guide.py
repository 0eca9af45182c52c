"""The guide: which plan to try for real next, given forecasts of what plans need and what trials have shown.

Owns the correction of forecasts by measurements, and the judgement of which plans are settled without a trial.
Pure: it must never run a trial or touch a device; forecasts come from a function it is given.

A plan's need is what PyTorch's allocator has reserved at most: more than that and an allocation fails, or the
allocator gives its cache back and retries, which is no fit either. So a plan fits exactly where its need is at
most the room: the budget less the CUDA context. A forecast of the need is the count of the same allocator in the
same program; what it can't see is the scratch memory of NVIDIA's libraries. Hence the rules:

* Scratch that comes or goes changes which segments the allocator's cache keeps, so the need may also be a little
  below the count: by `COUNT_ERROR` at most, and never below what the plan had allocated at its peak.
* Before any measurement the need goes from there to the count plus the unseen parts at their largest.
* A measured plan tells the residual (measured less forecast). For another plan it is taken as the same number of
  bytes or as the same fraction, or anything between: scratch of a fixed size, and scratch that grows with the
  tensors. What it might be instead (a library chooses other kernels for other sizes; scratch may find room in
  segments that are held anyway) is taken as wide as the residual itself, and two segments of the allocator.
* Each rung needs no more than the one above it, and a batch no more than a larger one; that is what a ladder is.
  So what fails fails above, as long as the forecasts do not say otherwise.

A wrong "does not fit" would cost the better plan, so it needs the lower bound above the room. A wrong "fits" costs
one trial: the plan that is chosen is always measured.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.ladder.ladders import Ladder
from autotune.ladder.plan import BATCH_SIZE, Plan, Recipe
from autotune.ladder.walk import Source, Step, Visit, Walk
from autotune.memory.forecast import COUNT_ERROR
from autotune.memory.interval import Interval
from autotune.units import MIB

SEGMENT_BYTES = 20 * MIB
"""What a request of less than 10 MiB opens when it finds no room (c10/cuda/CUDACachingAllocator.cpp)."""
BELIEVED_RATIOS = (0.67, 1.5)
"""Measured over forecast outside of these bounds: the forecast is of another job than the one that ran."""


@dataclass(frozen=True)
class Estimate:
    """What one plan was forecast to need: bytes reserved and allocated at their peaks, as counted on the null GPU,
    and the interval of bytes that may come on top."""

    counted_bytes: int
    allocated_bytes: int
    unseen: Interval

    @property
    def excess_bytes(self) -> int:
        """How far the count may be above the truth: not further than what the cache held beside what was used."""
        return min(round(COUNT_ERROR * self.counted_bytes), max(0, self.counted_bytes - self.allocated_bytes))


Forecaster = Callable[[Plan], Estimate | None]
"""Gives the estimate of a plan, the same one each time, or None where there can be none."""


@dataclass(frozen=True)
class Residual:
    """What a card needed for a plan that was forecast: `measured_bytes` reserved where `counted_bytes` were."""

    counted_bytes: int
    measured_bytes: int

    @property
    def ratio(self) -> float:
        """Measured over forecast."""
        return self.measured_bytes / max(self.counted_bytes, 1)

    @property
    def believable(self) -> bool:
        """Whether both can be of the same job."""
        return BELIEVED_RATIOS[0] <= self.ratio <= BELIEVED_RATIOS[1]

    def bytes_for(self, counted_bytes: int) -> tuple[int, int]:
        """The residual of another plan, if it is the same number of bytes and if it is the same fraction."""
        fixed = self.measured_bytes - self.counted_bytes
        growing = round(fixed * counted_bytes / max(self.counted_bytes, 1))
        return min(fixed, growing), max(fixed, growing)


@dataclass(frozen=True)
class Trialled:
    """What a real trial showed: whether the plan fits, what it reserved if it does, and whether memory decided."""

    fits: bool
    reserved_bytes: int | None = None
    by_memory: bool = True


@dataclass(frozen=True)
class Guide:
    """Forecasts, and what trials have shown so far. `record` returns the next state; nothing is changed.

    `room_bytes` is the budget less the context. `earlier` are residuals of the same card from other jobs: they
    move the guess, and never settle anything.
    """

    ladder: Ladder
    recipe: Recipe
    forecast: Forecaster
    room_bytes: int
    earlier: tuple[Residual, ...] = ()
    trials: Mapping[Plan, Trialled] = field(default_factory=dict)

    def record(self, plan: Plan, trial: Trialled) -> "Guide":
        """The guide after a real trial of `plan`."""
        return replace(self, trials={**self.trials, plan: trial})

    def walk(self) -> Walk:
        """The walk as it would go if everything turned out as it is likely to; it ends early before a plan of
        which nothing is known."""
        walk = Walk.start(self.ladder, self.recipe)
        while (step := walk.next()) is not None and (likely := self.guess(step.plan)) is not None:
            walk = walk.record(step, likely)
        return walk

    def next(self) -> Step | None:
        """What to try for real: the choice as it looks now, then what could still be better than it.

        Of the plans in doubt the one that needs least comes first: if it fails, those above it do. None when the
        choice is measured and nothing is in doubt, or nothing fits and the last rung has been tried.
        """
        walk = self.walk()
        if (unknown := walk.next()) is not None:
            return unknown
        choice = walk.visits[-1].step.plan if walk.chosen is None else walk.chosen
        if choice not in self.trials:
            return _visit_of(walk, choice).step
        doubts = [visit.step for visit in walk.visits if self._in_doubt(visit)]
        return min(doubts, key=lambda step: self._likely_bytes(step.plan) or 0, default=None)

    def settled(self) -> dict[Plan, bool]:
        """Whether they fit, of all plans on the likely walk that need no trial any more."""
        walk = self.walk()
        return {visit.step.plan: visit.fits for visit in walk.visits if not self._in_doubt(visit)}

    def need(self, plan: Plan) -> Interval | None:
        """The bounds of what `plan` reserves, after all that is known; None without a forecast."""
        estimate = self.forecast(plan)
        if estimate is None:
            return None
        low, high = self._residual_bounds(estimate)
        return Interval(max(0, estimate.counted_bytes + low), max(0, estimate.counted_bytes + high))

    def guess(self, plan: Plan) -> bool | None:
        """Whether `plan` fits, as far as anybody can tell now; None without a forecast."""
        if plan in self.trials:
            return self.trials[plan].fits
        if self._fails_surely(plan):
            return False
        likely = self._likely_bytes(plan)
        return None if likely is None else likely <= self.room_bytes

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """Measured against forecast, of the plans that have been measured here."""
        return tuple(
            Residual(estimate.counted_bytes, trial.reserved_bytes)
            for plan, trial in self.trials.items()
            if trial.reserved_bytes is not None and (estimate := self.forecast(plan)) is not None
        )

    def _in_doubt(self, visit: Visit) -> bool:
        """Whether the visit's "does not fit" was only likely, so that a better plan may have been passed over.

        What follows from another visit (IMPLIED) stands and falls with that one.
        """
        plan = visit.step.plan
        if visit.fits or visit.source is Source.IMPLIED or plan in self.trials:
            return False
        return not self._fails_surely(plan)

    def _fails_surely(self, plan: Plan) -> bool:
        need = self.need(plan)
        if need is None:
            return False
        return need.low_bytes > self.room_bytes or any(
            self._needs_no_less(plan, failed) for failed in self._failed()
        )

    def _failed(self) -> Iterable[Plan]:
        return (plan for plan, trial in self.trials.items() if not trial.fits and trial.by_memory)

    def _needs_no_less(self, plan: Plan, other: Plan) -> bool:
        """Whether `plan` stands above `other`: on a higher rung, or on the same one with a larger batch; and the
        forecasts agree."""
        ours, theirs = self.forecast(plan), self.forecast(other)
        if ours is None or theirs is None or ours.counted_bytes < theirs.counted_bytes:
            return False
        if plan in self._places and other in self._places:
            return self._places[plan] < self._places[other]
        return _has_larger_batch(plan, other)

    @cached_property
    def _places(self) -> dict[Plan, int]:
        """The plans of the ladder, counted from the recipe's down."""
        rungs = [self.recipe.plan, *(rung.plan for rung in self.ladder.rungs(self.recipe))]
        return {plan: place for place, plan in enumerate(rungs)}

    def _likely_bytes(self, plan: Plan) -> int | None:
        """The need in the middle of what it may be; above the room's edge where a like plan has failed there."""
        estimate = self.forecast(plan)
        if estimate is None:
            return None
        counted = estimate.counted_bytes
        told = [middle for one in self.residuals or self.earlier for middle in one.bytes_for(counted)]
        residual = round(sum(told) / len(told)) if told else estimate.unseen.middle_bytes
        return counted + max(residual, self._residual_of_failures(counted))

    def _residual_of_failures(self, counted_bytes: int) -> int:
        """What the residual is at least if failed plans had the same fraction of it; 0 if they say nothing."""
        estimates = [estimate for plan in self._failed() if (estimate := self.forecast(plan)) is not None]
        beyond = [Residual(one.counted_bytes, self.room_bytes + 1) for one in estimates]
        return max((max(one.bytes_for(counted_bytes)) for one in beyond), default=0)

    def _residual_bounds(self, estimate: Estimate) -> tuple[int, int]:
        """The least and the most that may come on top of the count."""
        told = [bound for one in self.residuals for bound in one.bytes_for(estimate.counted_bytes)]
        least = min(told, default=0)
        low = -estimate.excess_bytes if least >= -estimate.excess_bytes else 2 * least
        high = max(0, 2 * max(told)) + 2 * SEGMENT_BYTES if told else estimate.unseen.high_bytes
        return low, high


def _visit_of(walk: Walk, plan: Plan) -> Visit:
    return next(visit for visit in walk.visits if visit.step.plan == plan)


def _has_larger_batch(plan: Plan, other: Plan) -> bool:
    if BATCH_SIZE not in plan or plan.keys() != other.keys():
        return False
    alike = all(plan[knob] == other[knob] for knob in plan if knob != BATCH_SIZE)
    return alike and plan.batch_size > other.batch_size
