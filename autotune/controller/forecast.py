"""Forecasts of one job on one architecture: trials on a null card without an end, each plan once and for all.

Owns the null workers and the cache of what they answered. One trial tells of every card of the architecture:
with as much memory as it wants, PyTorch's allocator reserves the same bytes as on any card that has them. Must
never start a worker for what is in the cache.
"""

import threading
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from autotune.controller.forecast_cache import ForecastCache
from autotune.controller.worker_pool import WorkerPool
from autotune.device.catalogue import load_catalogue
from autotune.device.null.card import NullCard
from autotune.device.null.environment import null_environment
from autotune.device.session import DeviceSpec
from autotune.errors import DeviceError, OutOfDeviceMemory
from autotune.ladder.plan import BATCH_SIZE, Plan
from autotune.memory.account import Account
from autotune.memory.forecast import Forecast, Squeeze, forecast_of
from autotune.trial.client import OnEvent, Worker
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.process import Launch
from autotune.trial.protocol import STEPS_TO_TIME, Recording, TrialReport
from autotune.trial.workload import Job
from autotune.units import GIB

ENDLESS_BYTES = 4096 * GIB
"""More than any plan needs, so that every peak is a whole one."""
HANG_AFTER_S = 300.0

_SQUEEZES = {Verdict.FITS: Squeeze.FITS, Verdict.THRASH: Squeeze.RETRIES, Verdict.OOM: Squeeze.FAILS}
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Architecture:
    """What of a card shapes a plan's memory, apart from how much there is: capability and multiprocessors."""

    compute_capability: tuple[int, int]
    sm_count: int

    @classmethod
    def of(cls, *cards: NullCard) -> "Architecture":
        """The architecture that answers for `cards` of one capability, the same whichever of them are asked about:
        with the most multiprocessors of all known ones, since kernels that split their work over these take
        scratch for each part."""
        capability = cards[0].compute_capability
        known = [card.sm_count for card in load_catalogue() if card.compute_capability == capability]
        return cls(capability, max([*known, *(card.sm_count for card in cards)]))

    @property
    def endless_card(self) -> NullCard:
        """A card of this architecture that never runs out."""
        card = NullCard.sized(ENDLESS_BYTES, self.compute_capability)
        return card.with_multiprocessors(self.sm_count)


class Forecaster:
    """Forecasts of the job that `config` makes of `workload`; use it in a `with` block, from any thread.

    Workers, at most `workers`, start at the first question that the cache can't answer.
    """

    def __init__(
        self,
        workload: str,
        config: Mapping[str, Any],
        architecture: Architecture,
        cache: ForecastCache,
        log_path: Path | None = None,
        on_event: OnEvent | None = None,
        make: Callable[..., Worker] = Worker,
        workers: int = 1,
    ) -> None:
        self._workload = workload
        self._config = config
        self._architecture = architecture
        self._cache = cache
        self._log_path = log_path
        self._on_event = on_event
        self._make = make
        self._pool = WorkerPool(self._new_worker, workers)
        self._lock = threading.Lock()
        self._asked: dict[tuple[int, Hashable], Future[Any]] = {}
        self.workers = workers

    def __enter__(self) -> "Forecaster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()
        if self._pool.ready is not None:
            self._cache.job = self._pool.ready.job
        self._cache.save()

    @property
    def job(self) -> Job:
        """What is trained, and the recipe as written. Raises what the workload raises for a bad config."""
        if self._cache.job is None:
            self._cache.job = self._pool.start().job
        return self._cache.job

    def forecast(self, plan: Plan) -> Forecast:
        """What `plan` needs. Raises DeviceError where the null GPU can't work, AutotuneError for a plan that
        can't be."""
        return forecast_of(self._once(self._cache.outcomes, plan, lambda: self._whole(plan)).phases)

    def batch_need_bytes(self, plan: Plan) -> int:
        """The most that `plan` reserves, unseen parts at their largest, from a trial that ends with its steps.

        What sampling and saving take does not depend on the batch and is known from batch 1, so only that one
        is tried to the end.
        """
        single = plan.replace(BATCH_SIZE, 1)
        if plan == single or plan in self._cache.outcomes:
            return self.forecast(plan).reserved().high_bytes
        short = self._once(self._cache.steps_only, plan, lambda: self._whole(plan, to_the_end=False))
        alone = forecast_of(short.phases).reserved().high_bytes
        return max(alone, self.forecast(single).reserved().high_bytes)

    def squeeze(self, plan: Plan, room_bytes: int) -> Squeeze:
        """How PyTorch's allocator gets along with `plan` if it may reserve `room_bytes` and no more."""
        if room_bytes <= 0:
            return Squeeze.FAILS
        key = (plan, room_bytes)
        outcome = self._once(self._cache.squeezed, key, lambda: self._squeezed(plan, room_bytes))
        return _SQUEEZES[outcome.verdict]

    def account(self, plan: Plan, snapshot: Path | None = None) -> Account | None:
        """Where the bytes of `plan` go; None where this torch can't tell. With `snapshot` PyTorch's own memory
        snapshot is written there."""

        def recorded() -> Outcome:
            recording = Recording(None if snapshot is None else str(snapshot.absolute()))
            report = self._try(plan, record=recording)
            self._cache.accounts[plan] = report.account
            return _running(report)

        if snapshot is None:
            self._once(self._cache.outcomes, plan, recorded)  # the trial counts for the forecast as well
        if snapshot is not None or plan not in self._cache.accounts:
            self._cache.outcomes[plan] = recorded()
        return self._cache.accounts[plan]

    def _once(self, answers: MutableMapping[_Key, Outcome], key: _Key, ask: Callable[[], Outcome]) -> Outcome:
        """The answer for `key`, had by `ask` unless it is there or another thread is about to have it."""
        with self._lock:
            if key in answers:
                return answers[key]
            name = (id(answers), key)
            mine = name not in self._asked
            answer = self._asked.setdefault(name, Future())
        if not mine:
            return answer.result()  # type: ignore[no-any-return]
        try:
            outcome = answers[key] = ask()
        except BaseException as error:
            answer.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asked[name]
        answer.set_result(outcome)
        return outcome

    def _whole(self, plan: Plan, **options: Any) -> Outcome:
        return _running(self._try(plan, **options))

    def _squeezed(self, plan: Plan, room_bytes: int) -> Outcome:
        report = self._try(plan, room_bytes=room_bytes)
        if report.outcome.verdict not in _SQUEEZES:
            raise _no_forecast(report)
        return report.outcome

    def _try(self, plan: Plan, **options: Any) -> TrialReport:
        return self._pool.trial(plan, STEPS_TO_TIME, **options)

    def _new_worker(self) -> Worker:
        card = self._architecture.endless_card
        launch = Launch(environment=null_environment([card]), log_path=self._log_path, hang_after_s=HANG_AFTER_S)
        major, minor = card.compute_capability
        spec = DeviceSpec.parse(f"null:{ENDLESS_BYTES // GIB}GiB@{major}.{minor}")
        return self._make(self._workload, self._config, spec, launch=launch, on_event=self._on_event)


def _running(report: TrialReport) -> Outcome:
    """The outcome of a trial that ran through with all the memory it wants. Raises where it did not."""
    if report.outcome.fits:
        return report.outcome
    if report.kind is Kind.DEVICE_MEMORY:
        raise OutOfDeviceMemory(f"a plan needs more than {ENDLESS_BYTES // GIB:,} GiB.", "Make it smaller.")
    raise _no_forecast(report)


def _no_forecast(report: TrialReport) -> DeviceError:
    return DeviceError(f"no forecast: {report.outcome.reason}.", "Use --debug for the whole story.")
