"""Each knob steps down as documented and never past its floor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.ladder.knobs import KNOBS, Cost, describe_value

RESOLUTION = KNOBS["resolution"]
SIDES = st.integers(16, 4096)
SIZES = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=4).map(tuple)


def walk_down(knob, value, floor):
    values = []
    while (value := knob.step_down(value, floor)) is not None:
        values.append(value)
    return values


@pytest.mark.parametrize(
    ("value", "floor", "expected"),
    [(8, 1, [4, 2, 1]), (5, 1, [2, 1]), (1, 1, []), (12, 4, [6, 4])],
)
def test_batch_size_halves_down_to_its_floor(value, floor, expected):
    assert walk_down(KNOBS["batch_size"], value, floor) == expected


def test_rank_halves_and_stops_at_its_floor_even_from_an_odd_value():
    assert walk_down(KNOBS["network_dim"], 32, 4) == [16, 8, 4]
    assert walk_down(KNOBS["network_dim"], 9, 4) == [4]
    assert walk_down(KNOBS["network_dim"], 2, 4) == []


def test_checkpointing_goes_from_off_to_on_once():
    assert walk_down(KNOBS["gradient_checkpointing"], False, 0) == [True]
    assert walk_down(KNOBS["gradient_checkpointing"], True, 0) == []


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((512, 512), (448, 448)),
        ((768, 512), (704, 448)),
        ((512, 768), (448, 704)),
        ((500, 500), (448, 448)),
        ((384, 256), (320, 256)),
        ((1024, 192), (960, 192)),
    ],
)
def test_a_resolution_step_lowers_the_longer_side_by_64_and_keeps_the_aspect(size, expected):
    assert RESOLUTION.step_down((size,), 256) == (expected,)


def test_the_largest_resolution_goes_first_until_the_others_are_larger():
    steps = walk_down(RESOLUTION, ((512, 512), (640, 640)), 448)
    assert steps == [
        ((512, 512), (576, 576)),
        ((512, 512), (512, 512)),
        ((448, 448), (512, 512)),
        ((448, 448), (448, 448)),
    ]


def test_a_size_at_its_floor_does_not_keep_a_smaller_longer_one_from_stepping():
    assert RESOLUTION.step_down(((256, 256), (320, 128)), 256) == ((256, 256), (256, 128))


@given(SIZES, st.integers(1, 1024))
def test_resolution_ends_at_its_floor_with_every_step_smaller_and_on_the_grid(sizes, floor):
    previous = sizes
    for step in walk_down(RESOLUTION, sizes, floor):
        changed = [(old, new) for old, new in zip(previous, step, strict=True) if old != new]
        assert len(changed) == 1
        (old, new) = changed[0]
        assert new[0] <= old[0]
        assert new[1] <= old[1]
        assert new != old
        assert all(side >= min(floor, was) for side, was in zip(new, old, strict=True))
        assert max(new) % 64 == 0
        assert max(new) >= floor
        assert not (old[0] > old[1] and new[0] < new[1])  # a landscape never turns upright
        assert not (old[0] < old[1] and new[0] > new[1])
        previous = step
    assert all(max(size) < floor + 64 or max(size) <= floor for size in previous)


def test_costs_say_what_the_user_loses():
    costs = {name: knob.cost for name, knob in KNOBS.items()}
    assert costs == {
        "batch_size": Cost.SPEED,
        "resolution": Cost.QUALITY,
        "gradient_checkpointing": Cost.SPEED,
        "network_dim": Cost.QUALITY,
    }


def test_values_read_well_in_tables():
    assert describe_value("resolution", ((512, 768), (448, 448))) == "512x768, 448x448"
    assert describe_value("gradient_checkpointing", True) == "on"
    assert describe_value("batch_size", 4) == "4"
    assert describe_value("unheard_of", 3) == "3"
