"""A scripted worker in place of real ones: no process, no device; plans fit or not by a function."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from autotune.controller import task as task_module
from autotune.controller.events import Event
from autotune.controller.task import Task
from autotune.device.session import DeviceSpec, Evidence
from autotune.errors import OutOfDeviceMemory
from autotune.ladder.ladders import CLASSIC
from autotune.ladder.plan import Plan, Recipe
from autotune.store.confirmations import Confirmations
from autotune.store.directory import DirectoryStore
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import Ready, TrialReport
from autotune.trial.workload import Job
from autotune.units import MIB

START = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)


class Machine:
    """What the scripted workers do, and what happened: trials, runs, workers opened and closed."""

    def __init__(self) -> None:
        self.fits: Callable[[Plan], bool] = lambda plan: plan.batch_size <= 2
        self.tried: list[Plan] = []
        self.ran: list[Plan] = []
        self.opened = self.closed = 0
        self.job = Job("sd1-lora-bf16-adamw", {"family": "sd1"}, Recipe(START, 4), (), 16.0)

    def worker(self, *arguments: Any) -> "ScriptedWorker":
        return ScriptedWorker(self, arguments[3])


class ScriptedWorker:
    def __init__(self, machine: Machine, budget_bytes: int) -> None:
        self.machine = machine
        self.budget_bytes = budget_bytes
        device = {"name": "virtual:100MiB", "evidence": Evidence.SIMULATED.value}
        self.ready = Ready(machine.job, device, {"torch": "2.13.0"})

    def open(self) -> Ready:
        self.machine.opened += 1
        return self.ready

    def close(self) -> None:
        self.machine.closed += 1

    def trial(self, plan: Plan, steps: int, lift_budget: bool = False) -> TrialReport:
        self.machine.tried.append(plan)
        fits = self.machine.fits(plan)
        verdict = Verdict.FITS if fits else Verdict.OOM
        peak = 90 * MIB if fits else None
        outcome = Outcome(plan, verdict, Evidence.SIMULATED, "", "", peak, peak, 10.0 if fits else None)
        return TrialReport(outcome, kind=None if fits else Kind.DEVICE_MEMORY)

    def run(self, plan: Plan) -> Mapping[str, Any]:
        if not self.machine.fits(plan):
            error = OutOfDeviceMemory("CUDA out of memory.")
            error.add_note("In the worker:\nTraceback ...")
            raise error
        self.machine.ran.append(plan)
        return {"files": [], "steps": 3}


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(task_module, "Worker", machine.worker)
    return machine


@pytest.fixture
def events():
    return []


@pytest.fixture
def tell(events: list[Event]) -> Callable[[Event], None]:
    return events.append


@pytest.fixture
def make_task(tmp_path):
    def make(state: str = "state") -> Task:
        return Task(
            "trainer.workload:create",
            {},
            DeviceSpec.parse("virtual:100MiB"),
            CLASSIC,
            DirectoryStore(tmp_path / "profiles"),
            confirmations=Confirmations(tmp_path / state, "here"),
        )

    return make
