"""Intervals of bytes keep what they promise under every operation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.memory.interval import Interval

SIZES = st.integers(0, 1 << 45)
INTERVALS = st.tuples(SIZES, SIZES).map(lambda pair: Interval(min(pair), max(pair)))


@given(INTERVALS, INTERVALS, st.data())
def test_a_sum_holds_the_sum_of_any_two_members(first: Interval, second: Interval, data: st.DataObject) -> None:
    one = data.draw(st.integers(first.low_bytes, first.high_bytes))
    other = data.draw(st.integers(second.low_bytes, second.high_bytes))
    assert one + other in first + second
    assert first + second == second + first == Interval.total([first, second])


@given(INTERVALS, SIZES)
def test_a_known_size_shifts_without_widening(interval: Interval, size: int) -> None:
    assert (interval + size).width_bytes == interval.width_bytes
    assert interval + size == size + interval == interval + Interval.exactly(size)


@given(INTERVALS, st.floats(0, 4), st.data())
def test_scaling_never_loses_a_member(interval: Interval, factor: float, data: st.DataObject) -> None:
    member = data.draw(st.integers(interval.low_bytes, interval.high_bytes))
    assert int(member * factor) in interval.scaled(factor)


@given(INTERVALS, st.integers(1, 1 << 25))
def test_rounding_out_reaches_whole_steps_and_keeps_the_interval(interval: Interval, step: int) -> None:
    rounded = interval.rounded_out(step)
    assert rounded.low_bytes % step == rounded.high_bytes % step == 0
    assert interval.low_bytes in rounded
    assert interval.high_bytes in rounded
    assert rounded.width_bytes < interval.width_bytes + 2 * step


@given(INTERVALS, INTERVALS)
def test_the_hull_is_the_smallest_that_holds_both(first: Interval, second: Interval) -> None:
    hull = first.hull(second)
    assert {hull.low_bytes, hull.high_bytes} <= {*_bounds(first), *_bounds(second)}
    assert all(bound in hull for bound in (*_bounds(first), *_bounds(second)))


@given(INTERVALS)
def test_the_middle_is_a_member(interval: Interval) -> None:
    assert interval.middle_bytes in interval
    assert 0 <= interval.relative_width <= 2


@pytest.mark.parametrize("bounds", [(2, 1), (-1, 1)])
def test_bounds_in_the_wrong_order_or_below_zero_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no interval of bytes"):
        Interval(*bounds)


def _bounds(interval: Interval) -> tuple[int, int]:
    return interval.low_bytes, interval.high_bytes
