"""What happens in a task, as records: one stream for screen, log and JSON events. Owns no output."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.device.probe import DeviceReading
from autotune.ladder.plan import Plan
from autotune.ladder.receipts import describe_change
from autotune.trial.protocol import Ready
from autotune.trial.search import SearchStep

NOTE = "note"


@dataclass(frozen=True)
class NoteEvent:
    """One sentence worth reading. `label` is the word shown before it: `note` warns, others tell."""

    text: str
    label: str = NOTE

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"event": "note", "text": self.text}


@dataclass(frozen=True)
class DeviceEvent:
    """The device was read."""

    reading: DeviceReading

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"event": "device", **device_json(self.reading)}


@dataclass(frozen=True)
class JobEvent:
    """The worker has made the workload."""

    ready: Ready

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"event": "job", **self.ready.to_json()}


@dataclass(frozen=True)
class TrialEvent:
    """One trial ended. `number` counts from 1."""

    number: int
    step: SearchStep

    def to_json(self) -> dict[str, Any]:
        """The JSON form: one row of the table of trials."""
        return {"event": "trial", **trial_json(self.number, self.step)}


@dataclass(frozen=True)
class FittedEvent:
    """A plan was chosen: by trials, or from a profile. `receipts` are lines for people."""

    plan: Plan
    receipts: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"event": "fitted", "plan": self.plan.to_json(), "receipts": list(self.receipts)}


@dataclass(frozen=True)
class ProfileEvent:
    """A profile was written or used."""

    digest: str
    location: str
    action: str

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"event": "profile", **self.__dict__}


@dataclass(frozen=True)
class WorkerEvent:
    """What the worker reports as it goes: phases and steps of trials and of the full run."""

    body: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"event": "worker", **self.body}


Event = NoteEvent | DeviceEvent | JobEvent | TrialEvent | FittedEvent | ProfileEvent | WorkerEvent


def device_json(reading: DeviceReading) -> dict[str, Any]:
    """A device reading without anything that names the machine: no UUID, no process number."""
    gpu = reading.gpu
    return {
        "device": str(reading.spec),
        "name": reading.name,
        "total_bytes": reading.total_bytes,
        "free_bytes": reading.free_bytes,
        "budget_bytes": reading.budget.bytes,
        "budget": reading.budget.explain(),
        "compute_capability": list(gpu.compute_capability) if gpu and gpu.compute_capability else None,
        "driver_version": reading.driver_version or None,
        "display_active": gpu.display_active if gpu else None,
        "mig": bool(gpu and gpu.mig_enabled),
        "used_by_processes_bytes": [use.used_bytes for use in reading.processes],
        "notes": list(reading.notes),
    }


def trial_json(number: int, step: SearchStep) -> dict[str, Any]:
    """One trial: its number, direction, single change and outcome."""
    change = step.step.change
    return {
        "number": number,
        "direction": step.step.direction.value,
        "change": describe_change(change) if change else "",
        **step.outcome.to_json(),
    }
