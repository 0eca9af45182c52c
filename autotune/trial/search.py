"""The search: the walk says which plan, the worker says whether it fits, until a plan is chosen.

Owns the loop, the replacement of workers that can't be trusted any more, and the sentence for when nothing
fits. Must never degrade a plan for a failure that is not memory, and must never touch a device itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from autotune.device.session import Evidence
from autotune.errors import AutotuneError, NothingFitsError
from autotune.ladder.knobs import Change, describe_value
from autotune.ladder.ladders import Ladder
from autotune.ladder.plan import BATCH_SIZE, Plan
from autotune.ladder.walk import Step, Walk
from autotune.trial.client import Worker
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import STEPS_TO_FIT, STEPS_TO_TIME, Failure, Ready, TrialReport
from autotune.trial.workload import Job
from autotune.units import MIB, format_mib

OnNote = Callable[[str], None]
Answered = Callable[["SearchStep"], None]


@dataclass(frozen=True)
class SearchStep:
    """One trial of the search: where the walk stood (plan, change, direction) and what the worker reported."""

    step: Step
    report: TrialReport

    @property
    def outcome(self) -> Outcome:
        """What the trial showed."""
        return self.report.outcome


@dataclass(frozen=True)
class SearchResult:
    """A plan that fits, the outcome that says so, the trials on the way and the changes that lead to it.

    `forecasts` are the rungs settled on the null GPU, in a guided search.
    """

    job: Job
    steps: tuple[SearchStep, ...]
    chosen: Plan
    outcome: Outcome
    receipts: tuple[Change, ...]
    forecasts: tuple[SearchStep, ...] = ()


class WarmWorker:
    """A worker that is there when it is needed: opened on first use, replaced after `discard`.

    `make` returns a worker that is not open yet. `on_note` hears, in one line, why a worker was replaced.
    """

    def __init__(self, make: Callable[[], Worker], on_note: OnNote | None = None) -> None:
        self._make = make
        self._worker: Worker | None = None
        self.note: OnNote = on_note or (lambda line: None)

    def __enter__(self) -> "WarmWorker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def worker(self) -> Worker:
        """The open worker. Raises what `Worker.open` raises."""
        if self._worker is None:
            self._worker = self._make()
            self._worker.open()
        return self._worker

    @property
    def ready(self) -> Ready:
        """What the worker told when it opened."""
        return self.worker.ready

    def discard(self, why: str) -> None:
        """End this worker; the next use starts another."""
        self.note(f"{why.rstrip('.')}; the next trial runs in a new worker")
        self.close()

    def close(self) -> None:
        """End the worker, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def search(
    warm: WarmWorker,
    ladder: Ladder,
    on_step: Answered | None = None,
    known: Mapping[Plan, bool] | None = None,
    steps: int = STEPS_TO_TIME,
) -> SearchResult:
    """Walk `ladder` with real trials until a plan is chosen; `on_step` hears each trial as it ends.

    `known` answers are walked through without a trial, but the chosen plan is always tried. Raises
    NothingFitsError when every rung failed, and the error behind a plan that crashed or hung twice for a reason
    that is not memory.
    """
    job = warm.ready.job
    walk = Walk.start(ladder, job.recipe, known)
    taken: list[SearchStep] = []
    while (step := _next_to_try(walk, taken)) is not None:
        taken.append(SearchStep(step, try_plan(warm, step.plan, steps)))
        if on_step is not None:
            on_step(taken[-1])
        walk = walk.record(step, taken[-1].outcome.fits)
    if walk.chosen is None:
        raise nothing_fits(warm, walk, taken)
    outcome = next(one.outcome for one in reversed(taken) if one.outcome.plan == walk.chosen)
    return SearchResult(job, tuple(taken), walk.chosen, outcome, walk.receipts)


def try_plan(warm: WarmWorker, plan: Plan, steps: int = STEPS_TO_TIME) -> TrialReport:
    """One trial of `plan` that ends in an answer: it fits, or it does not for a reason of memory.

    A worker that is not clean afterwards is replaced. A crash or a hang gets a second chance in a new worker;
    the second time the error behind it is raised.
    """
    report = warm.worker.trial(plan, steps)
    if not _answers(report):
        warm.discard(f"{describe_plan(plan)} {_ending(report)} and gets a second chance: {report.outcome.reason}")
        report = warm.worker.trial(plan, steps)
    if not _answers(report):
        raise _failure_of(report)
    if not report.reusable:
        warm.discard(f"the worker can't be used again after {describe_plan(plan)}: {_why_not_reusable(report)}")
    return report


def measure_need(warm: WarmWorker, plan: Plan) -> int | None:
    """The bytes `plan` needs, where that can be learned without a budget (the virtual GPU), else None."""
    if warm.ready.evidence is not Evidence.SIMULATED:
        return None
    try:
        report = warm.worker.trial(plan, STEPS_TO_FIT, lift_budget=True)
    except AutotuneError:
        return None
    finally:
        warm.close()
    return report.outcome.peak_reserved_bytes if report.outcome.fits else None


def nothing_fits(warm: WarmWorker, walk: Walk, taken: Sequence[SearchStep]) -> NothingFitsError:
    """The error for a walk without a fit: what was tried, what the smallest plan needs, what would help."""
    smallest = walk.visits[-1].step.plan
    name, budget = warm.ready.device["name"], _budget_bytes(warm)  # measuring the need ends the worker
    room = f"the budget of {format_mib(budget)}" if budget else "the memory"
    tried = _describe_tried(walk.recipe.plan, smallest)
    need = _describe_need(measure_need(warm, smallest), taken[-1].report if taken else None)
    return NothingFitsError(
        f"nothing fits {room} on {name}: {len(walk.visits)} plans from {tried}; {need}.",
        "What would help: a larger budget (close other programs, raise --vram-limit, a GPU with more memory), "
        "lower floors in a ladder of your own, or a lighter job (mixed precision, an 8-bit optimizer, fewer "
        "trained parts).",
    )


def describe_plan(plan: Plan) -> str:
    """`batch_size 4, resolution 512x512, gradient_checkpointing off`."""
    return ", ".join(f"{knob} {describe_value(knob, value)}" for knob, value in plan.items())


def _next_to_try(walk: Walk, taken: Sequence[SearchStep]) -> Step | None:
    """The walk's next step; at its end the chosen plan, should it be known only by hearsay."""
    step = walk.next()
    if step is not None or walk.chosen is None:
        return step
    if any(one.outcome.plan == walk.chosen for one in taken):
        return None
    return next(visit.step for visit in walk.visits if visit.step.plan == walk.chosen)


def _answers(report: TrialReport) -> bool:
    """Whether the walk can go on from this. A kernel's size limit is no memory, yet a smaller batch passes it."""
    if report.kind is Kind.SIZE_LIMIT:
        return report.outcome.plan.get(BATCH_SIZE, 1) != 1
    return report.outcome.verdict not in (Verdict.CRASHED, Verdict.HUNG)


def _failure_of(report: TrialReport) -> AutotuneError:
    outcome = report.outcome
    where = f" in phase {outcome.failed_phase!r}" if outcome.failed_phase else ""
    fact = f"{describe_plan(outcome.plan)} {_ending(report)} twice{where}: {outcome.reason}."
    failure = Failure.of_kind(report.kind or Kind.OTHER, fact, report.traceback)
    way_out = failure.way_out or "This is not GPU memory, so no smaller plan was tried."
    return Failure(failure.error_class, failure.fact, way_out, failure.traceback).to_error()


def _ending(report: TrialReport) -> str:
    return "hung" if report.outcome.verdict is Verdict.HUNG else "crashed"


def _why_not_reusable(report: TrialReport) -> str:
    if report.leftover_bytes:
        return f"{format_mib(report.leftover_bytes)} stayed allocated"
    return report.outcome.reason or "its device can't be read any more"


def _budget_bytes(warm: WarmWorker) -> int | None:
    budget = warm.worker.budget_bytes or warm.ready.device.get("total_bytes")
    return int(budget) if budget else None


def _describe_tried(first: Plan, last: Plan) -> str:
    """Each knob with where it began and where it ended: `batch_size 4 to 1, network_dim 32 to 4`."""
    parts = []
    for knob in first:
        before, after = (describe_value(knob, plan[knob]) for plan in (first, last))
        parts.append(f"{knob} {before}" if before == after else f"{knob} {before} to {after}")
    return ", ".join(parts)


def _describe_need(need_bytes: int | None, report: TrialReport | None) -> str:
    if need_bytes is not None:
        return f"the smallest needs {format_mib(need_bytes)}"
    if report is None:
        return "what the smallest needs is not known"
    outcome = report.outcome
    floor = report.needs_more_than_bytes or outcome.peak_reserved_bytes or 0
    return f"the smallest needs more than {floor // MIB:,} MiB"
