"""A worker on a null card without a process, for tests of what asks it: peaks by a formula.

Owns the formula and the record of what was asked. Must never import torch or start anything.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.device.session import DeviceSpec, Evidence
from autotune.ladder.plan import Plan, Recipe
from autotune.memory.account import ACTIVATIONS, CATEGORIES, WEIGHTS, Account, PhaseAccount, Span, Timeline
from autotune.memory.phases import PhasePeak
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import Ready, Recording, TrialReport
from autotune.trial.workload import Job
from autotune.units import GIB, MIB

START = Plan.of(batch_size=1, resolution=((512, 512),), gradient_checkpointing=False, network_dim=16)
JOB = Job("sd1-lora-bf16-adamw", {"family": "sd1"}, Recipe(START, 1, 1, {"resolution": 256}), ("a note",), 16.0)


def step_bytes(plan: Plan) -> int:
    """What the formula's training takes: it grows with batch and pictures, halves with checkpointing."""
    width, height = plan.resolutions[0]
    each = width * height * (2 if plan.gradient_checkpointing else 4) * 1024
    return 2 * GIB + plan.batch_size * each + plan.network_dim * MIB


class NullWorkers:
    """Makes scripted workers and keeps what they were asked."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.devices: list[str] = []
        self.tried: list[tuple[Plan, bool]] = []
        self.squeezed: list[tuple[Plan, int]] = []
        self.change: Callable[[TrialReport], TrialReport] = lambda report: report
        self.fault: Exception | None = None

    def __call__(self, workload: str, config: Mapping[str, Any], spec: DeviceSpec, **rest: Any) -> "NullWorker":
        """A new worker, made as a `Worker` is."""
        self.devices.append(str(spec))
        return NullWorker(self)


class NullWorker:
    """One worker; it has the methods of `Worker` that forecasts use."""

    def __init__(self, workers: NullWorkers) -> None:
        """`workers` hears what this one does."""
        self.workers = workers
        self.pid: int | None = None
        self.ready: Ready

    def open(self) -> Ready:
        """Counted; raises the fault that was set, if any."""
        self.workers.opened += 1
        if self.workers.fault is not None:
            raise self.workers.fault
        self.pid = self.workers.opened
        self.ready = Ready(JOB, {"name": "null", "evidence": Evidence.FORECAST.value}, {})
        return self.ready

    def abort(self) -> None:
        """Counted with those that were closed, once it is."""

    def close(self) -> None:
        """Counted."""
        self.workers.closed += 1

    def trial(
        self,
        plan: Plan,
        steps: int,
        *,
        record: Recording | None = None,
        to_the_end: bool = True,
        room_bytes: int | None = None,
    ) -> TrialReport:
        """The formula's answer, as changed by `change`; a snapshot is a few bytes."""
        if room_bytes is not None:
            self.workers.squeezed.append((plan, room_bytes))
            return self.workers.change(squeezed(report_of(plan), room_bytes))
        self.workers.tried.append((plan, to_the_end))
        if record is not None and record.snapshot is not None:
            Path(record.snapshot).write_bytes(b"snapshot")
        return self.workers.change(report_of(plan, recorded=record is not None, to_the_end=to_the_end))


def report_of(plan: Plan, recorded: bool = False, to_the_end: bool = True) -> TrialReport:
    """What a trial on the null GPU says: loading, steps and, at the end, saving."""
    size = step_bytes(plan)
    phases = [PhasePeak("load", GIB, GIB), PhasePeak("step", size, size + 10 * MIB)]
    if to_the_end:
        phases.append(PhasePeak("save", GIB, size + 10 * MIB))
    most = phases[1]
    outcome = Outcome(
        plan, Verdict.FITS, Evidence.FORECAST, "", "", most.peak_allocated_bytes, most.peak_reserved_bytes, None,
        tuple(phases),
    )  # fmt: skip
    return TrialReport(outcome, account=account_of(phases) if recorded else None)


def account_of(phases: list[PhasePeak]) -> Account:
    """Each phase as weights of 1 GiB and activations for the rest."""
    accounts = tuple(
        PhaseAccount(
            phase.phase,
            phase.peak_allocated_bytes,
            phase.peak_reserved_bytes,
            dict.fromkeys(CATEGORIES, 0) | {WEIGHTS: GIB, ACTIVATIONS: phase.peak_allocated_bytes - GIB},
        )
        for phase in phases
    )
    spans = tuple(Span(phase.phase, number, number + 1) for number, phase in enumerate(phases))
    allocated = tuple(phase.peak_allocated_bytes for phase in phases)
    return Account(accounts, Timeline(allocated, tuple(phase.peak_reserved_bytes for phase in phases), spans))


def squeezed(report: TrialReport, room_bytes: int) -> TrialReport:
    """The same trial in a room: its cache is 10 MiB, and 6 MiB of these can be given back."""
    reserved = max(phase.peak_reserved_bytes for phase in report.outcome.phases)
    if reserved <= room_bytes:
        return report
    if reserved - 6 * MIB > room_bytes:
        return out_of_memory(report)
    return replace(report, outcome=replace(report.outcome, verdict=Verdict.THRASH, reason="retried"))


def crashed(report: TrialReport) -> TrialReport:
    """The same trial, ended by a fault that costs the worker."""
    outcome = replace(report.outcome, verdict=Verdict.CRASHED, reason="a kernel is missing", phases=())
    return replace(report, outcome=outcome, kind=Kind.OTHER, clean=False, reusable=False)


def out_of_memory(report: TrialReport) -> TrialReport:
    """The same trial, too large for any card."""
    outcome = replace(report.outcome, verdict=Verdict.OOM, reason="out of memory", phases=())
    return replace(report, outcome=outcome, kind=Kind.DEVICE_MEMORY)
