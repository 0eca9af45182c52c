"""The messages between the controller and a worker: one JSON object per line, each way.

Owns their names, their encoding and the records they carry. Must never import torch, start a process or touch
a device: both ends import it.

Requests carry `op` and a number `id`; everything the worker says carries `kind`, and answers repeat the `id`.
A request is followed by any number of `progress`, `event` and `heartbeat` messages and exactly one answer:
the kind below that belongs to the op, or `error`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import autotune.errors
from autotune.device.session import Evidence
from autotune.errors import AutotuneError, WorkerError
from autotune.memory.account import Account
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome
from autotune.trial.workload import Job

STEPS_TO_FIT = 2  # the first makes the optimizer's state, so only the second meets the true peak
STEPS_TO_TIME = 3  # the first warms up


class Op(StrEnum):
    """What the controller may ask."""

    OPEN = "open"  # workload, config, device, budget_bytes -> ready
    TRIAL = "trial"  # plan, steps, lift_budget, record, to_the_end, room_bytes -> outcome
    RUN = "run"  # plan -> summary
    CLOSE = "close"  # -> closed


class Say(StrEnum):
    """What a worker may say."""

    READY = "ready"
    OUTCOME = "outcome"
    SUMMARY = "summary"
    CLOSED = "closed"
    ERROR = "error"
    PROGRESS = "progress"  # the work moved on: a phase began or ended, a step ended
    EVENT = "event"  # the workload's own report during a full run; counts as progress
    HEARTBEAT = "heartbeat"  # the process lives; says nothing about progress


@dataclass(frozen=True)
class Ready:
    """A worker with its workload made and its device open.

    `device` holds facts about it (name, evidence, torch device, CUDA build and driver where there is one),
    `versions` the installed versions of the packages that shape memory, `warnings` one line each.
    """

    job: Job
    device: Mapping[str, Any]
    versions: Mapping[str, str]
    warnings: Sequence[str] = field(default_factory=tuple)

    @property
    def evidence(self) -> Evidence:
        """The class of every number this worker measures."""
        return Evidence(self.device["evidence"])

    def to_json(self) -> dict[str, Any]:
        """The JSON form that crosses the pipe."""
        return {
            "job": self.job.to_json(),
            "device": dict(self.device),
            "versions": dict(self.versions),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Ready":
        """The record whose JSON form is `values`."""
        job = Job.from_json(values["job"])
        return cls(job, values["device"], values["versions"], tuple(values["warnings"]))


@dataclass(frozen=True)
class Recording:
    """That a trial shall be recorded; `snapshot` is the path for PyTorch's own memory snapshot, if one is wanted
    (it holds the Python stack of each allocation, which takes time)."""

    snapshot: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON form that crosses the pipe."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any] | None) -> "Recording | None":
        """The recording whose JSON form is `values`; None for None."""
        return None if values is None else cls(**values)


@dataclass(frozen=True)
class TrialReport:
    """One trial as the worker saw it: the outcome, what failed, and the state the worker is left in.

    `kind` is what ran out (None for a trial that ran through). `leftover_bytes` is what stayed allocated on
    the device above the worker's baseline; `clean` says it is nothing. Unless `reusable`, replace the
    worker. `needs_more_than_bytes` is a lower bound of the plan's need, known after an out-of-memory that
    names what was asked for. `traceback` is for the log. `account` tells where the bytes went, if the trial was
    recorded; `place` the line of code in which it failed.
    """

    outcome: Outcome
    kind: Kind | None = None
    clean: bool = True
    leftover_bytes: int = 0
    reusable: bool = True
    needs_more_than_bytes: int | None = None
    traceback: str = ""
    account: Account | None = None
    place: str = ""

    def to_json(self) -> dict[str, Any]:
        """The JSON form that crosses the pipe."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        account = self.account.to_json() if self.account else None
        return values | {"outcome": self.outcome.to_json(), "account": account}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrialReport":
        """The record whose JSON form is `values`."""
        kind = Kind(values["kind"]) if values["kind"] is not None else None
        account = Account.from_json(values["account"]) if values["account"] else None
        outcome = Outcome.from_json(values["outcome"])
        return cls(**{**values, "outcome": outcome, "kind": kind, "account": account})


@dataclass(frozen=True)
class Failure:
    """An exception on its way through the pipe. `error_class` is a name of `autotune.errors` when the worker
    raised one of those, else empty; then `fact` is the root cause."""

    error_class: str
    fact: str
    way_out: str = ""
    traceback: str = ""

    @classmethod
    def of_error(cls, error: AutotuneError, traceback: str = "") -> "Failure":
        """The record of an error for users; a subclass we don't know travels as its nearest known parent."""
        names = (known.__name__ for known in type(error).__mro__ if known.__module__ == "autotune.errors")
        return cls(next(names), error.fact, error.way_out, traceback)

    @classmethod
    def of_kind(cls, kind: Kind, fact: str, traceback: str = "") -> "Failure":
        """The record of any other exception: the error for users that belongs to what ran out."""
        error_class, way_out = _ERRORS.get(kind, ("WorkerError", ""))
        return cls(error_class, fact, way_out, traceback)

    def to_json(self) -> dict[str, Any]:
        """The JSON form that crosses the pipe."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Failure":
        """The record whose JSON form is `values`."""
        return cls(**values)

    def to_error(self) -> AutotuneError:
        """The error to raise in the controller, with the worker's traceback as a note for the log."""
        error = _error_class(self.error_class)(self.fact, self.way_out)
        if self.traceback:
            error.add_note(f"In the worker:\n{self.traceback}")
        return error


def encode(message: Mapping[str, Any]) -> bytes:
    """One line. Raises TypeError for a value that JSON lacks (a workload's report must be plain data)."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message on `line`. Raises WorkerError when it is not one JSON object."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise WorkerError(f"broken message {_shorten(line)}: {error}.") from None
    if not isinstance(message, dict):
        raise WorkerError(f"broken message {_shorten(line)}: not a JSON object.")
    return message


# What to raise and to advise when an exception that is not ours says that something ran out.
_ERRORS = {
    Kind.DEVICE_MEMORY: ("OutOfDeviceMemory", "Let autotune find a plan that fits: train with --fit-vram."),
    Kind.HOST_MEMORY: ("WorkerError", "Host memory ran out, not the GPU's: close other programs."),
    Kind.DISK: ("DiskError", "Free some space and run again."),
    Kind.SHARED_MEMORY: ("WorkerError", "Raise the shared memory limit (docker: --shm-size=8g)."),
}  # fmt: skip


def _error_class(name: str) -> type[AutotuneError]:
    known = getattr(autotune.errors, name, None)
    return known if isinstance(known, type) and issubclass(known, AutotuneError) else WorkerError


def _shorten(line: bytes) -> str:
    text = line[:80].decode("utf-8", "replace").strip()
    return repr(text + ("…" if len(line) > 80 else ""))
