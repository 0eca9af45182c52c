"""A few workers of one job, lent to threads one trial at a time.

Owns how many there are and that each is ended. It must never run two trials on one worker at once, and never leave
a worker behind, whatever its borrower was doing.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from autotune.errors import WorkerError
from autotune.ladder.plan import Plan
from autotune.trial.client import Worker
from autotune.trial.protocol import Ready, TrialReport

_LET_GO_WITHIN_S = 20.0
_NO_MORE = ("there are no workers any more.", "They were closed.")


class WorkerPool:
    """At most `most` workers, each made by `make` when there is a trial and no idle one. For any thread."""

    def __init__(self, make: Callable[[], Worker], most: int = 1) -> None:
        self._make = make
        self._most = most
        self._idle: list[Worker] = []
        self._lent: list[Worker] = []
        self._closed = False
        self._changed = threading.Condition()
        self.ready: Ready | None = None
        """What the first worker told, once there was one."""

    def start(self) -> Ready:
        """Open every worker at once, since that takes seconds; what the first one tells. Raises what it raises."""
        for _ in range(self._most - 1):
            threading.Thread(target=self._open_ahead, name="open-worker", daemon=True).start()
        worker = self._take()
        self._put_back(worker)
        return worker.ready

    def trial(self, plan: Plan, steps: int, **options: Any) -> TrialReport:
        """One trial on a worker that is free; waits for one. Raises what opening one and `Worker.trial` raise."""
        worker = self._take()
        try:
            report = worker.trial(plan, steps, **options)
        except BaseException:
            self._end(worker)
            raise
        if report.reusable:
            self._put_back(worker)
        else:
            self._end(worker)
        return report

    def close(self) -> None:
        """End every worker; a trial that is running fails, and none begins any more."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            lent = list(self._lent)
            self._changed.notify_all()
        for worker in lent:
            worker.abort()
        for worker in idle:
            worker.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._lent, _LET_GO_WITHIN_S)

    def _open_ahead(self) -> None:
        with suppress(Exception):  # whoever needs this worker meets the error
            self._put_back(self._take(fresh=True))

    def _take(self, fresh: bool = False) -> Worker:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or len(self._lent) < self._most)
            if self._closed:
                raise WorkerError(*_NO_MORE)
            worker = self._make() if fresh or not self._idle else self._idle.pop()
            self._lent.append(worker)
        return self._opened(worker)

    def _opened(self, worker: Worker) -> Worker:
        if worker.pid is None:
            try:
                self.ready = worker.open()
            except BaseException:
                self._end(worker)
                raise
        if self._closed:
            self._end(worker)
            raise WorkerError(*_NO_MORE)
        return worker

    def _put_back(self, worker: Worker) -> None:
        with self._changed:
            if not self._closed:
                self._lent.remove(worker)
                self._idle.append(worker)
                self._changed.notify_all()
                return
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        try:
            worker.close()
        finally:
            with self._changed:
                self._lent.remove(worker)
                self._changed.notify_all()
