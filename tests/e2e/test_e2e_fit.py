"""One recipe through its life: too large as written, fitted, remembered, and fitted anew in less memory."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e_harness import QUICK, Desk, Result, assert_error, furnish, lora_metadata, sit_down

pytestmark = [
    pytest.mark.xdist_group("e2e-fit"),
    pytest.mark.skipif(sys.platform != "linux", reason="leftovers are looked up in /proc"),
]

RECIPE = ("--config", "config.toml", "--device", "virtual:200MiB", *QUICK)
ROOMY, TIGHT = "62MiB", "55MiB"  # batch 1 fits at 320 pixels; at 256 only
FOREIGN = {"schema_version": 99, "gpu": "virtual:200MiB", "speed": "warp"}


@dataclass(frozen=True)
class Life:
    """The four runs in order, in one folder."""

    desk: Desk
    as_written: Result
    files_after_oom: list[str]
    fitted: Result
    again: Result
    tighter: Result


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Life]:
    for desk in sit_down(tmp_path_factory.mktemp("desk")):
        furnish(desk, base)
        desk.write("out/photos.safetensors", "the LoRA of last week")
        desk.write("store/virtual-200mib/foreign.json", json.dumps(FOREIGN))
        as_written = desk.run("train", *RECIPE, "--vram-limit", ROOMY, code=8)
        files = desk.files()
        fitted = desk.run("train", *RECIPE, "--vram-limit", ROOMY, "--fit-vram")
        again = desk.run("train", *RECIPE, "--vram-limit", ROOMY, "--fit-vram")
        tighter = desk.run("train", *RECIPE, "--vram-limit", TIGHT, "--fit-vram")
        yield Life(desk, as_written, files, fitted, again, tighter)


def trials(result: Result) -> list[str]:
    """The outcomes in the table, in order."""
    rows = [line.split() for line in result.lines if line.startswith("    ") and line.strip()[0].isdigit()]
    return [row[5] for row in rows]


def test_a_recipe_that_is_too_large_says_what_fit_vram_would_do(life: Life) -> None:
    assert_error(
        life.as_written,
        "batch_size 2, resolution 320x320",
        "does not fit virtual:200MiB",
        "out of memory. Tried to allocate",
        "--fit-vram",
        "batch_size, resolution, gradient_checkpointing, network_dim",
    )
    assert "counting.py" not in life.as_written.err


def test_after_an_oom_the_log_has_the_workers_traceback_once(life: Life) -> None:
    oom = next(event for event in life.desk.events() if event["event"] == "error")
    assert oom["kind"] == "OutOfDeviceMemory"
    first_run = life.desk.log().split("trial 1")[0]
    assert first_run.count("In the worker:") == 1
    assert "torch.OutOfMemoryError" in first_run


def test_after_an_oom_the_output_folder_is_as_it_was(life: Life) -> None:
    assert life.files_after_oom == ["photos.safetensors"]
    assert Path(life.desk.folder, "out", "photos.safetensors").read_text() == "the LoRA of last week"


def test_with_fit_vram_it_probes_keeps_a_profile_and_trains(life: Life) -> None:
    assert trials(life.fitted) == ["oom", "fits"]
    assert life.fitted.column("receipt")[0].startswith("batch_size 2 -> 1, costs speed, not quality")
    assert "written" in life.fitted.column("profile")[0]
    assert lora_metadata(life.desk.folder / "out" / "photos-2.safetensors")["ss_batch_size_per_device"] == "1"


def test_the_second_run_uses_the_profile_without_a_trial(life: Life) -> None:
    assert trials(life.again) == []
    assert "used" in life.again.column("profile")[0]
    assert life.again.column("chosen") == life.fitted.column("chosen")
    assert life.again.column("receipt") == life.fitted.column("receipt")
    assert "photos-3.safetensors" in life.desk.files()


def test_a_profile_that_no_longer_fits_is_named_and_the_ladder_walked(life: Life) -> None:
    assert any("today's budget is 55 MiB, so the ladder is walked" in note for note in life.tighter.column("note"))
    assert trials(life.tighter) == ["oom", "oom", "fits", "oom"]
    assert "resolution 256x256" in life.tighter.column("chosen")[0]
    assert "photos-4.safetensors" in life.desk.files()


def test_a_profile_of_another_schema_is_named_left_alone_and_in_nobodys_way(life: Life) -> None:
    path = life.desk.folder / "store" / "virtual-200mib" / "foreign.json"
    for run in (life.fitted, life.again):
        assert any(str(path) in note and "99" in note for note in run.column("note"))
    assert json.loads(path.read_text()) == FOREIGN
    assert len(list(path.parent.iterdir())) == 3
