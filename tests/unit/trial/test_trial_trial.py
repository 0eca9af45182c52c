"""One trial, in this process: what it runs, what it measures, how it fails and what it leaves behind."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from autotune.device.session import Evidence
from autotune.device.virtual import VirtualSession
from autotune.errors import DataError
from autotune.ladder.plan import Plan
from autotune.trial.oom import Kind, forget
from autotune.trial.outcome import Verdict
from autotune.trial.protocol import TrialReport
from autotune.trial.trial import Bench, run_trial, settle
from autotune.units import MIB
from tests.workloads import troubled
from tests.workloads.tiny_text import TinyText
from tests.workloads.troubled import Trouble, plan_with


def bench(size_bytes: int = 64 * MIB, **changes: Any) -> Bench:
    return Bench(VirtualSession(size_bytes), 0, **{"progress": lambda event: None, **changes})


def try_trouble(trouble: Trouble, **changes: Any) -> TrialReport:
    return run_trial(troubled.create({}), plan_with(trouble), bench(**changes))


@pytest.fixture(autouse=True)
def _no_leak_outlives_its_test() -> Iterator[None]:
    yield
    troubled.LEAKED.clear()


def test_a_trial_runs_the_phases_and_steps_in_order_and_says_so() -> None:
    events: list[Mapping[str, Any]] = []
    report = try_trouble(Trouble.NONE, progress=events.append)
    assert events == [
        {"phase": "open"},
        {"phase": "prepare"},
        {"phase": "step"},
        {"phase": "step", "step": 1, "of": 3},
        {"phase": "step", "step": 2, "of": 3},
        {"phase": "step", "step": 3, "of": 3},
        {"phase": "sample"},
    ]
    assert [peak.phase for peak in report.outcome.phases] == ["open", "prepare", "step", "sample"]
    assert report.outcome.fits
    assert report.reusable


def test_a_trial_never_takes_fewer_than_two_steps() -> None:
    events: list[Mapping[str, Any]] = []
    run_trial(troubled.create({}), plan_with(Trouble.NONE), bench(progress=events.append), steps=1)
    assert events[-2] == {"phase": "step", "step": 2, "of": 2}


def test_the_step_time_is_the_median_of_the_steps_after_the_first() -> None:
    ticks = iter([0.0, 9.0, 10.0, 10.1, 20.0, 20.3])
    report = try_trouble(Trouble.NONE, clock=lambda: next(ticks))
    assert report.outcome.step_ms == pytest.approx(200)


@pytest.mark.parametrize(
    ("trouble", "phase"),
    [
        (Trouble.OOM_OPEN, "open"),
        (Trouble.OOM_BEFORE, "prepare"),
        (Trouble.OOM_FORWARD, "step: forward"),
        (Trouble.OOM_BACKWARD, "step: backward"),
        (Trouble.OOM_OPTIMIZER, "step: optimizer"),
        (Trouble.OOM_AFTER, "sample"),
        (Trouble.OOM_WRAPPED, "step"),
    ],
)
def test_an_oom_anywhere_is_an_outcome_with_its_place_and_leaves_nothing(trouble: Trouble, phase: str) -> None:
    report = try_trouble(trouble)
    assert report.outcome.verdict is Verdict.OOM
    assert report.outcome.failed_phase == phase
    assert "Tried to allocate 256.00 MiB" in report.outcome.reason
    assert "\n" not in report.outcome.reason
    assert (report.kind, report.clean, report.leftover_bytes) == (Kind.DEVICE_MEMORY, True, 0)
    assert report.reusable


def test_a_real_job_out_of_memory_in_backward_gives_every_byte_back_and_runs_again() -> None:
    """A failed backward pins storages that no garbage collection finds; the next trial must not pay for it."""
    job = TinyText({"batch_size": 16, "layers": 2, "length": 32})
    roomy = bench()
    plan = job.job().recipe.plan
    peak = run_trial(job, plan, roomy).outcome.peak_allocated_bytes
    assert peak is not None
    verdicts = []
    for share in (0.95, 0.8, 0.6, 0.4, 0.2, 0.05):
        small = bench(int(peak * share))
        report = run_trial(job, plan, small)
        verdicts.append((report.outcome.verdict, report.clean, report.leftover_bytes))
    assert verdicts == [(Verdict.OOM, True, 0)] * 6
    exact = run_trial(job, plan, bench(peak))
    assert exact.outcome.fits
    assert exact.outcome.peak_allocated_bytes == peak


def test_what_a_failed_backward_pins_is_freed_though_garbage_collection_does_not_see_it() -> None:
    """Branches of the graph that wait in the engine's queue when backward fails outlive the exception."""
    device = VirtualSession(64 * MIB)

    def fail_in_backward() -> None:
        with device.scope():
            early = torch.ones(256, 256, requires_grad=True)
            branches = [(early * factor).square() for factor in range(4)]
            hidden = troubled.Pass.apply(torch.ones(256, 256, requires_grad=True), Trouble.OOM_BACKWARD)
            for branch in branches:
                hidden = hidden * branch
            hidden.sum().backward()

    try:
        fail_in_backward()
    except torch.OutOfMemoryError as error:
        forget(error)
    gc.collect()
    assert device.statistics()["allocated_bytes.all.current"] > 0
    assert settle(device, 0).leftover_bytes == 0


def test_the_need_of_a_plan_that_failed_is_at_least_what_it_held_plus_what_it_asked_for() -> None:
    job = TinyText({"batch_size": 16})
    plan = job.job().recipe.plan
    peak = run_trial(job, plan, bench()).outcome.peak_allocated_bytes
    assert peak is not None
    bound = run_trial(job, plan, bench(peak - MIB)).needs_more_than_bytes
    assert bound is not None
    assert peak - 2 * MIB < bound <= peak


def test_a_leak_makes_the_worker_unclean_even_when_the_plan_fits() -> None:
    report = try_trouble(Trouble.LEAK)
    assert report.outcome.fits
    assert (report.clean, report.leftover_bytes, report.reusable) == (False, 4 * MIB, False)


def test_a_crash_is_no_memory_and_names_its_root_cause() -> None:
    report = try_trouble(Trouble.CRASH)
    assert (report.outcome.verdict, report.kind) == (Verdict.CRASHED, Kind.OTHER)
    assert report.outcome.reason.startswith(
        "RuntimeError: the batch can't be built (root cause: KeyError: 'latents' at troubled.py:"
    )
    assert "Traceback" in report.traceback


def test_an_error_for_the_user_is_raised_after_the_clean_up() -> None:
    here = bench()
    with pytest.raises(DataError, match=r"cat\.png is broken\. Replace it\.") as caught:
        run_trial(troubled.create({}), plan_with(Trouble.USER_ERROR), here)
    assert here.device.statistics()["allocated_bytes.all.current"] == 0
    assert "Traceback" in caught.value.__notes__[0]


class CountingDevice:
    """A device that only counts: it reports what it is told to and enforces nothing."""

    name = "counting"
    torch_device = torch.device("cpu")

    def __init__(self, peak_bytes: int, retries: int = 0, evidence: Evidence = Evidence.MEASURED) -> None:
        self.evidence = evidence
        self.peak_bytes = peak_bytes
        self.retries_per_reading = retries
        self.retries = 0

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    host = scope

    def place(self, thing: Any) -> Any:
        return thing

    evict = place

    def limit(self, budget_bytes: int) -> None: ...

    def reset_peak(self) -> None: ...

    def empty_cache(self) -> None: ...

    def synchronize(self) -> None: ...

    def context_bytes(self) -> int:
        return 100 * MIB

    def statistics(self) -> dict[str, int]:
        self.retries += self.retries_per_reading
        counters = {f"{kind}_bytes.all.peak": self.peak_bytes for kind in ("allocated", "reserved")}
        return {
            **counters,
            "allocated_bytes.all.current": 0,
            "num_ooms": 0,
            "num_alloc_retries": self.retries,
        }


def test_a_fit_above_the_budget_is_none_where_the_device_only_counts() -> None:
    def verdict(budget_bytes: int) -> TrialReport:
        device = CountingDevice(peak_bytes=900 * MIB)
        here = Bench(device, 0, lambda event: None, budget_bytes)
        return run_trial(troubled.create({}), plan_with(Trouble.NONE), here)

    assert verdict(1000 * MIB).outcome.fits
    over = verdict(999 * MIB).outcome
    assert over.verdict is Verdict.OOM
    assert over.reason == "reserved 900 MiB and the context's 100 MiB pass the budget of 999 MiB"


def test_allocator_retries_are_thrash() -> None:
    here = Bench(CountingDevice(MIB, retries=1), 0, lambda event: None)
    outcome = run_trial(troubled.create({}), plan_with(Trouble.NONE), here).outcome
    assert outcome.verdict is Verdict.THRASH
    assert outcome.failed_phase == "open"
    assert not outcome.fits


def test_the_null_gpu_has_no_step_times() -> None:
    here = Bench(CountingDevice(MIB, evidence=Evidence.FORECAST), 0, lambda event: None)
    outcome = run_trial(troubled.create({}), plan_with(Trouble.NONE), here).outcome
    assert outcome.fits
    assert outcome.step_ms is None


def test_a_device_that_can_not_be_read_after_a_failure_costs_the_worker() -> None:
    class Poisoned(CountingDevice):
        broken = False

        def statistics(self) -> dict[str, int]:
            if self.broken:
                raise RuntimeError("CUDA error: device-side assert triggered")
            return super().statistics()

    device = Poisoned(MIB)

    class Breaks:
        def open(self, plan: Plan, opened: Any) -> Any:
            device.broken = True
            raise RuntimeError("CUDA error: device-side assert triggered")

    report = run_trial(Breaks(), plan_with(Trouble.NONE), Bench(device, 0, lambda event: None))  # type: ignore[arg-type]
    assert (report.outcome.verdict, report.kind) == (Verdict.CRASHED, Kind.POISONED_CONTEXT)
    assert not report.reusable


def test_checkpointing_and_smaller_microbatches_need_less_and_learn_the_same() -> None:
    """The example workload keeps the protocol's promise: the plan changes memory, not the maths."""
    device = VirtualSession(64 * MIB)
    losses, peaks = [], []
    for plan in (
        Plan.of(batch_size=16, gradient_checkpointing=False),
        Plan.of(batch_size=4, gradient_checkpointing=False),
        Plan.of(batch_size=4, gradient_checkpointing=True),
    ):
        job = TinyText({"batch_size": 16, "layers": 6, "length": 48})
        peaks.append(
            run_trial(job, plan, Bench(device, 0, lambda event: None), steps=2).outcome.peak_allocated_bytes
        )
        with device.scope():
            session = job.open(plan, device)
            for _ in range(3):
                session.step()
            losses.append(session.loss)
            session.close()
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3
