"""Forecasts for a probe: trials of the same job on a null GPU, and the residuals of stored profiles.

Owns the null GPU's worker during a probe. A forecast saves trials and nothing else, so it must never make a probe
fail: whatever goes wrong here is told in one sentence, and the ladder is walked by trials.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.controller.events import NoteEvent, WorkerEvent
from autotune.controller.task import Task, Tell
from autotune.device.probe import DeviceReading
from autotune.device.session import DeviceSpec, Evidence
from autotune.errors import AutotuneError, ProfileError, WorkerError
from autotune.ladder.plan import Plan
from autotune.memory.forecast import forecast_of
from autotune.memory.interval import Interval
from autotune.profile.residuals import card_residuals
from autotune.trial.client import Worker
from autotune.trial.guide import SEGMENT_BYTES, Estimate, Residual
from autotune.trial.guided import Foresight
from autotune.trial.outcome import Outcome
from autotune.trial.process import Launch
from autotune.trial.protocol import STEPS_TO_FIT, Ready, TrialReport
from autotune.trial.workload import Job

UNLIMITED = "4096GiB"  # more than any plan needs, so that every peak is a whole one
HANG_AFTER_S = 180.0


class NullOracle:
    """Forecasts of one job by trials on a null GPU that never runs out, each plan once; see `Oracle`.

    `make` gives the worker, not yet open; `note` hears, once, why there are no (more) forecasts.
    """

    def __init__(self, make: Callable[[], Worker], note: Callable[[str], None]) -> None:
        self._make = make
        self._note = note
        self._worker: Worker | None = None
        self._outcomes: dict[Plan, Outcome | None] = {}
        self._given_up = False
        self.ready: Ready | None = None

    def open(self, job: Job) -> bool:
        """Start the worker; whether it is there and forecasts this very `job`."""
        try:
            self._worker = self._make()
            self.ready = self._worker.open()
            _check_same_job(job, self.ready.job)
        except Exception as error:  # whatever it is: the probe goes on without
            self._give_up(error)
        return not self._given_up

    def estimate(self, plan: Plan) -> Estimate | None:
        """What `plan` needs, from one trial; None where that trial did not run through."""
        outcome = self.outcome(plan)
        return None if outcome is None else estimate_of(outcome)

    def outcome(self, plan: Plan) -> Outcome | None:
        """The trial of `plan`."""
        if plan not in self._outcomes:
            self._outcomes[plan] = self._try(plan)
        return self._outcomes[plan]

    def close(self) -> None:
        """End the worker, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _try(self, plan: Plan) -> Outcome | None:
        if self._given_up or self._worker is None:
            return None
        try:
            report = self._worker.trial(plan, STEPS_TO_FIT)
        except Exception as error:
            self._give_up(error)
            return None
        if report.outcome.fits and report.reusable:
            return report.outcome
        return self._look_at(report)

    def _look_at(self, report: TrialReport) -> Outcome | None:
        """What is left of a trial that failed or soiled its worker: a fit counts; the worker may be done for."""
        if not report.reusable:
            self._give_up(WorkerError(report.outcome.reason or "its worker can't be used again"))
        return report.outcome if report.outcome.fits else None

    def _give_up(self, error: Exception) -> None:
        self._given_up = True
        text = str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"
        self._note(f"no forecast, so plans are tried instead: {' '.join(text.split())}")
        self.close()


@contextmanager
def foresee(
    task: Task, reading: DeviceReading, ready: Ready, tell: Tell
) -> Iterator[tuple[Foresight, Ready] | None]:
    """What can be known of the task's job before its first trial, with the null worker's facts; None without.

    Only real cards are forecast: the virtual GPU's memory is an account of another kind. The null worker lives
    inside the `with` block.
    """
    if task.forecast_workload is None or ready.evidence is not Evidence.MEASURED:
        yield None
        return
    oracle = NullOracle(lambda: _null_worker(task, ready, tell), lambda line: tell(NoteEvent(line)))
    try:
        if not oracle.open(ready.job) or oracle.ready is None:
            yield None
            return
        room = reading.budget.bytes - int(ready.device.get("context_bytes", 0))
        yield Foresight(oracle, room, _earlier(task, reading, tell)), oracle.ready
    finally:
        oracle.close()


def estimate_of(outcome: Outcome) -> Estimate:
    """The estimate of a plan from its trial on the null GPU."""
    forecast = forecast_of(outcome.phases)
    unseen = Interval.total(part.interval for part in forecast.parts)
    segments = Interval(0, 2 * SEGMENT_BYTES)  # what the scratch may open beyond its own size
    return Estimate(forecast.counted_bytes, forecast.allocated_bytes, unseen + segments)


def _null_worker(task: Task, ready: Ready, tell: Tell) -> Worker:
    capability = ready.device.get("compute_capability")
    return Worker(
        task.forecast_workload or task.workload,
        task.config,
        DeviceSpec.parse(f"null:{UNLIMITED}" + (f"@{capability}" if capability else "")),
        None,
        Launch(log_path=task.worker_log, hang_after_s=HANG_AFTER_S),
        lambda event: tell(WorkerEvent(event)),
    )


def _check_same_job(real: Job, null: Job) -> None:
    """Raise WorkerError where the job on the null GPU is not the one that is probed."""
    sides = [{**job.workload, "recipe": job.recipe.plan} for job in (real, null)]
    differing = [key for key in sorted({*sides[0], *sides[1]}) if sides[0].get(key) != sides[1].get(key)]
    if differing:
        raise WorkerError(f"on the null GPU the job differs in {', '.join(differing)}.")


def _earlier(task: Task, reading: DeviceReading, tell: Tell) -> tuple[Residual, ...]:
    """The residuals of stored profiles of this card, told with their number and their middle."""
    try:
        profiles = task.store.find(reading.name).profiles
    except ProfileError:
        return ()  # whoever keeps the profile tells it
    residuals = card_residuals(profiles, reading.total_bytes)
    if residuals:
        middle = sorted(one.ratio for one in residuals)[len(residuals) // 2]
        tell(
            NoteEvent(
                f"profiles of this card: measured over forecast {middle:.3f} ({len(residuals)} plans)", "learned"
            )
        )
    return residuals
