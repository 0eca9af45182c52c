"""`autotune plan` on the null GPU: verdicts, a report, PyTorch's snapshot, and a second answer from the cache."""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest
from e2e_harness import Desk

from autotune.device.null.places import cache_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("e2e-plan"),
    pytest.mark.skipif(sys.platform != "linux", reason="the null GPU works on Linux only"),
]


def fresh_cache(folder: Path) -> Path:
    """A cache folder with the user's null GPU in it and no forecast."""
    null = folder / "cache" / "autotune" / "null"
    null.mkdir(parents=True)
    for part in cache_folder().iterdir():
        if part.name != "forecasts":
            (null / part.name).symlink_to(part)
    return folder / "cache"


def test_a_plan_without_a_gpu(desk: Desk, null_gpu: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = fresh_cache(tmp_path_factory.mktemp("plan"))
    asked = ("plan", "--family", "sd1", "--gpu", "rtx-3060-12gb", "--gpu", "2GiB@8.6", "--json")
    files = ("--report", "r.html", "--snapshot", "s.pickle")

    first = desk.start(*asked, *files, XDG_CACHE_HOME=str(cache))
    out, err = first.communicate(timeout=600)
    assert first.returncode == 7, err  # one of the two cards is too small
    found = json.loads(out)
    card, small = found["cards"]
    assert (card["verdict"], small["verdict"]) == ("fits", "does not fit")
    assert card["need_bytes"]["low"] > small["total_bytes"]
    assert card["largest_batch"]["with_checkpointing"] > card["largest_batch"]["without_checkpointing"] >= 1
    assert small["largest_batch"]["without_checkpointing"] == 0
    assert {row["knob"] for row in found["savings"]} == {"resolution", "gradient_checkpointing", "network_dim"}
    assert (desk.folder / "r.html").read_text("utf-8").count("<svg") == 3
    with (desk.folder / "s.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    assert snapshot["segments"]
    assert any(snapshot["device_traces"])

    again = desk.start(*asked, "--report", "again.html", XDG_CACHE_HOME=str(cache), PYTHONPATH=no_worker(desk))
    out, err = again.communicate(timeout=600)
    assert again.returncode == 7, err
    assert json.loads(out) == found
    assert (desk.folder / "again.html").exists()
    desk.assert_nothing_is_left()


def no_worker(desk: Desk) -> str:
    """A path for Python on which every worker ends before it begins."""
    trap = desk.write(
        "trap/sitecustomize.py",
        "import os, sys\nif 'autotune.trial.worker' in sys.orig_argv:\n    os._exit(9)\n",
    )
    return os.pathsep.join(filter(None, [str(trap.parent), os.environ.get("PYTHONPATH")]))
