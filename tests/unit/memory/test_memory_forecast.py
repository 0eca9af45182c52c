"""A forecast's verdict never promises what may fail nor refuses what may fit; its peak has a phase's name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.memory.forecast import COUNT_ERROR, FitVerdict, Forecast, Squeeze, forecast_of, settle
from autotune.memory.interval import Interval
from autotune.memory.phases import PhasePeak
from autotune.memory.unseen import Part

ORDER = [FitVerdict.NO, FitVerdict.CLOSE, FitVerdict.FITS]
SIZES = st.integers(0, 1 << 40)


def peak(name: str, allocated: int, cached: int) -> PhasePeak:
    return PhasePeak(name, allocated, allocated + cached)


INTERVALS = st.builds(lambda low, width: Interval(low, low + width), SIZES, SIZES)
PHASES = st.lists(st.builds(peak, st.text(max_size=3), SIZES, SIZES), max_size=5)
FORECASTS = st.builds(
    lambda phases, parts: Forecast(tuple(phases), tuple(Part("scratch", part, "seen") for part in parts)),
    PHASES,
    st.lists(INTERVALS, max_size=3),
)


@given(FORECASTS, INTERVALS, SIZES, SIZES)
def test_more_memory_never_makes_the_verdict_worse(
    forecast: Forecast, context: Interval, one: int, more: int
) -> None:
    verdicts = [forecast.judge(total, context) for total in (one, one + more)]
    assert ORDER.index(verdicts[0]) <= ORDER.index(verdicts[1])


@given(FORECASTS, INTERVALS, SIZES)
def test_each_verdict_has_its_ground(forecast: Forecast, context: Interval, total: int) -> None:
    verdict = forecast.judge(total, context)
    unseen = sum(part.interval.low_bytes for part in forecast.parts) + context.low_bytes
    alive = max((phase.peak_allocated_bytes for phase in forecast.phases), default=0) + unseen
    assert (verdict is FitVerdict.FITS) == (forecast.need(context).high_bytes <= total)
    assert (verdict is FitVerdict.NO) == (alive > total)


@given(FORECASTS, INTERVALS)
def test_the_bounds_themselves_count_as_fitting_and_as_open(forecast: Forecast, context: Interval) -> None:
    top = forecast.need(context).high_bytes
    assert forecast.judge(top, context) is FitVerdict.FITS
    unseen = Interval.total(part.interval for part in forecast.parts) + context
    assert forecast.judge(forecast.allocated_bytes + unseen.low_bytes, context) is not FitVerdict.NO
    if top:
        assert forecast.judge(top - 1, context) is not FitVerdict.FITS


@given(FORECASTS, INTERVALS, SIZES)
def test_a_plan_fits_where_even_the_least_room_holds_what_was_counted(
    forecast: Forecast, context: Interval, total: int
) -> None:
    room = forecast.room(total, context)
    if forecast.counted_bytes and forecast.judge(total, context) is not FitVerdict.FITS:
        assert room.low_bytes < forecast.counted_bytes  # so in that room the allocator meets its limit
    if room.low_bytes >= max(1, forecast.counted_bytes):
        assert forecast.judge(total, context) is FitVerdict.FITS


@pytest.mark.parametrize(
    ("least", "most", "verdict"),
    [
        (Squeeze.FITS, Squeeze.FITS, FitVerdict.FITS),
        (Squeeze.RETRIES, Squeeze.FITS, FitVerdict.CLOSE),
        (Squeeze.RETRIES, Squeeze.RETRIES, FitVerdict.CLOSE),
        (Squeeze.FAILS, Squeeze.FITS, FitVerdict.CLOSE),
        (Squeeze.FAILS, Squeeze.RETRIES, FitVerdict.CLOSE),
        (Squeeze.FAILS, Squeeze.FAILS, FitVerdict.NO),
    ],
)
def test_what_the_allocator_did_in_both_rooms_settles_the_verdict(
    least: Squeeze, most: Squeeze, verdict: FitVerdict
) -> None:
    assert settle(least, most) is verdict


@given(PHASES.filter(bool))
def test_the_peak_is_of_the_first_phase_that_reaches_it(phases: list[PhasePeak]) -> None:
    reserved = [phase.peak_reserved_bytes for phase in phases]
    assert forecast_of(phases).peak_phase == phases[reserved.index(max(reserved))].phase


@given(FORECASTS, INTERVALS)
def test_no_phase_needs_more_than_the_whole_and_one_needs_as_much(forecast: Forecast, context: Interval) -> None:
    needs = [forecast.phase_need(phase, context) for phase in forecast.phases]
    assert all(need.high_bytes <= forecast.need(context).high_bytes for need in needs)
    assert not needs or forecast.need(context) in needs


def test_a_trial_without_phases_needs_its_context_alone() -> None:
    nothing = forecast_of([])
    assert nothing.peak_phase == ""
    assert nothing.need(Interval(3, 5)) == Interval(3, 5)


def test_scratch_only_ever_adds_and_as_much_as_the_stated_error() -> None:
    forecast = forecast_of([peak("load", 100, 0), peak("step", 900_000, 100_000)])
    assert forecast.reserved() == Interval(1_000_000, round(1_000_000 * (1 + COUNT_ERROR)))


@given(FORECASTS)
def test_json_is_strict_and_says_forecast(forecast: Forecast) -> None:
    read = json.loads(json.dumps(forecast.to_json(), allow_nan=False))
    assert read["evidence"] == "forecast"
    assert [PhasePeak.from_json(phase) for phase in read["phases"]] == list(forecast.phases)
