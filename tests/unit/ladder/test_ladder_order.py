"""The built-in ladders take their rungs in the promised order; a written one is parsed or refused by key."""

import tomllib

import pytest

from autotune.errors import ConfigError
from autotune.ladder.ladders import CLASSIC, LOSSLESS_FIRST, Ladder, Stage, parse_ladder
from autotune.ladder.plan import Plan, Recipe
from autotune.trial.ladder_file import load_ladder

PLAN = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)
WRITTEN = """
name = "keep-detail"
[floors]
resolution = 448
[[rungs]]
knob = "batch_size"
to_floor = true
[[rungs]]
knob = "network_dim"
steps = 2
"""


def spelled(ladder, recipe):
    return [(rung.change.knob, rung.change.after) for rung in ladder.rungs(recipe)]


def square(side):
    return ("resolution", ((side, side),))


SECOND_PASS = [square(384), square(320), square(256), ("network_dim", 8), ("network_dim", 4)]


def test_classic_takes_batch_then_one_resolution_step_then_checkpointing_then_half_the_rank():
    assert spelled(CLASSIC, Recipe(PLAN, 4)) == [
        ("batch_size", 2),
        ("batch_size", 1),
        square(448),
        ("gradient_checkpointing", True),
        ("network_dim", 16),
        *SECOND_PASS,
    ]


def test_lossless_first_takes_checkpointing_before_anything_that_costs_quality():
    assert spelled(LOSSLESS_FIRST, Recipe(PLAN, 4)) == [
        ("batch_size", 2),
        ("batch_size", 1),
        ("gradient_checkpointing", True),
        square(448),
        ("network_dim", 16),
        *SECOND_PASS,
    ]


def test_the_workload_floors_end_the_second_pass():
    recipe = Recipe(PLAN, 4, floors={"resolution": 512, "network_dim": 16, "batch_size": 2})
    assert spelled(CLASSIC, recipe) == [
        ("batch_size", 2),
        ("gradient_checkpointing", True),
        ("network_dim", 16),
    ]


def test_a_plan_without_a_knob_lacks_its_rungs():
    assert spelled(CLASSIC, Recipe(Plan.of(batch_size=2), 2)) == [("batch_size", 1)]


def test_a_knob_nobody_foresaw_plugs_in():
    class Offload:
        name, cost, default_floor = "offload", "speed", 0

        def step_down(self, value, floor):
            return None if value == 2 else value + 1

        def describe(self, value):
            return f"level {value}"

    ladder = parse_ladder(
        {"name": "mine", "rungs": [{"knob": "offload", "to_floor": True}]}, "f", {"offload": Offload()}
    )
    rungs = list(ladder.rungs(Recipe(Plan.of(offload=0), 1), {"offload": Offload()}))
    assert [rung.plan["offload"] for rung in rungs] == [1, 2]


def test_a_written_ladder_keeps_its_stages_and_floors():
    ladder = parse_ladder(tomllib.loads(WRITTEN), "mine.toml")
    expected = Ladder("keep-detail", (Stage("batch_size"), Stage("network_dim", 2)), {"resolution": 448})
    assert ladder == expected
    assert parse_ladder(ladder.to_json(), "again") == ladder


def test_a_ladder_floor_under_the_workloads_does_not_hold_and_says_so():
    ladder = Ladder("low", (Stage("resolution"),), {"resolution": 256})
    recipe = Recipe(PLAN, 4, floors={"resolution": 448})
    assert spelled(ladder, recipe) == [square(448)]
    assert ladder.notes(recipe) == (
        "ladder low: floor resolution = 256 is under the workload's 448, which holds.",
    )
    assert ladder.notes(Recipe(PLAN, 4)) == ()


def test_a_ladder_floor_above_the_workloads_holds():
    ladder = Ladder("high", (Stage("resolution"),), {"resolution": 448})
    assert spelled(ladder, Recipe(PLAN, 4, floors={"resolution": 256})) == [square(448)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": None}, "name is missing"),
        ({"name": "a/b"}, "name = 'a/b'"),
        ({"name": "classic"}, "'classic' is a built-in ladder"),
        ({"rung": 1}, "unknown key rung = 1"),
        ({"rungs": []}, "rungs = []"),
        ({"rungs": [3]}, "rungs[0] = 3"),
        ({"rungs": [{"knob": "vae", "steps": 1}]}, "rungs[0]: unknown knob 'vae'"),
        ({"rungs": [{"knob": "batch_size"}]}, "neither steps nor to_floor"),
        ({"rungs": [{"knob": "batch_size", "steps": 1, "to_floor": True}]}, "both steps and to_floor"),
        ({"rungs": [{"knob": "batch_size", "steps": 0}]}, "rungs[0].steps = 0"),
        ({"rungs": [{"knob": "batch_size", "steps": True}]}, "rungs[0].steps = True"),
        ({"rungs": [{"knob": "batch_size", "to_floor": False}]}, "rungs[0].to_floor = False"),
        ({"rungs": [{"knob": "batch_size", "steps": 1, "by": 2}]}, "rungs[0]: unknown key by = 2"),
        ({"floors": 3}, "floors = 3"),
        ({"floors": {"vae": 3}}, "floors: unknown knob 'vae'"),
        ({"floors": {"resolution": "256"}}, "floors.resolution = '256'"),
    ],
)
def test_a_wrong_ladder_is_refused_with_its_key_and_value(change, said):
    values = {"name": "mine", "rungs": [{"knob": "batch_size", "steps": 1}]} | change
    with pytest.raises(ConfigError) as caught:
        parse_ladder(values, "mine.toml")
    assert said in caught.value.fact
    assert "mine.toml" in caught.value.fact
    assert caught.value.way_out


def test_a_ladder_is_found_by_name_or_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + WRITTEN.encode())  # editors on Windows add the mark
    assert load_ladder("lossless-first") is LOSSLESS_FIRST
    assert load_ladder(path).name == "keep-detail"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "neither built in nor a file"), (b"name = ", "is no TOML"), (b"\xff", "not UTF-8")],
)
def test_a_ladder_file_that_cannot_be_read_says_why(tmp_path, content, said):
    path = tmp_path / "ladder.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_ladder(str(path))


def test_a_folder_is_no_ladder_file(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        load_ladder(tmp_path)
