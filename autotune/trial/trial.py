"""One trial, inside the worker: open the workload for a plan, run it for real, and give every byte back.

Owns the order of a trial, its measurements and the clean-up after it. Must never run in the controller's
process, and must never let an exception of the workload keep device memory alive. Torch is already imported
by the time a trial runs, because a device is open.
"""

import contextlib
import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any

from autotune.device.session import DeviceSession, Evidence
from autotune.errors import AutotuneError
from autotune.ladder.plan import Plan
from autotune.memory.account import Account
from autotune.memory.phases import PhasePeak
from autotune.trial import oom
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.place import place_of
from autotune.trial.protocol import STEPS_TO_FIT, STEPS_TO_TIME, Failure, Recording, TrialReport
from autotune.trial.record import Recorder, start_recorder
from autotune.trial.workload import Session, Workload
from autotune.units import MIB, format_mib

OPEN = "open"
STEP = "step"

Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Bench:
    """Where trials run: the device, what it may use, what was allocated before any trial, and who listens.

    `baseline_bytes` are the device bytes allocated when the worker opened the device; `budget_bytes` None
    means the whole device. `progress` gets a JSON event when a phase begins and when a step begins.
    """

    device: DeviceSession
    baseline_bytes: int
    progress: Progress
    budget_bytes: int | None = None
    clock: Callable[[], float] = time.perf_counter


def run_trial(
    workload: Workload,
    plan: Plan,
    bench: Bench,
    steps: int = STEPS_TO_TIME,
    recording: Recording | None = None,
    *,
    to_the_end: bool = True,
) -> TrialReport:
    """Try `plan`: phases before, `steps` optimizer steps (at least two), phases after (unless not `to_the_end`);
    then clean up and prove it.

    Whatever the workload raises becomes an outcome, save errors meant for users (AutotuneError), which are
    raised again after the clean-up, with the traceback as a note. With a `recording` the report has an account.
    """
    recorder = start_recorder(bench.device, recording)
    meter = Meter(bench, recorder)
    opened: list[Session] = []
    ending: Ending | None = None
    try:
        with bench.device.scope():
            _go_through(workload, plan, meter, opened, max(steps, STEPS_TO_FIT), to_the_end)
    except (Exception, SystemExit) as error:
        ending = describe_ending(error, meter)
        oom.forget(error)
    _close_all(opened, bench.device)
    account = recorder.finish()
    state = settle(bench.device, bench.baseline_bytes)
    recorder.write()
    if ending is not None and ending.for_user is not None:
        raise ending.for_user
    outcome = _conclude(plan, meter, ending)
    return _report(outcome, ending, state, account)


class Meter:
    """Peaks by phase and step times of one trial, as far as it got."""

    def __init__(self, bench: Bench, recorder: Recorder | None = None) -> None:
        self.bench = bench
        self.recorder = recorder or Recorder()
        self.peaks: list[PhasePeak] = []
        self.step_ms: list[float] = []
        self.phase_name = ""
        self.counters_before: Mapping[str, int] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what runs inside as phase `name`. Its peak is kept too when it fails."""
        device = self.bench.device
        self.phase_name = name
        self.bench.progress({"phase": name})
        device.reset_peak()
        before = device.statistics()
        self.counters_before = self.counters_before or before
        try:
            with self.recorder.phase(name):
                yield
            device.synchronize()
        finally:
            with contextlib.suppress(Exception):  # a poisoned context can't be read; the failure matters more
                self.peaks.append(PhasePeak.read(name, before, device.statistics()))

    def time_step(self, step: Callable[[], None]) -> None:
        """Run one step and keep its wall time in milliseconds, the device's queue drained on both sides."""
        self.bench.device.synchronize()
        began = self.bench.clock()
        step()
        self.bench.device.synchronize()
        self.step_ms.append((self.bench.clock() - began) * 1000)

    def peak(self, name: str) -> int | None:
        """The largest `peak_allocated_bytes` or `peak_reserved_bytes` over the phases so far."""
        return max((getattr(peak, name) for peak in self.peaks), default=None)

    def memory_was_short(self) -> bool:
        """The witness for ambiguous failures: the allocator retried or gave up, or the budget is nearly used."""
        try:
            now = self.bench.device.statistics()
        except Exception:
            return False
        if any(now[name] > self.counters_before.get(name, 0) for name in ("num_ooms", "num_alloc_retries")):
            return True
        budget = self.bench.budget_bytes
        return budget is not None and (self.peak("peak_reserved_bytes") or 0) >= 0.9 * budget


@dataclass(frozen=True)
class Ending:
    """How a trial failed, in strings and numbers only, so that it holds nothing alive."""

    kind: oom.Kind
    reason: str
    phase: str
    reusable: bool
    traceback: str
    needs_more_than_bytes: int | None = None
    place: str = ""
    for_user: AutotuneError | None = None


@dataclass(frozen=True)
class State:
    """What a trial left behind on the device."""

    leftover_bytes: int
    clean: bool
    usable: bool


def describe_ending(error: BaseException, meter: Meter) -> Ending:
    """All that is worth knowing of `error`, taken while its frames still hold their memory."""
    finding = oom.examine(error, meter.memory_was_short())
    text = "".join(traceback.format_exception(error))
    is_memory = finding.kind is oom.Kind.DEVICE_MEMORY
    for_user = isinstance(error, AutotuneError) and not is_memory
    return Ending(
        kind=finding.kind,
        reason=oom.one_line(finding.culprit) if is_memory else oom.root_cause(error),
        phase=_where(meter.phase_name, error.__traceback__),
        reusable=finding.reusable,
        traceback=text,
        needs_more_than_bytes=_lower_bound(str(finding.culprit), meter) if is_memory else None,
        place=place_of(error.__traceback__),
        for_user=Failure.of_error(error, text).to_error() if for_user else None,  # type: ignore[arg-type]
    )


def settle(device: DeviceSession, baseline_bytes: int) -> State:
    """Free what a failed trial pins and read what is left. Call it outside any `except` block.

    A failed backward keeps its graph's storages until the next backward on the same thread, which garbage
    collection does not see; a one-element backward is enough (seen in 43 of 120 injected failures).
    """
    import torch

    try:
        with contextlib.suppress(torch.OutOfMemoryError):
            one = torch.ones((), device=device.torch_device, requires_grad=True)
            (one * 1).backward()  # type: ignore[no-untyped-call]
            del one
        gc.collect()
        _drop_library_workspaces()
        device.empty_cache()
        device.synchronize()
        allocated = device.statistics()["allocated_bytes.all.current"]
    except Exception:
        traceback.print_exc()
        return State(leftover_bytes=0, clean=False, usable=False)
    leftover = max(0, allocated - baseline_bytes)
    return State(leftover, clean=leftover <= _tolerance_bytes(device), usable=True)


# Frames that tell the parts of a training step apart: part of the file's path, function, and the part's name.
_PARTS_OF_A_STEP = (
    ("torch/autograd/", "backward", "backward"),
    ("torch/nn/utils/clip_grad", "", "clipping"),
    ("torch/optim/", "", "optimizer"),
    ("bitsandbytes/optim/", "", "optimizer"),
    ("torch/autograd/function", "apply", "forward"),
    ("torch/nn/modules/", "", "forward"),
)


def _go_through(
    workload: Workload, plan: Plan, meter: Meter, opened: list[Session], steps: int, to_the_end: bool
) -> None:
    with meter.phase(OPEN):
        session = workload.open(plan, meter.recorder.watched(meter.bench.device))
        opened.append(session)
        meter.recorder.meet(session)
    for name in session.phases_before:
        with meter.phase(name):
            session.run_phase(name)
    with meter.phase(STEP):
        for number in range(1, steps + 1):
            meter.bench.progress({"phase": STEP, "step": number, "of": steps})
            meter.time_step(session.step)
    for name in session.phases_after if to_the_end else ():
        with meter.phase(name):
            session.run_phase(name)


def _close_all(opened: list[Session], device: DeviceSession) -> None:
    while opened:
        session = opened.pop()
        try:
            with device.scope():
                session.close()
        except Exception as error:  # the contract says never; the baseline check will tell what it cost
            traceback.print_exc()
            oom.forget(error)


def _conclude(plan: Plan, meter: Meter, ending: Ending | None) -> Outcome:
    verdict, reason, phase = _judge(meter, ending)
    evidence = meter.bench.device.evidence
    later_steps = meter.step_ms[1:]
    times_count = evidence is not Evidence.FORECAST  # the null GPU launches nothing
    return Outcome(
        plan=plan,
        verdict=verdict,
        evidence=evidence,
        reason=reason,
        failed_phase=phase,
        peak_allocated_bytes=meter.peak("peak_allocated_bytes"),
        peak_reserved_bytes=meter.peak("peak_reserved_bytes"),
        step_ms=round(median(later_steps), 3) if later_steps and times_count else None,
        phases=tuple(meter.peaks),
    )


def _judge(meter: Meter, ending: Ending | None) -> tuple[Verdict, str, str]:
    if ending is not None:
        is_memory = ending.kind is oom.Kind.DEVICE_MEMORY
        return (Verdict.OOM if is_memory else Verdict.CRASHED), ending.reason, ending.phase
    over = _over_budget(meter)
    if over:
        return Verdict.OOM, *over
    busiest = max(meter.peaks, key=lambda peak: peak.alloc_retries)
    if busiest.alloc_retries:
        reason = f"the allocator gave its cache back and retried {busiest.alloc_retries} times"
        return Verdict.THRASH, reason, busiest.phase
    return Verdict.FITS, "", ""


def _over_budget(meter: Meter) -> tuple[str, str] | None:
    """A fit that passed the budget all the same, where the device only counts: the reason and the phase."""
    budget = meter.bench.budget_bytes
    read_context = getattr(meter.bench.device, "context_bytes", None)
    context = int(read_context()) if read_context else 0
    largest = max(meter.peaks, key=lambda peak: peak.peak_reserved_bytes)
    if budget is None or largest.peak_reserved_bytes + context <= budget:
        return None
    beside = f" and the context's {format_mib(context)}" if context else ""
    reason = f"reserved {format_mib(largest.peak_reserved_bytes)}{beside} pass the budget of {format_mib(budget)}"
    return reason, largest.phase


def _report(outcome: Outcome, ending: Ending | None, state: State, account: Account | None) -> TrialReport:
    return TrialReport(
        outcome=outcome,
        kind=ending.kind if ending else None,
        clean=state.clean,
        leftover_bytes=state.leftover_bytes,
        reusable=state.clean and state.usable and (ending is None or ending.reusable),
        needs_more_than_bytes=ending.needs_more_than_bytes if ending else None,
        traceback=ending.traceback if ending else "",
        account=account,
        place=ending.place if ending else "",
    )


def _where(phase: str, trace: TracebackType | None) -> str:
    """`phase`; for a step with the part of it that was running, if its frames tell: `step: backward`."""
    if phase != STEP:
        return phase
    for frame, _ in traceback.walk_tb(trace):
        path = frame.f_code.co_filename.replace("\\", "/")
        for folder, function, part in _PARTS_OF_A_STEP:
            if folder in path and function in ("", frame.f_code.co_name):
                return f"{STEP}: {part}"
    return STEP


def _lower_bound(text: str, meter: Meter) -> int | None:
    """The plan needs more than this: what it held at its peak, and what it held at the failure plus what it
    asked for then. None when the text names no request."""
    asked = oom.requested_bytes(text)
    if asked is None:
        return None
    with contextlib.suppress(Exception):
        held = meter.bench.device.statistics()["allocated_bytes.all.current"]
        return max(held + asked, meter.peak("peak_allocated_bytes") or 0)
    return asked


def _drop_library_workspaces() -> None:
    """Free cuBLAS workspaces: allocated through the allocator at the first product and kept for good, they
    would count as a leak of the plan that came first."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()


def _tolerance_bytes(device: DeviceSession) -> int:
    """Nothing on the virtual GPU. On CUDA libraries keep small constants (quantisation maps, RNG state)."""
    return 0 if device.evidence is Evidence.SIMULATED else 2 * MIB
