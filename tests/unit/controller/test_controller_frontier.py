"""The frontier search finds what trying every batch would, from few trials."""

from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.controller.frontier import BatchSearch, largest_batches

MOST = 40
NEEDS = st.lists(st.integers(0, 50), min_size=MOST, max_size=MOST).map(lambda steps: list(accumulate(steps)))
ROOMS = st.lists(st.integers(-10, 2100), min_size=1, max_size=5)


class Asked:
    """A need function that counts."""

    def __init__(self, need: Callable[[int], int]) -> None:
        self.need = need
        self.batches: list[int] = []

    def __call__(self, batch: int) -> int:
        self.batches.append(batch)
        return self.need(batch)


@given(NEEDS, ROOMS)
def test_it_finds_what_trying_every_batch_would(needs: list[int], rooms: list[int]) -> None:
    asked = Asked(lambda batch: needs[batch - 1])
    named = {str(number): room for number, room in enumerate(rooms)}
    found = largest_batches(BatchSearch(asked, MOST), named)
    assert found == {name: sum(need <= room for need in needs) for name, room in named.items()}
    assert len(asked.batches) == len(set(asked.batches))
    assert all(1 <= batch <= MOST for batch in asked.batches)


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 10**7))
def test_straight_lines_take_few_trials(base: int, slope: int, room: int) -> None:
    asked = Asked(lambda batch: base + slope * batch)
    largest = BatchSearch(asked).largest(room)
    assert largest == max(0, min(64, (room - base) // slope))
    assert len(asked.batches) <= 6


def test_what_one_room_showed_serves_the_others() -> None:
    asked = Asked(lambda batch: 100 * batch)
    largest_batches(BatchSearch(asked), {str(room): room for room in range(100, 6500, 100)})
    assert len(asked.batches) == len(set(asked.batches)) <= 64


@pytest.mark.parametrize(("room", "largest", "tried"), [(99, 0, [1]), (-5, 0, [1]), (100, 1, [1, 2])])
def test_nothing_that_was_not_tried_is_said_to_fit(room: int, largest: int, tried: list[int]) -> None:
    asked = Asked(lambda batch: 100 * batch)
    assert BatchSearch(asked).largest(room) == largest
    assert asked.batches == tried


def test_a_need_that_does_not_grow_ends_at_the_most() -> None:
    asked = Asked(lambda batch: 7)
    assert BatchSearch(asked, 16).largest(7) == 16
    assert len(asked.batches) <= 4
