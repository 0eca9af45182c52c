"""The log and the events of a run are complete, readable and never a reason to fail in silence."""

import json
from datetime import UTC, datetime

import pytest

from autotune.controller.events import NoteEvent, WorkerEvent
from autotune.controller.probe import probe
from autotune.controller.run_log import RunLog
from autotune.errors import DiskError, WorkerError

NOON = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "logs"


def open_log(folder):
    return RunLog(folder, clock=lambda: NOON)


def test_a_probe_is_in_the_log_line_by_line_and_in_the_events(machine, make_task, folder):
    with open_log(folder) as log:
        probe(make_task(), log.tell)
    lines = (folder / "train.log").read_text().splitlines()
    assert all(line.startswith("2026-01-31 12:00:00 ") for line in lines)
    assert sum(" trial " in line for line in lines) == len(machine.tried)
    assert sum(" receipt: " in line for line in lines) == 2
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert records[0]["event"] == "device"
    assert [r["verdict"] for r in records if r["event"] == "trial"][:2] == ["oom", "fits"]


def test_steps_and_files_of_a_run_are_logged_but_not_every_tick(folder):
    with open_log(folder) as log:
        log.tell(WorkerEvent({"phase": "step", "step": 1, "of": 3}))
        log.tell(WorkerEvent({"event": "phase", "name": "cache_latents", "done": 1, "total": 2}))
        log.tell(WorkerEvent({"event": "phase", "name": "cache_latents", "done": 2, "total": 2}))
        step = {"event": "step", "step": 1, "steps": 9, "epoch": 1, "loss": 0.5, "learning_rate": 1e-4}
        log.tell(WorkerEvent({**step, "skipped": True}))
        log.tell(WorkerEvent({"event": "file", "kind": "lora", "path": "out/a.safetensors"}))
    lines = [line[20:] for line in (folder / "train.log").read_text().splitlines()]
    assert lines == [
        "latents cached: 2/2",
        "step 1/9 epoch 1 loss 0.50000 lr 0.0001, update skipped (fp16 overflow)",
        "wrote lora out/a.safetensors",
    ]


def test_an_error_is_logged_with_the_traceback_of_the_worker(folder):
    error = WorkerError("the worker died.", "Start again.")
    error.add_note("In the worker:\nTraceback (most recent call last): deep inside")
    with pytest.raises(WorkerError), open_log(folder):
        raise error
    text = (folder / "train.log").read_text()
    assert "deep inside" in text
    assert "the worker died. Start again." in text
    assert json.loads((folder / "events.jsonl").read_text().splitlines()[-1])["kind"] == "WorkerError"


def test_a_second_run_appends(folder):
    for text in ("first", "second"):
        with open_log(folder) as log:
            log.tell(NoteEvent(text))
    assert [line[20:] for line in (folder / "train.log").read_text().splitlines()] == ["first", "second"]


def test_a_folder_that_cannot_be_made_is_a_disk_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="logging_dir"):
        RunLog(tmp_path / "file" / "logs")


def test_every_event_is_strict_json_whatever_a_loss_or_a_file_name_holds(folder):
    def refuse(constant):
        raise AssertionError(constant)

    step = {"event": "step", "step": 1, "steps": 9, "epoch": 1, "loss": float("nan"), "learning_rate": 1e-4}
    with open_log(folder) as log:
        log.tell(WorkerEvent(step))
        log.tell(NoteEvent("caf\udce9.png is not used"))  # a Latin-1 name, as Linux hands it to Python
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    first, second = (json.loads(line, parse_constant=refuse) for line in lines)
    assert first["loss"] is None
    assert second["text"] == "caf\udce9.png is not used"
    assert "loss nan" in (folder / "train.log").read_text(encoding="utf-8")
