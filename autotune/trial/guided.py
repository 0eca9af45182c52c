"""The guided search: the walk of `search`, with forecasts in place of most of its trials.

Owns the loop between the guide, which says what to try, and the worker, which says whether it fits. It must end on
the plan that a walk of real trials alone ends on, must never show a forecast as a measurement, and must never fail
for the forecast's sake: without one, or with one that is of no use, it is the plain walk.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from autotune.ladder.ladders import Ladder
from autotune.ladder.plan import Plan
from autotune.ladder.walk import Step
from autotune.trial.guide import Estimate, Guide, Residual, Trialled
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import STEPS_TO_TIME, TrialReport
from autotune.trial.search import (
    Answered,
    OnNote,
    SearchResult,
    SearchStep,
    WarmWorker,
    nothing_fits,
    try_plan,
)
from autotune.units import format_mib


class Oracle(Protocol):
    """Forecasts of one job on one card. Both answer None where there can be none, and never raise."""

    def estimate(self, plan: Plan) -> Estimate | None:
        """What `plan` needs; the same answer each time."""

    def outcome(self, plan: Plan) -> Outcome | None:
        """The trial on the null GPU behind the estimate, without a limit; evidence forecast."""


@dataclass(frozen=True)
class Foresight:
    """What is known before the first trial: forecasts, and residuals of the same card from other jobs.

    `room_bytes` is what a plan may reserve: the budget less the context of the process that trains.
    """

    oracle: Oracle
    room_bytes: int
    earlier: tuple[Residual, ...] = ()


@dataclass(frozen=True)
class Heard:
    """Who hears of it: each trial and each forecast as it ends, and sentences for people."""

    on_trial: Answered = field(default=lambda step: None)
    on_forecast: Answered = field(default=lambda step: None)
    on_note: OnNote = field(default=lambda line: None)


def guided_search(
    warm: WarmWorker, ladder: Ladder, foresight: Foresight, heard: Heard | None = None, steps: int = STEPS_TO_TIME
) -> SearchResult:
    """Walk `ladder` with forecasts, confirm by real trials, and end where `search` would.

    The chosen plan is always tried. Raises what `search` raises, for the same reasons.
    """
    return _GuidedSearch(warm, ladder, foresight, heard or Heard(), steps).run()


class _GuidedSearch:
    """One search on its way: the guide so far, the trials had, and the forecasts that were told."""

    def __init__(self, warm: WarmWorker, ladder: Ladder, foresight: Foresight, heard: Heard, steps: int) -> None:
        self._warm = warm
        self._oracle = foresight.oracle
        self._heard = heard
        self._steps = steps
        self._job = warm.ready.job
        self._taken: list[SearchStep] = []
        self._told: dict[Plan, SearchStep] = {}
        self._guide = Guide(
            ladder, self._job.recipe, foresight.oracle.estimate, foresight.room_bytes, foresight.earlier
        )

    def run(self) -> SearchResult:
        self._tell_forecasts()
        while (step := self._guide.next()) is not None:
            self._try(step)
            self._tell_forecasts()
        walk = self._guide.walk()
        if walk.chosen is None:
            raise nothing_fits(self._warm, walk, self._taken)
        outcome = next(one.outcome for one in self._taken if one.outcome.plan == walk.chosen)
        forecasts = tuple(self._told.values())
        return SearchResult(self._job, tuple(self._taken), walk.chosen, outcome, walk.receipts, forecasts)

    def _try(self, step: Step) -> None:
        taken = SearchStep(step, try_plan(self._warm, step.plan, self._steps))
        self._taken.append(taken)
        self._heard.on_trial(taken)
        known = len(self._guide.residuals)
        self._guide = self._guide.record(step.plan, shown_by(taken.report))
        if len(self._guide.residuals) > known:
            self._judge(self._guide.residuals[-1])

    def _judge(self, residual: Residual) -> None:
        """Say what a measurement means for the forecasts, and go on without them if it can't be."""
        beside = f"{format_mib(residual.measured_bytes)} measured, {format_mib(residual.counted_bytes)} forecast"
        if residual.believable:
            self._heard.on_note(f"{beside} (ratio {residual.ratio:.3f}): corrects the other forecasts")
            return
        self._heard.on_note(f"{beside}: too far apart to be of use, so the ladder is walked by trials alone")
        self._guide = replace(self._guide, forecast=lambda plan: None)

    def _tell_forecasts(self) -> None:
        """Tell each plan of the likely walk that was forecast, the first time it is on it."""
        for visit in self._guide.walk().visits:
            plan = visit.step.plan
            if plan in self._told or plan in self._guide.trials:
                continue
            outcome = self._oracle.outcome(plan)
            if outcome is not None:
                self._told[plan] = SearchStep(visit.step, TrialReport(judged(outcome, self._guide)))
                self._heard.on_forecast(self._told[plan])


def judged(outcome: Outcome, guide: Guide) -> Outcome:
    """A forecast's outcome with the verdict under the guide's room; evidence stays forecast."""
    need = guide.need(outcome.plan)
    fits = guide.guess(outcome.plan)
    if need is None or fits is None:
        return outcome
    room = guide.room_bytes
    if need.low_bytes <= room < need.high_bytes:
        reason = f"too close to call: {format_mib(need.low_bytes)} to {format_mib(need.high_bytes)} of"
    else:
        reason = "" if fits else f"needs {format_mib(need.low_bytes)} or more of"
    return replace(
        outcome,
        verdict=Verdict.FITS if fits else Verdict.OOM,
        reason=f"{reason} {format_mib(room)}" if reason else "",
        failed_phase="" if fits else _fullest_phase(outcome),
    )


def shown_by(report: TrialReport) -> Trialled:
    """What a real trial tells the guide: only a fit tells a whole peak."""
    outcome = report.outcome
    reserved = outcome.peak_reserved_bytes if outcome.fits else None
    return Trialled(outcome.fits, reserved, by_memory=report.kind is not Kind.SIZE_LIMIT)


def _fullest_phase(outcome: Outcome) -> str:
    return max(outcome.phases, key=lambda one: one.peak_reserved_bytes).phase if outcome.phases else ""
