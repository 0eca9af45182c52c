"""A job that has nothing to do with pictures, probed from the folder where its module lies."""

import json
import shutil
import sys

import pytest
from e2e_harness import REPOSITORY, Desk, assert_error

pytestmark = [
    pytest.mark.xdist_group("e2e-workload"),
    pytest.mark.skipif(sys.platform != "linux", reason="leftovers are looked up in /proc"),
]

TINY_TEXT = ("--workload", "tests.workloads.tiny_text:create")

LADDER = """\
name = "checkpointing-only"
[[rungs]]
knob = "gradient_checkpointing"
to_floor = true
"""


@pytest.fixture
def writer(desk: Desk) -> Desk:
    """A folder with the example workload, and with files whose names are those of modules we need."""
    (desk.folder / "tests" / "workloads").mkdir(parents=True)
    shutil.copy(REPOSITORY / "tests" / "workloads" / "tiny_text.py", desk.folder / "tests" / "workloads")
    for name in ("torch.py", "trainer/__init__.py", "queue.py"):
        desk.write(name, "raise SystemExit('a stray file was imported')\n")
    return desk


def test_it_is_probed_under_a_ladder_a_limit_and_a_profiles_folder_of_ones_own(writer: Desk) -> None:
    writer.write("ladder.toml", LADDER)
    options = ["--device", "virtual:1GiB", "--vram-limit", "10MiB", "--ladder", "ladder.toml"]
    answer, result = writer.probe(*TINY_TEXT, *options, "--profiles", "mine")
    assert answer["budget_bytes"] == 10 << 20
    assert [(trial["verdict"], trial["plan"]["gradient_checkpointing"]) for trial in answer["trials"]] == [
        ("oom", False),
        ("fits", True),
    ]
    assert answer["chosen"] == {"batch_size": 16, "gradient_checkpointing": True}
    assert result.column("receipt")[0] == "gradient_checkpointing off -> on, costs speed, not quality"
    (profile,) = (writer.folder / "mine").rglob("*.json")
    assert str(profile) == answer["profile"]["location"]
    assert json.loads(profile.read_text())["ladder"]["name"] == "checkpointing-only"
    assert not (writer.folder / "store").exists()


def test_when_nothing_fits_one_sentence_says_what_the_smallest_plan_needs(writer: Desk) -> None:
    result = writer.run("probe", *TINY_TEXT, "--device", "virtual:1MiB", "--json", code=7)
    assert_error(result, "nothing fits", "1 MiB", "batch_size 16 to 1", "the smallest needs", "What would help")
    assert result.out == ""


def test_a_factory_that_is_not_there_names_what_is_missing(writer: Desk) -> None:
    wrong = [("tests.workloads.tiny:create", "no module named 'tests.workloads.tiny'"), ("tiny", "module:factory")]
    for reference, part in wrong:
        result = writer.run("probe", "--workload", reference, "--device", "virtual:1GiB", code=3)
        assert_error(result, part)
