"""The search walks to the right plan, replaces workers it can't trust, and never mistakes a crash for memory."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.device.session import DeviceSpec, Evidence
from autotune.errors import DiskError, NothingFitsError, WorkerError
from autotune.ladder.ladders import CLASSIC
from autotune.ladder.plan import Plan, Recipe
from autotune.ladder.walk import Direction
from autotune.trial.client import Worker
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.process import Launch
from autotune.trial.protocol import Ready, TrialReport
from autotune.trial.search import SearchStep, WarmWorker, describe_plan, search
from autotune.trial.workload import Job
from autotune.units import MIB

ROOT = Path(__file__).parents[3]
START = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)
Answer = Callable[[Plan, int], TrialReport]


def report(plan: Plan, verdict: Verdict, **changes: Any) -> TrialReport:
    reason = changes.pop("reason", "")
    outcome = Outcome(plan, verdict, Evidence.SIMULATED, reason, peak_reserved_bytes=90 * MIB)
    return TrialReport(outcome, **changes)


class Script:
    """Workers that answer from a function of (plan, number of the trial), and a record of what happened."""

    budget_bytes = 100 * MIB

    def __init__(self, answer: Answer, evidence: Evidence = Evidence.MEASURED) -> None:
        self.answer = answer
        device = {"name": "card", "evidence": evidence}
        self.ready = Ready(
            Job("job", {}, Recipe(START, 4, floors={"resolution": 448, "network_dim": 16})), device, {}
        )
        self.tried: list[Plan] = []
        self.opened = self.closed = 0
        self.notes: list[str] = []

    def open(self) -> Ready:
        self.opened += 1
        return self.ready

    def close(self) -> None:
        self.closed += 1

    def trial(self, plan: Plan, steps: int, lift_budget: bool = False) -> TrialReport:
        if lift_budget:
            return report(plan, Verdict.FITS)
        self.tried.append(plan)
        return self.answer(plan, len(self.tried))

    def warm(self) -> WarmWorker:
        return WarmWorker(lambda: self, self.notes.append)  # type: ignore[arg-type, return-value]


def fits_if(condition: Callable[[Plan], bool], **changes: Any) -> Answer:
    def answer(plan: Plan, number: int) -> TrialReport:
        if condition(plan):
            return report(plan, Verdict.FITS)
        return report(plan, Verdict.OOM, kind=Kind.DEVICE_MEMORY, **changes)

    return answer


def test_each_trial_changes_one_knob_and_is_heard_until_one_fits() -> None:
    script = Script(fits_if(lambda plan: plan.gradient_checkpointing and plan.batch_size == 1))
    heard: list[SearchStep] = []
    result = search(script.warm(), CLASSIC, heard.append)
    assert result.chosen == Plan.of(
        batch_size=1, resolution=((448, 448),), gradient_checkpointing=True, network_dim=32
    )
    assert result.outcome.plan == result.chosen
    assert tuple(heard) == result.steps
    down = [one.step for one in heard if one.step.direction is Direction.DOWN]
    changed = [step.change.knob for step in down if step.change is not None]
    assert changed == ["batch_size", "batch_size", "resolution", "gradient_checkpointing"]
    assert [change.knob for change in result.receipts] == changed
    assert script.opened == 1


def test_thrash_does_not_fit() -> None:
    def answer(plan: Plan, number: int) -> TrialReport:
        return report(plan, Verdict.THRASH if plan.batch_size > 2 else Verdict.FITS)

    assert search(Script(answer).warm(), CLASSIC).chosen.batch_size == 2


def test_a_worker_that_is_not_clean_is_replaced_with_a_word_why() -> None:
    def answer(plan: Plan, number: int) -> TrialReport:
        unclean = {"clean": False, "leftover_bytes": 5 * MIB, "reusable": False}
        return report(plan, Verdict.OOM, **unclean) if number == 1 else report(plan, Verdict.FITS)

    script = Script(answer)
    search(script.warm(), CLASSIC)
    assert script.opened == 2
    assert "5 MiB stayed allocated" in script.notes[0]


def test_a_plan_that_crashes_once_gets_a_second_chance_in_a_new_worker() -> None:
    def answer(plan: Plan, number: int) -> TrialReport:
        return report(plan, Verdict.CRASHED if number == 1 else Verdict.FITS, kind=Kind.OTHER)

    script = Script(answer)
    assert search(script.warm(), CLASSIC).chosen == START
    assert script.tried == [START, START]
    assert script.opened == 2


@pytest.mark.parametrize("verdict", [Verdict.CRASHED, Verdict.HUNG])
def test_a_plan_that_crashes_or_hangs_twice_stops_the_walk_with_its_root_cause(verdict: Verdict) -> None:
    script = Script(lambda plan, number: report(plan, verdict, kind=Kind.OTHER, reason="ValueError: bad rank"))
    with pytest.raises(WorkerError, match=r"twice: ValueError: bad rank.*no smaller plan was tried"):
        search(script.warm(), CLASSIC)
    assert script.tried == [START, START]


def test_a_full_disk_stops_the_walk_as_what_it_is() -> None:
    script = Script(lambda plan, number: report(plan, Verdict.CRASHED, kind=Kind.DISK, reason="No space left"))
    with pytest.raises(DiskError, match="Free some space"):
        search(script.warm(), CLASSIC)


def test_a_kernels_size_limit_is_passed_by_a_smaller_batch_and_only_by_that() -> None:
    def answer(plan: Plan, number: int) -> TrialReport:
        large = plan.batch_size > 2
        return report(plan, Verdict.CRASHED if large else Verdict.FITS, kind=Kind.SIZE_LIMIT if large else None)

    assert search(Script(answer).warm(), CLASSIC).chosen.batch_size == 2
    always = Script(lambda plan, number: report(plan, Verdict.CRASHED, kind=Kind.SIZE_LIMIT))
    with pytest.raises(WorkerError):
        search(always.warm(), CLASSIC)


def test_a_plan_known_to_fit_is_confirmed_before_it_is_chosen_and_a_wrong_hint_costs_one_trial() -> None:
    right = Script(fits_if(lambda plan: plan.batch_size <= 2))
    hint = START.replace("batch_size", 2)
    known: Mapping[Plan, bool] = {START: False, hint: True, START.replace("batch_size", 3): False}
    assert search(right.warm(), CLASSIC, known=known).chosen == hint
    assert right.tried == [hint]
    wrong = Script(fits_if(lambda plan: plan.batch_size == 1))
    assert search(wrong.warm(), CLASSIC, known=known).chosen.batch_size == 1
    assert wrong.tried[0] == hint


def test_if_nothing_fits_one_sentence_says_what_was_tried_what_it_needs_and_what_helps() -> None:
    script = Script(fits_if(lambda plan: False), evidence=Evidence.SIMULATED)
    with pytest.raises(NothingFitsError) as caught:
        search(script.warm(), CLASSIC)
    assert caught.value.fact == (
        "nothing fits the budget of 100 MiB on card: 6 plans from batch_size 4 to 1, resolution 512x512 to "
        "448x448, gradient_checkpointing off to on, network_dim 32 to 16; the smallest needs 90 MiB."
    )
    assert caught.value.way_out.startswith("What would help: ")
    assert script.opened == script.closed == 1


def test_where_the_budget_can_not_be_lifted_the_need_is_a_lower_bound() -> None:
    script = Script(fits_if(lambda plan: False, needs_more_than_bytes=120 * MIB + 5))
    with pytest.raises(NothingFitsError, match="the smallest needs more than 120 MiB"):
        search(script.warm(), CLASSIC)


def test_a_plan_is_spelled_for_people() -> None:
    assert describe_plan(START) == ("batch_size 4, resolution 512x512, gradient_checkpointing off, network_dim 32")


def test_a_job_without_pictures_walks_down_in_a_real_worker_and_trains_what_was_chosen(
    tmp_path: Path,
) -> None:
    launch = Launch(environment=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    config = {"batch_size": 8, "layers": 2, "length": 32, "steps": 3, "output_dir": str(tmp_path)}

    def make() -> Worker:
        return Worker("tests.workloads.tiny_text:create", config, DeviceSpec.parse("virtual:3MiB"), launch=launch)

    with WarmWorker(make) as warm:
        result = search(warm, CLASSIC, steps=2)
        first = warm.worker.pid
        summary = warm.worker.run(result.chosen)
        assert warm.worker.pid == first
    verdicts = [one.outcome.verdict for one in result.steps]
    assert verdicts[0] is Verdict.OOM
    assert result.outcome.fits
    assert result.outcome.peak_reserved_bytes is not None
    assert result.outcome.peak_reserved_bytes <= 3 * MIB
    assert summary["files"] == [str(tmp_path / "tiny-text.pt")]
    assert (tmp_path / "tiny-text.pt").stat().st_size > 0
