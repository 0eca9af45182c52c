"""The overhead bench compares equal work, and its last line is the JSON that CI reads."""

import json
from pathlib import Path

import pytest
import torch

from bench import overhead
from bench.bare_loop import BareJob, TrainerJob, check_equal, make_job

LIMITED = ["trainer_step_ratio", "virtual_over_counting", "virtual_step_ratio", "help_ms"]


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_bare_loop_does_the_very_same_maths(one_thread: None, tmp_path: Path) -> None:
    job = make_job(tmp_path, batch_size=1, pixels=64)
    trainer = TrainerJob(job)
    bare = BareJob(job, trainer.latents())
    losses = [(trainer.step(number), bare.step(number)) for number in range(3)]
    assert all(ours == theirs for ours, theirs in losses), losses
    assert len({ours for ours, _ in losses}) == 3, "the weights must move for this to mean much"


def test_a_loop_that_did_something_else_is_refused() -> None:
    with pytest.raises(AssertionError, match="not the same maths"):
        check_equal([0.5, 0.4], [0.5, 0.41])


def test_the_last_line_is_json_with_every_limited_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = {"over_counting": 1.5, "over_plain": 2.5, "operations": 9, "plain_step_ms": 3.0}
    result = dict.fromkeys(LIMITED, 1.0) | {
        "trainer": {
            "quartiles": [1, 1],
            "processor_time_ratio": 1,
            "trainer_step_ms": 210.0,
            "bare_step_ms": 205.0,
            "steps": 9,
        },
        "virtual": cost,
        "virtual_dispatch_bound": cost,
        "help": {"help_over_bare_python": 5.0, "bare_python_ms": 30.0},
    }
    monkeypatch.setattr(overhead, "measure", lambda effort, threads: dict(result))
    assert overhead.main(["--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    read = json.loads(lines[-1])
    assert set(LIMITED) <= read.keys()
    assert read["machine"]["load_before"] >= 0
    assert any(line.startswith("trainer step / bare loop") for line in lines)
