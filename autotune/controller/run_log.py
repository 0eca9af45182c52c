"""The log of a run: logs/train.log for people and logs/events.jsonl for programs. Appends; never rewrites."""

import json
import math
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from autotune.controller.events import (
    DeviceEvent,
    Event,
    FittedEvent,
    JobEvent,
    NoteEvent,
    ProfileEvent,
    TrialEvent,
    WorkerEvent,
)
from autotune.controller.text import describe_trial, describe_worker_event
from autotune.errors import DiskError

Clock = Callable[[], datetime]


class RunLog:
    """Both files of one run, flushed at every event so that a crash loses nothing. A context manager."""

    def __init__(self, folder: Path, clock: Clock = lambda: datetime.now().astimezone()) -> None:
        """Open the files in `folder`, which is made if need be. Raises DiskError."""
        self.log_path = folder / "train.log"
        self.events_path = folder / "events.jsonl"
        self._clock = clock
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._log, self._events = map(_open_for_any_text, (self.log_path, self.events_path))
        except OSError as error:
            raise DiskError(
                f"logs can't be written in {folder}: {error.strerror}.", "Set logging_dir to another folder."
            ) from error

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self._log.close()
        self._events.close()

    def tell(self, event: Event) -> None:
        """Write one event to both files; progress within a trial or a phase goes to neither."""
        if isinstance(event, WorkerEvent) and _is_progress(event):
            return
        self._append(event.to_json())
        for line in _lines(event):
            self.line(line)

    def line(self, text: str) -> None:
        """One line with the time in front, in train.log alone."""
        self._write(self._log, f"{self._clock():%Y-%m-%d %H:%M:%S} {text}\n")

    def failed(self, error: BaseException) -> None:
        """The error with its whole traceback, the worker's included."""
        self._append({"event": "error", "kind": type(error).__name__, "text": str(error)})
        self.line("".join(traceback.format_exception(error)).rstrip())

    def _append(self, body: dict[str, Any]) -> None:
        record = {"time": self._clock().isoformat(timespec="milliseconds"), **body}
        self._write(self._events, json.dumps(_strict(record), ensure_ascii=False, allow_nan=False) + "\n")

    def _write(self, file: TextIO, text: str) -> None:
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            raise DiskError(f"{file.name} can't be written: {error.strerror}.", "Free disk space.") from error


def _open_for_any_text(path: Path) -> TextIO:
    """File names need not be UTF-8: what can't be encoded is written as an escape, which JSON has too."""
    return path.open("a", encoding="utf-8", errors="backslashreplace")


def _strict(value: Any) -> Any:
    """`value` with null for what JSON has no number for: the loss of an overflow is NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value


def _is_progress(event: WorkerEvent) -> bool:
    return "phase" in event.body or (
        event.body.get("event") == "phase" and event.body["done"] < event.body["total"]
    )


def _lines(event: Event) -> list[str]:
    match event:
        case NoteEvent(text):
            return [text]
        case DeviceEvent(reading):
            return [f"device {reading.name} ({reading.spec}): {reading.budget.explain()}", *reading.notes]
        case JobEvent(ready):
            return [f"job {ready.job.label}", *ready.job.notes, *ready.warnings]
        case TrialEvent(number, step):
            return [f"trial {number}: {describe_trial(step)}"]
        case FittedEvent(_, receipts):
            return [f"receipt: {line}" for line in receipts]
        case ProfileEvent(digest, location, action):
            return [f"profile {digest[:12]} {action}: {location}"]
        case WorkerEvent(body):
            return [describe_worker_event(body)]
