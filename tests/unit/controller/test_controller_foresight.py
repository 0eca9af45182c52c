"""A probe of a real card is guided by forecasts, learns its residual, and never fails for a forecast's sake."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.controller import foresight as foresight_module
from autotune.controller import task as task_module
from autotune.controller.events import Event, NoteEvent, TrialEvent
from autotune.controller.probe import probe
from autotune.controller.task import Task
from autotune.controller.train import train
from autotune.device.budget import plain_budget
from autotune.device.probe import DeviceReading
from autotune.device.session import DeviceSpec, Evidence
from autotune.errors import DeviceError
from autotune.ladder.plan import Plan, Recipe
from autotune.memory.phases import PhasePeak
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import Ready, TrialReport
from autotune.trial.workload import Job
from autotune.units import GIB, MIB

START = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)
BUDGET = 10 * GIB
CONTEXT = 300 * MIB
JOB = Job("sd1-lora-bf16-adamw", {"family": "sd1"}, Recipe(START, 4), (), 16.0)


def count(plan: Plan) -> int:
    return 3 * GIB + plan.batch_size * (400 if plan.gradient_checkpointing else 3000) * MIB


class Bench:
    """Two cards: the real one, whose plans take a little more, and the null one beside it."""

    def __init__(self) -> None:
        self.real: list[Plan] = []
        self.null: list[Plan] = []
        self.specs: list[str] = []
        self.null_job = JOB
        self.open_null: Callable[[], None] = lambda: None
        self.try_null: Callable[[Plan], TrialReport] = lambda plan: fit(plan, count(plan), Evidence.FORECAST)
        self.evidence = Evidence.MEASURED
        self.closed = 0


def fit(plan: Plan, reserved: int, evidence: Evidence) -> TrialReport:
    phases = (PhasePeak("step", reserved - 50 * MIB, reserved),)
    return TrialReport(Outcome(plan, Verdict.FITS, evidence, "", "", reserved - 50 * MIB, reserved, None, phases))


class OneWorker:
    def __init__(self, bench: Bench, spec: DeviceSpec) -> None:
        self.bench, self.is_null = bench, spec.kind == "null"
        bench.specs.append(str(spec))
        self.budget_bytes = BUDGET
        device = {"name": "NVIDIA GeForce RTX 3060", "compute_capability": "8.6", "context_bytes": CONTEXT}
        evidence = Evidence.FORECAST if self.is_null else bench.evidence
        versions = {"torch": "2.13.0+cu130" if self.is_null else "2.13.0"}
        self.ready = Ready(
            bench.null_job if self.is_null else JOB, device | {"evidence": evidence.value}, versions
        )

    def open(self) -> Ready:
        if self.is_null:
            self.bench.open_null()
        return self.ready

    def close(self) -> None:
        self.bench.closed += 1

    def trial(self, plan: Plan, steps: int, lift_budget: bool = False) -> TrialReport:
        if self.is_null:
            self.bench.null.append(plan)
            return self.bench.try_null(plan)
        self.bench.real.append(plan)
        need = round(1.01 * count(plan))
        if need + CONTEXT > BUDGET:
            return TrialReport(Outcome(plan, Verdict.OOM, self.bench.evidence), Kind.DEVICE_MEMORY)
        return fit(plan, need, self.bench.evidence)

    def run(self, plan: Plan) -> dict[str, Any]:
        return {"files": [], "steps": 1}


@pytest.fixture
def bench(monkeypatch):
    made = Bench()

    def worker(*arguments: Any) -> OneWorker:
        return OneWorker(made, arguments[2])

    monkeypatch.setattr(task_module, "Worker", worker)
    monkeypatch.setattr(foresight_module, "Worker", worker)
    reading = DeviceReading(
        DeviceSpec("cuda", "0"), "NVIDIA GeForce RTX 3060", 12 * GIB, 12 * GIB, plain_budget(BUDGET)
    )
    monkeypatch.setattr(task_module, "reading_for", lambda *args, **kwargs: reading)
    return made


@pytest.fixture
def task(make_task) -> Task:
    return replace(make_task(), device=DeviceSpec("cuda", "0"), forecast_workload="trainer.forecast:create")


def rows(events: list[Event], evidence: Evidence) -> list[Plan]:
    steps = [event.step for event in events if isinstance(event, TrialEvent)]
    return [step.outcome.plan for step in steps if step.outcome.evidence is evidence]


def notes(events: list[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, NoteEvent))


def test_rungs_are_settled_by_forecast_and_the_choice_is_confirmed_on_the_card(bench, task, tell, events):
    by_trials = probe(replace(task, forecast_workload=None), lambda event: None).result
    bench.real.clear()
    probed = probe(task, tell)
    assert probed.result.chosen == by_trials.chosen
    assert probed.result.chosen in bench.real
    assert len(bench.real) < len(by_trials.steps)
    assert rows(events, Evidence.MEASURED) == bench.real
    assert set(rows(events, Evidence.FORECAST)) <= set(bench.null)
    assert START in rows(events, Evidence.FORECAST)
    numbers = [event.number for event in events if isinstance(event, TrialEvent)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_null_card_is_of_the_same_architecture_and_never_full(bench, task, tell):
    probe(task, tell)
    assert bench.specs == ["cuda:0", f"null:{foresight_module.UNLIMITED}@8.6"]
    assert len(bench.null) == len(set(bench.null))
    assert bench.closed == 2


def test_the_profile_keeps_both_and_the_next_job_on_that_card_starts_from_the_residual(bench, task, tell, events):
    probe(task, tell)
    stored = task.store.list().profiles[0]
    assert {trial.evidence for trial in stored.trials} == {Evidence.FORECAST, Evidence.MEASURED}
    assert stored.versions[Evidence.FORECAST]["torch"] == "2.13.0+cu130"
    assert stored.evidence is Evidence.MEASURED
    assert "measured over forecast" not in notes(events)
    events.clear()
    probe(task, tell)
    assert "profiles of this card: measured over forecast 1.010 (1 plans)" in notes(events)


def test_train_with_fit_is_guided_too_and_then_uses_the_profile(bench, task, tell):
    first = train(task, tell, fit=True)
    assert first.plan in bench.real
    assert bench.null
    bench.real.clear()
    bench.null.clear()
    assert train(task, tell, fit=True).plan == first.plan
    assert bench.real == bench.null == []


def fail(error: Exception) -> Callable[..., Any]:
    def raise_it(*arguments: Any) -> Any:
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda bench: setattr(
                bench, "open_null", fail(DeviceError("no null GPU.", "Run autotune null install."))
            ),
            "no forecast, so plans are tried instead: no null GPU. Run autotune null install.",
        ),
        (lambda bench: setattr(bench, "open_null", fail(MemoryError("host"))), "MemoryError: host"),
        (lambda bench: setattr(bench, "try_null", fail(DeviceError("lost."))), "lost."),
        (
            lambda bench: setattr(bench, "null_job", replace(JOB, workload={"family": "sdxl"})),
            "on the null GPU the job differs in family",
        ),
    ],
)
def test_without_a_null_gpu_it_is_the_plain_walk_with_one_note(spoil, why, bench, task, tell, events):
    plain = probe(replace(task, forecast_workload=None), lambda event: None).result
    tried = list(bench.real)
    bench.real.clear()
    spoil(bench)
    probed = probe(task, tell)
    assert probed.result.chosen == plain.chosen
    assert bench.real == tried
    assert notes(events).count("no forecast") == 1
    assert why in notes(events)
    assert rows(events, Evidence.FORECAST) == []


def test_a_null_worker_that_dies_on_the_way_leaves_what_it_forecast(bench, task, tell, events):
    def die_after_two(plan: Plan) -> TrialReport:
        if len(bench.null) > 2:
            lost = Outcome(plan, Verdict.CRASHED, Evidence.FORECAST, "the worker was killed")
            return TrialReport(lost, Kind.HOST_MEMORY, clean=False, reusable=False)
        return fit(plan, count(plan), Evidence.FORECAST)

    plain = probe(replace(task, forecast_workload=None), lambda event: None).result
    bench.try_null = die_after_two
    assert probe(task, tell).result.chosen == plain.chosen
    assert len(rows(events, Evidence.FORECAST)) == 2
    assert "the worker was killed" in notes(events)


def test_a_plan_that_can_not_be_forecast_is_tried_and_the_others_are_still_forecast(bench, task, tell, events):
    def no_start(plan: Plan) -> TrialReport:
        if plan == START:
            return TrialReport(Outcome(plan, Verdict.CRASHED, Evidence.FORECAST, "too large"), Kind.SIZE_LIMIT)
        return fit(plan, count(plan), Evidence.FORECAST)

    bench.try_null = no_start
    probe(task, tell)
    assert bench.real[0] == START
    assert rows(events, Evidence.FORECAST)
    assert "no forecast" not in notes(events)


def test_on_the_virtual_gpu_nothing_changes(bench, task, tell, events):
    bench.evidence = Evidence.SIMULATED
    probe(task, tell)
    assert bench.null == []
    assert "forecast" not in notes(events)
