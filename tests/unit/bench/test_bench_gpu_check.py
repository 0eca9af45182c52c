"""The GPU check without a card: it says so, its parts hold on a stand-in, and its time limits end them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autotune.controller.events import TrialEvent
from autotune.controller.probe import Kept
from autotune.controller.task import Task, Tell
from autotune.device.session import DeviceSpec, Evidence
from autotune.device.virtual import VirtualSession
from autotune.errors import DiskError
from autotune.ladder.ladders import CLASSIC
from autotune.ladder.plan import Plan, Recipe
from autotune.ladder.walk import Step, Walk
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import TrialReport
from autotune.trial.search import SearchResult, SearchStep
from autotune.trial.workload import Job
from autotune.units import GIB, MIB
from bench import gpu_check, gpu_jobs
from bench.findings import Findings, Skipped
from bench.gpu_check import Part, Place
from bench.gpu_jobs import check_training, ladder_plans, limit_between, tiny_job
from bench.gpu_memory import check_budget, check_oom

PLANS = [Plan.of(batch_size=size) for size in (8, 4, 2, 1)]
NO_PROFILE = "the profile is kept as measured"


def failed(found: Findings) -> set[str]:
    return {check.name for check in found.checks if not check.passed}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_so_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 0
    sentence, last = capsys.readouterr().out.splitlines()
    assert sentence.startswith("No card was checked: ")
    assert json.loads(last)["skipped"] in sentence


def test_only_a_card_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["--device", "virtual:2GiB"])
    assert "a real card is checked" in capsys.readouterr().err


def test_the_budget_part_holds_on_a_device_with_a_cap() -> None:
    found = Findings()
    check_budget(VirtualSession(2 * GIB), 512 * MIB, lambda: 500 * MIB, found)
    assert not failed(found)
    assert found.numbers["held_bytes"] == 512 * MIB


def test_the_budget_part_fails_where_the_cap_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    session = VirtualSession(2 * GIB)
    monkeypatch.setattr(session, "limit", lambda budget_bytes: None)
    found = Findings()
    check_budget(session, 256 * MIB, lambda: 900 * MIB, found)
    assert "the allocation past the cap fails as torch.OutOfMemoryError" in failed(found)
    assert "the driver counts this process within the limit" in failed(found)


def test_the_out_of_memory_part_holds_on_a_device_with_a_cap() -> None:
    found = Findings()
    check_oom(VirtualSession(2 * GIB), 400 * MIB, found)
    assert found.passed, found.checks


def test_the_limit_lies_between_two_plans_as_far_down_as_there_is_room() -> None:
    needs = list(zip(PLANS, [900 * MIB, 500 * MIB, 300 * MIB, 250 * MIB], strict=True))
    assert limit_between(needs, 10 * MIB, 50 * MIB) == (410 * MIB, 2)


def test_plans_that_ran_out_on_the_bare_card_do_not_hinder() -> None:
    needs = list(zip(PLANS, [None, 500 * MIB, 300 * MIB, None], strict=True))
    assert limit_between(needs, 0, 50 * MIB) == (400 * MIB, 2)


def test_plans_that_are_too_close_are_a_reason_to_skip() -> None:
    with pytest.raises(Skipped, match="apart: 900 MiB, 880 MiB, out of memory"):
        limit_between(list(zip(PLANS, [900 * MIB, 880 * MIB, None], strict=False)), 0, 50 * MIB)


def test_the_ladders_plans_come_in_the_order_of_the_walk() -> None:
    plan = Plan.of(batch_size=4, gradient_checkpointing=False)
    plans = ladder_plans(Recipe(plan, 4), 9)
    assert [(p.batch_size, p.gradient_checkpointing) for p in plans] == [
        (4, False), (2, False), (1, False), (1, True)
    ]  # fmt: skip


def test_a_part_that_takes_too_long_is_ended_and_keeps_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    body = "import pathlib, sys, time\n" + (
        "pathlib.Path(sys.argv[sys.argv.index('--folder') + 1], 'oom.json').write_text('{}')\ntime.sleep(600)\n"
    )
    stand_in = Findings(tmp_path / "oom.json")
    stand_in.check("one thing", True)
    kept = (tmp_path / "oom.json").read_text()
    script = tmp_path / "part.py"
    script.write_text(body.replace("'{}'", repr(kept)))
    part = Part("slow", 2.0, lambda place, found: None)
    found = gpu_check._run_in_process("oom", part, "cuda:0", tmp_path, 0, 100.0, [sys.executable, str(script)])
    assert found.error == "not done after its 2 s"
    assert [check.name for check in found.checks] == ["one thing"]
    assert not found.passed


def test_no_time_left_is_a_skip_and_no_pass(tmp_path: Path) -> None:
    part = Part("late", 60.0, lambda place, found: None)
    found = gpu_check._run_in_process("oom", part, "cuda:0", tmp_path, 0, 3.0)
    assert found.skipped
    assert not found.passed


@pytest.mark.parametrize(
    ("error", "kept"),
    [(Skipped("no room"), {"skipped": "no room"}), (ValueError("bad\nnews"), {"error": "ValueError: bad news"})],
)  # fmt: skip
def test_a_part_that_fails_leaves_the_reason(
    error: Exception, kept: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(place: Place, found: Findings) -> None:
        found.note(seen=1)
        raise error

    monkeypatch.setattr(gpu_check, "PARTS", {"one": Part("one", 1.0, run)})
    assert gpu_check.run_part("one", Place(DeviceSpec.parse("cuda:0"), tmp_path, 0)) == 0
    read = Findings.read(tmp_path / "one.json").to_json()
    assert read["numbers"] == {"seen": 1}
    assert kept.items() <= read.items()


def test_findings_survive_their_file(tmp_path: Path) -> None:
    found = Findings(tmp_path / "f.json")
    found.check("a", 1, "detail")
    found.note(size_bytes=3)
    assert Findings.read(tmp_path / "f.json").to_json() == found.to_json()
    assert not Findings.read(tmp_path / "absent.json").passed


def test_a_part_in_words_names_each_check_that_does_not_hold() -> None:
    found = Findings()
    found.check("holds", True)
    found.check("breaks", False, "7 MiB")
    assert gpu_check.describe("title", found, 3).splitlines() == [
        "FAIL  title (3 s)", "  ok  holds", "  NOT breaks: 7 MiB"
    ]  # fmt: skip


@pytest.fixture(scope="module")
def small_job(tmp_path_factory: pytest.TempPathFactory) -> gpu_jobs.Job:
    job = tiny_job(tmp_path_factory.mktemp("job"))
    return replace(job, batch_size=2, steps=2, pixels=64, precision="no", spare_bytes=MIB // 2)


def walked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdicts: list[Verdict], **changes: bool) -> Findings:
    """What the walk part finds in a walk whose trials end as `verdicts`, on a card where plans need 900, 500 and
    100 MiB. The real walk decides what is tried; only workers are left out."""
    recipe = Recipe(Plan.of(batch_size=4), 4)
    answers = iter(verdicts)

    def try_it(step: Step) -> SearchStep:
        outcome = Outcome(step.plan, next(answers), Evidence.MEASURED, peak_reserved_bytes=100 * MIB)
        return SearchStep(step, TrialReport(outcome, clean=changes.get("clean", True)))

    def probe(task: Task, tell: Tell) -> SimpleNamespace:
        walk, steps = Walk.start(CLASSIC, recipe), []
        while (step := walk.next()) is not None:
            steps.append(try_it(step))
            tell(TrialEvent(len(steps), steps[-1]))
            walk = walk.record(step, steps[-1].outcome.fits)
        assert walk.chosen is not None
        result = SearchResult(Job("job", {}, recipe), tuple(steps), walk.chosen, steps[-1].outcome, walk.receipts)
        return SimpleNamespace(result=result, profile=Kept(None, DiskError("no room")))

    needs = list(zip(PLANS[1:], [900 * MIB, 500 * MIB, 100 * MIB], strict=True))
    monkeypatch.setattr(gpu_jobs, "measure_needs", lambda *_: needs)
    monkeypatch.setattr(gpu_jobs, "probe", probe)
    found = Findings(numbers={"context_bytes": 0})
    gpu_jobs.check_walk(DeviceSpec.parse("cuda:0"), gpu_jobs.Job(tmp_path, tmp_path, 4), 0, 3, found)
    return found


def test_the_walk_part_holds_for_the_walk_it_expects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = walked(monkeypatch, tmp_path, [Verdict.OOM, Verdict.THRASH, Verdict.FITS])
    assert failed(found) == {NO_PROFILE}  # the stand-in keeps none, and that is seen
    assert [row["verdict"] for row in found.numbers["trials"]] == ["oom", "thrash", "fits"]


def test_the_walk_part_sees_a_walk_that_ends_too_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = walked(monkeypatch, tmp_path, [Verdict.FITS])
    assert "several rungs failed before one fitted" in failed(found)


def test_the_walk_part_sees_memory_that_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = walked(monkeypatch, tmp_path, [Verdict.OOM, Verdict.OOM, Verdict.FITS], clean=False)
    assert "memory is back at its baseline after each" in failed(found)


@pytest.mark.slow
def test_the_training_part_holds_with_simulated_memory(small_job: gpu_jobs.Job) -> None:
    found = Findings()
    check_training(DeviceSpec.parse("virtual:2GiB"), small_job, found)
    assert not failed(found)
