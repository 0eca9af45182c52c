"""Killed, interrupted, out of disk: one clear line, nothing lost, nothing left running, no temporary file."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_harness import REPOSITORY, Desk, assert_error, kill, lora_metadata, wait_until

pytestmark = [
    pytest.mark.xdist_group("e2e-endings"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc"),
]

PROBE = ("probe", "--workload", "waiting:create", "--device", "virtual:64MiB")
TRAIN = (
    "train", "--config", "config.toml", "--device", "virtual:1GiB", "--set", "resolution=256",
    "--set", "max_train_epochs=", "--set", "sample_steps=1",
)  # fmt: skip
FOREVER = ("--set", "max_train_steps=100000", "--set", "save_every_n_steps=1")


@pytest.fixture
def waiting(desk: Desk) -> Desk:
    """A folder with a workload whose first trials wait to be killed."""
    shutil.copy(REPOSITORY / "tests" / "workloads" / "waiting.py", desk.folder)
    return desk


def wait_for_trial(desk: Desk, number: int) -> int:
    """The worker of the trial `number`, counted from 1, once it waits."""
    pids = desk.folder / "pids"

    def started() -> list[str]:
        return pids.read_text().splitlines() if pids.exists() else []

    wait_until(lambda: len(started()) >= number, f"trial {number} runs")
    return int(started()[number - 1])


def test_a_worker_killed_in_a_trial_costs_one_trial(waiting: Desk) -> None:
    waiting.write("patience", "1")
    process = waiting.start(*PROBE, "--json")
    kill(wait_for_trial(waiting, 1))
    result = waiting.finish(process, code=0)
    (note,) = result.column("note")
    assert "batch_size 1 crashed and gets a second chance: the worker was killed by SIGKILL" in note
    assert [trial["verdict"] for trial in json.loads(result.out)["trials"]] == ["fits"]


def test_a_worker_killed_twice_in_the_same_trial_ends_the_probe(waiting: Desk) -> None:
    waiting.write("patience", "2")
    process = waiting.start(*PROBE)
    for number in (1, 2):
        kill(wait_for_trial(waiting, number))
    result = waiting.finish(process, code=9)
    assert_error(result, "batch_size 1 crashed twice", "SIGKILL", "no smaller plan was tried")
    assert waiting.files("store") == []


def test_ctrl_c_ends_all_with_one_line(waiting: Desk) -> None:
    waiting.write("patience", "1")
    process = waiting.start(*PROBE)
    worker = wait_for_trial(waiting, 1)
    process.send_signal(signal.SIGINT)
    result = waiting.finish(process, code=130)
    assert result.lines[-1] == "autotune: stopped by the user."
    assert not Path(f"/proc/{worker}").exists()
    assert "KeyboardInterrupt" in waiting.log()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_controller_is_killed_its_worker_goes_too(waiting: Desk, signal_number: int) -> None:
    waiting.write("patience", "1")
    process = waiting.start(*PROBE)
    wait_for_trial(waiting, 1)
    process.send_signal(signal_number)
    process.communicate()
    assert process.returncode == -signal_number
    waiting.assert_nothing_is_left()
    assert waiting.files("store") == []
    assert all(json.loads(line) for line in (waiting.folder / "logs/events.jsonl").read_text().splitlines())


def test_a_worker_killed_in_training_loses_no_saved_file(furnished: Desk) -> None:
    process = furnished.start(*TRAIN, *FOREVER)
    wait_until(lambda: len(furnished.files()) >= 2 or process.poll() is not None, "two LoRA files are saved")
    kill(furnished.worker_of(process))
    result = furnished.finish(process, code=9)
    assert_error(result, "the worker was killed by SIGKILL", "worker.log")
    saved = [name for name in furnished.files() if name.endswith(".safetensors")]
    assert len(saved) >= 2
    for name in saved:
        assert lora_metadata(furnished.folder / "out" / name)["ss_steps"] in name
    assert saved == furnished.files()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk of 64 KiB; None where none can be mounted, which takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True).returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_at_the_end_loses_no_trained_lora(furnished: Desk, full_disk: Path | None) -> None:
    """The disk has room for a small file, not for the LoRA: that goes to the folder for temporary files.

    Without a small disk: no file may pass 512 KiB, so there is no refuge either, only the clear line.
    """
    if full_disk is None:
        limit = ("prlimit", f"--fsize={512 << 10}")
        process = furnished.start(*TRAIN, "--set", "max_train_steps=1", wrapper=limit)
        result = furnished.finish(process, code=11)
        assert_error(result, "photos.safetensors", "can't be written: File too large")
        assert furnished.files() == []
        return
    result = furnished.run(*TRAIN, "--set", "max_train_steps=1", "--set", f"output_dir={full_disk}", code=11)
    refuge = furnished.folder / "tmp" / "photos.safetensors"
    assert_error(result, str(full_disk / "photos.safetensors"), "No space left", f"is in {refuge} instead")
    assert lora_metadata(refuge)["ss_steps"] == "1"
    assert list(full_disk.iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_for_the_logs_is_a_clear_line(furnished: Desk) -> None:
    (furnished.folder / "locked").mkdir(mode=0o500)
    result = furnished.run(*TRAIN, "--set", "logging_dir=locked/logs", code=11)
    assert_error(result, "locked/logs", "Permission denied", "logging_dir")


def test_a_log_on_a_full_disk_ends_the_run_in_one_line(furnished: Desk) -> None:
    (furnished.folder / "logs").mkdir()
    (furnished.folder / "logs" / "train.log").symlink_to("/dev/full")
    result = furnished.run(*TRAIN, code=11)
    assert_error(result, "train.log can't be written: No space left on device", "Free disk space")
