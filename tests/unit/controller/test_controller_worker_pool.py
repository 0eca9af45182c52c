"""The pool lends each worker to one thread at a time, never has more than it may, and leaves none behind."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autotune.controller.worker_pool import WorkerPool
from autotune.errors import ConfigError, DataError, WorkerError
from autotune.ladder.plan import Plan
from autotune.testing.null_workers import START, NullWorker, NullWorkers, crashed, report_of
from autotune.trial.protocol import Ready, TrialReport

WITHIN_S = 60  # a bound for broken code, not a measure of speed


class Meeting(NullWorkers):
    """Workers whose trials wait until as many run as were invited, or until they are aborted."""

    def __init__(self, invited: int) -> None:
        super().__init__()
        self.together = threading.Barrier(invited)
        self.aborted = threading.Event()

    def __call__(self, *arguments: Any, **rest: Any) -> "Guest":
        self.devices.append("null")
        return Guest(self)


class Guest(NullWorker):
    """One of them."""

    workers: Meeting

    def trial(self, plan: Plan, steps: int, **options: Any) -> TrialReport:
        try:
            self.workers.together.wait(WITHIN_S)
        except threading.BrokenBarrierError:
            return crashed(report_of(plan))
        return super().trial(plan, steps, **options)

    def abort(self) -> None:
        self.workers.aborted.set()
        self.workers.together.abort()


def pool_of(workers: NullWorkers, most: int = 1) -> WorkerPool:
    return WorkerPool(lambda: workers("a:b", {}, None), most)  # type: ignore[arg-type, return-value]


def test_as_many_trials_as_workers_run_at_once_and_no_more_are_started() -> None:
    workers = Meeting(2)
    pool = pool_of(workers, 2)
    with ThreadPoolExecutor(8) as threads:
        reports = list(threads.map(lambda _: pool.trial(START, 3), range(8)))
    assert all(report.outcome.fits for report in reports)
    assert workers.opened == len(workers.devices) == 2
    pool.close()
    assert workers.closed == 2


def test_all_workers_are_opened_at_the_start_and_used_again() -> None:
    workers = Meeting(2)
    pool = pool_of(workers, 2)
    assert pool.start() == pool.ready
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: pool.trial(START, 3), range(4)))
    pool.close()
    assert workers.opened == workers.closed == 2


def test_closing_aborts_what_runs_and_lets_nothing_begin() -> None:
    workers = Meeting(2)  # the other never comes
    pool = pool_of(workers)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(pool.trial, START, 3) for _ in range(2)]  # the second waits for the worker
        while not workers.together.n_waiting:
            assert not running[0].done()
        pool.close()
        endings = [future.exception() or future.result() for future in running]
    assert workers.aborted.is_set()
    assert [type(end) for end in endings] == [TrialReport, WorkerError]
    assert workers.closed == len(workers.devices) == 1
    with pytest.raises(WorkerError, match="no workers any more"):
        pool.trial(START, 3)


def test_a_worker_that_opens_while_the_pool_closes_is_ended_and_does_nothing() -> None:
    workers = NullWorkers()
    pool = pool_of(workers)
    opened = NullWorker.open

    def open_late(worker: NullWorker) -> Ready:
        closing = threading.Thread(target=pool.close)
        closing.start()
        while not pool._closed:
            assert closing.is_alive()
        return opened(worker)

    worker = NullWorker(workers)
    worker.open = lambda: open_late(worker)  # type: ignore[method-assign]
    pool._make = lambda: worker  # type: ignore[assignment, return-value]
    with pytest.raises(WorkerError, match="no workers any more"):
        pool.trial(START, 3)
    assert (workers.closed, workers.tried) == (1, [])


def test_a_worker_that_can_t_be_used_again_is_replaced() -> None:
    workers = NullWorkers()
    pool = pool_of(workers)
    workers.change = crashed
    assert not pool.trial(START, 3).reusable
    assert workers.closed == 1
    workers.change = lambda report: report
    assert pool.trial(START, 3).outcome.fits
    pool.close()
    assert workers.opened == workers.closed == 2


def raising(error: Exception) -> Callable[[TrialReport], TrialReport]:
    def change(report: TrialReport) -> TrialReport:
        raise error

    return change


def test_an_error_of_a_trial_reaches_who_asked_and_leaves_no_worker() -> None:
    workers = NullWorkers()
    pool = pool_of(workers)
    workers.change = raising(DataError("cat.png is broken."))
    with pytest.raises(DataError, match="cat"):
        pool.trial(START, 3)
    assert workers.closed == 1
    pool.close()


def test_an_error_at_the_start_reaches_who_asked_and_leaves_no_worker() -> None:
    workers = NullWorkers()
    workers.fault = ConfigError("resolution can't be 3.")
    pool = pool_of(workers, 2)
    with pytest.raises(ConfigError, match="can't be 3"):
        pool.start()
    pool.close()
    assert workers.closed == len(workers.devices)
