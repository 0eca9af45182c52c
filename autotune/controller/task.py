"""A task: which workload on which device, under which ladder and limit, and where its memory is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.controller.events import DeviceEvent, Event, NoteEvent, WorkerEvent
from autotune.device.probe import DeviceReading, reading_for
from autotune.device.session import DeviceSpec
from autotune.ladder.ladders import Ladder
from autotune.profile.build import Card
from autotune.store.confirmations import Confirmations
from autotune.store.store import ProfileStore
from autotune.trial.client import Worker
from autotune.trial.process import Launch
from autotune.trial.protocol import Ready
from autotune.trial.search import WarmWorker

Tell = Callable[[Event], None]


@dataclass(frozen=True)
class Task:
    """What to fit. `config` goes to the workload's factory as it is; `limit_bytes` is the user's limit.
    `forecast_workload` is the factory of the same job on the null GPU; None walks by trials alone."""

    workload: str
    config: Mapping[str, Any]
    device: DeviceSpec
    ladder: Ladder
    store: ProfileStore
    limit_bytes: int | None = None
    worker_log: Path | None = None
    confirmations: Confirmations = field(default_factory=Confirmations)
    forecast_workload: str | None = None


def read_device(task: Task, tell: Tell) -> DeviceReading:
    """The task's device and its budget, told to the listener. Raises DeviceError."""
    reading = reading_for(task.device, limit_bytes=task.limit_bytes)
    tell(DeviceEvent(reading))
    return reading


def warm_worker(task: Task, reading: DeviceReading, tell: Tell) -> WarmWorker:
    """A worker for the task under the reading's budget; not started yet."""

    def make() -> Worker:
        return Worker(
            task.workload,
            task.config,
            task.device,
            reading.budget.bytes,
            Launch(log_path=task.worker_log),
            lambda event: tell(WorkerEvent(event)),
        )

    return WarmWorker(make, lambda line: tell(NoteEvent(line)))


def card_of(reading: DeviceReading, ready: Ready) -> Card:
    """The card as profiles know it; what the context takes is the worker's to tell."""
    capability = reading.gpu.compute_capability if reading.gpu else None
    return Card(
        name=reading.name,
        total_bytes=reading.total_bytes,
        compute_capability="{}.{}".format(*capability) if capability else None,
        context_bytes=int(ready.device.get("context_bytes", 0)),
    )
