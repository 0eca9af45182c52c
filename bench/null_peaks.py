"""What plans need on a null GPU that never runs out, each plan tried once: the truth that the probe bench asks.

Owns the workers and what they answered. With as much memory as it wants, PyTorch's allocator reserves the same
bytes as on any card it fits, so one peak tells of every card of that architecture whether the plan fits: exactly
where the peak is at most the room. (Where it is not, the allocator fails or has to give its cache back and retry,
and neither counts as a fit.)
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.device.null.card import NullCard
from autotune.device.null.environment import null_environment
from autotune.device.session import DeviceSpec
from autotune.errors import AutotuneError
from autotune.ladder.plan import Plan
from autotune.trial.client import Worker
from autotune.trial.outcome import Outcome
from autotune.trial.process import Launch
from autotune.trial.protocol import STEPS_TO_FIT
from autotune.trial.workload import Job
from autotune.units import GIB

FACTORY = "trainer.forecast:create"
ENDLESS_BYTES = 4096 * GIB


@dataclass(frozen=True)
class Stack:
    """A null GPU beside a job: the architecture, and what cuDNN asks for at every convolution."""

    capability: tuple[int, int]
    workspace_bytes: int = 0

    @property
    def card(self) -> NullCard:
        """The endless card of this architecture."""
        return NullCard.sized(ENDLESS_BYTES, self.capability).with_convolution_workspace(self.workspace_bytes)

    @property
    def spec(self) -> DeviceSpec:
        """How a worker is told of it; the workspace is in its environment."""
        return DeviceSpec.parse(f"null:{ENDLESS_BYTES // GIB}GiB@{self.capability[0]}.{self.capability[1]}")


class Peaks:
    """One job on one stack. A worker starts at the first question; `close` ends it. Safe to ask from threads."""

    def __init__(self, config: Mapping[str, Any], stack: Stack, log: Path | None = None) -> None:
        self._config = config
        self._stack = stack
        self._log = log
        self._worker: Worker | None = None
        self._outcomes: dict[Plan, Outcome] = {}
        self._lock = threading.Lock()

    @property
    def runs(self) -> int:
        """How many plans have been tried."""
        return len(self._outcomes)

    def job(self) -> Job:
        """What the job is."""
        with self._lock:
            return self._open().ready.job

    def outcome(self, plan: Plan) -> Outcome:
        """The trial of `plan`. Raises AutotuneError where it did not run through."""
        with self._lock:
            if plan not in self._outcomes:
                report = self._open().trial(plan, STEPS_TO_FIT)
                if not report.outcome.fits:
                    raise AutotuneError(f"{plan.to_json()} did not run through: {report.outcome.reason}")
                self._outcomes[plan] = report.outcome
            return self._outcomes[plan]

    def need_bytes(self, plan: Plan) -> int:
        """The bytes `plan` reserves at its peak."""
        return self.outcome(plan).peak_reserved_bytes or 0

    def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _open(self) -> Worker:
        if self._worker is None:
            environment = null_environment([self._stack.card])
            launch = Launch(environment=environment, log_path=self._log)
            self._worker = Worker(FACTORY, self._config, self._stack.spec, launch=launch)
            self._worker.open()
        return self._worker
