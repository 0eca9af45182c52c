"""Forecasts of one job on one architecture: trials on a null card without an end, each plan once and for all.

Owns the null worker and the cache of what it answered. One trial tells of every card of the architecture, for with
as much memory as it wants PyTorch's allocator reserves the same bytes as on any card that has them. Must never
start a worker for what is in the cache.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from autotune.controller.forecast_cache import ForecastCache
from autotune.device.null.card import NullCard
from autotune.device.null.environment import null_environment
from autotune.device.session import DeviceSpec
from autotune.errors import DeviceError, OutOfDeviceMemory
from autotune.ladder.plan import BATCH_SIZE, Plan
from autotune.memory.account import Account
from autotune.memory.forecast import Forecast, forecast_of
from autotune.trial.client import OnEvent, Worker
from autotune.trial.outcome import Outcome
from autotune.trial.process import Launch
from autotune.trial.protocol import STEPS_TO_TIME, Recording
from autotune.trial.workload import Job
from autotune.units import GIB

ENDLESS_BYTES = 4096 * GIB
"""More than any plan needs, so that every peak is a whole one."""
HANG_AFTER_S = 300.0


@dataclass(frozen=True)
class Architecture:
    """What of a card shapes a plan's memory, apart from how much there is: capability and multiprocessors."""

    compute_capability: tuple[int, int]
    sm_count: int

    @classmethod
    def of(cls, *cards: NullCard) -> "Architecture":
        """The architecture that answers for `cards` of one capability: the most multiprocessors among them, since
        kernels that split their work over these take scratch for each part."""
        return cls(cards[0].compute_capability, max(card.sm_count for card in cards))

    @property
    def endless_card(self) -> NullCard:
        """A card of this architecture that never runs out."""
        card = NullCard.sized(ENDLESS_BYTES, self.compute_capability)
        return card.with_multiprocessors(self.sm_count)


class Forecaster:
    """Forecasts of the job that `config` makes of `workload`; use it in a `with` block.

    The worker starts at the first question that the cache can't answer.
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
    ) -> None:
        self._workload = workload
        self._config = config
        self._architecture = architecture
        self._cache = cache
        self._log_path = log_path
        self._on_event = on_event
        self._make = make
        self._worker: Worker | None = None

    def __enter__(self) -> "Forecaster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._cache.save()

    @property
    def job(self) -> Job:
        """What is trained, and the recipe as written. Raises what the workload raises for a bad config."""
        if self._cache.job is None:
            self._open()
        assert self._cache.job is not None
        return self._cache.job

    def forecast(self, plan: Plan) -> Forecast:
        """What `plan` needs. Raises DeviceError where the null GPU can't work, AutotuneError for a plan that
        can't be."""
        outcome = self._cache.outcomes.get(plan)
        if outcome is None:
            outcome = self._cache.outcomes[plan] = self._try(plan, None)[0]
        return forecast_of(outcome.phases)

    def batch_need_bytes(self, plan: Plan) -> int:
        """The most that `plan` reserves, unseen parts at their largest, from a trial that ends with its steps.

        What sampling and saving take does not depend on the batch and is known from batch 1, so only that one
        is tried to the end.
        """
        single = plan.replace(BATCH_SIZE, 1)
        if plan == single or plan in self._cache.outcomes:
            return self.forecast(plan).reserved().high_bytes
        if plan not in self._cache.steps_only:
            self._cache.steps_only[plan] = self._try(plan, None, to_the_end=False)[0]
        alone = forecast_of(self._cache.steps_only[plan].phases).reserved().high_bytes
        return max(alone, self.forecast(single).reserved().high_bytes)

    def account(self, plan: Plan, snapshot: Path | None = None) -> Account | None:
        """Where the bytes of `plan` go. With `snapshot` PyTorch's own memory snapshot is written there."""
        if snapshot is None and plan in self._cache.accounts:
            return self._cache.accounts[plan]
        recording = Recording(None if snapshot is None else str(snapshot.absolute()))
        outcome, account = self._try(plan, recording)
        self._cache.outcomes[plan] = outcome
        if account is not None:
            self._cache.accounts[plan] = account
        return account

    def _try(
        self, plan: Plan, recording: Recording | None, to_the_end: bool = True
    ) -> tuple[Outcome, Account | None]:
        report = self._open().trial(plan, STEPS_TO_TIME, record=recording, to_the_end=to_the_end)
        if not report.reusable:
            self._close()
        if report.outcome.fits:
            return report.outcome, report.account
        if report.kind is not None and report.kind.name == "DEVICE_MEMORY":
            raise OutOfDeviceMemory(f"a plan needs more than {ENDLESS_BYTES // GIB:,} GiB.", "Make it smaller.")
        raise DeviceError(f"no forecast: {report.outcome.reason}.", "Use --debug for the whole story.")

    def _open(self) -> Worker:
        if self._worker is None:
            card = self._architecture.endless_card
            launch = Launch(
                environment=null_environment([card]), log_path=self._log_path, hang_after_s=HANG_AFTER_S
            )
            major, minor = card.compute_capability
            spec = DeviceSpec.parse(f"null:{ENDLESS_BYTES // GIB}GiB@{major}.{minor}")
            self._worker = self._make(self._workload, self._config, spec, launch=launch, on_event=self._on_event)
            self._cache.job = self._worker.open().job
        return self._worker

    def _close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
