"""With forecasts the walk ends where it ends without them, and nothing unmeasured is chosen."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.ladder.ladders import CLASSIC, LOSSLESS_FIRST
from autotune.ladder.plan import Plan, Recipe
from autotune.ladder.walk import Walk
from autotune.memory.forecast import COUNT_ERROR
from autotune.memory.interval import Interval
from autotune.trial.guide import SEGMENT_BYTES, Estimate, Guide, Residual, Trialled
from autotune.units import GIB, MIB

START = Plan.of(batch_size=8, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)
FLOORS = {"resolution": 384, "network_dim": 8}
Need = Callable[[Plan], int]


def count(plan: Plan) -> int:
    """Bytes of a made-up training job: weights, adapters, activations."""
    pixels = sum(width * height for width, height in plan.resolutions)
    activations = plan.batch_size * pixels * (600 if plan.gradient_checkpointing else 5000)
    return 2 * GIB + plan.network_dim * MIB + activations


def estimate(plan: Plan) -> Estimate:
    return Estimate(count(plan), round(0.97 * count(plan)), Interval(0, 512 * MIB))


def walk_for_real(ladder, recipe, need: Need, room: int) -> Walk:
    walk = Walk.start(ladder, recipe)
    while (step := walk.next()) is not None:
        walk = walk.record(step, need(step.plan) <= room)
    return walk


def be_guided(guide: Guide, need: Need) -> tuple[Guide, list[Plan]]:
    tried: list[Plan] = []
    while (step := guide.next()) is not None:
        tried.append(step.plan)
        fits = need(step.plan) <= guide.room_bytes
        guide = guide.record(step.plan, Trialled(fits, need(step.plan) if fits else None))
        assert len(tried) < 200
    return guide, tried


@st.composite
def jobs(draw):
    recipe = Recipe(START.replace("batch_size", draw(st.integers(1, 16))), draw(st.integers(1, 24)), 1, FLOORS)
    ladder = draw(st.sampled_from([CLASSIC, LOSSLESS_FIRST]))
    plans = [recipe.plan, *(rung.plan for rung in ladder.rungs(recipe))]
    room = count(draw(st.sampled_from(plans))) + draw(st.integers(-600, 600)) * MIB
    return ladder, recipe, room


scratch = st.integers(0, 400).map(lambda mib: mib * MIB)
growth = st.floats(-0.01, 0.08)


@given(jobs(), scratch, growth)
def test_the_choice_is_that_of_a_walk_of_real_trials_and_takes_at_most_one_more(job, fixed, growing):
    ladder, recipe, room = job

    def need(plan: Plan) -> int:
        return count(plan) + max(fixed + round(growing * count(plan)), -round(COUNT_ERROR * count(plan)))

    real = walk_for_real(ladder, recipe, need, room)
    guide, tried = be_guided(Guide(ladder, recipe, estimate, room), need)
    assert guide.walk().chosen == real.chosen
    assert len(set(tried)) == len(tried)
    assert len(tried) <= len(real.visits) + 1
    assert real.chosen is None or real.chosen in tried
    assert [change.after for change in guide.walk().receipts] == [change.after for change in real.receipts]


@given(jobs(), st.data())
def test_scratch_that_comes_and_goes_with_the_sizes_leads_to_the_same_choice(job, data):
    """As a library does that takes other kernels for other sizes: any scratch up to a bound, for each batch and
    resolution anew, but no plan needs more than one that stands above it."""
    ladder, recipe, room = job
    bound = data.draw(scratch)
    shares = data.draw(st.lists(st.floats(0, 1), min_size=7, max_size=7))

    def raw(plan: Plan) -> int:
        number = plan.batch_size * 31 + sum(map(sum, plan.resolutions)) // 64
        return count(plan) + round(shares[number % len(shares)] * bound)

    plans = [recipe.plan, *(rung.plan for rung in ladder.rungs(recipe))]

    def need(plan: Plan) -> int:
        below = [raw(one) for one in plans[plans.index(plan) :]] if plan in plans else []
        smaller = [raw(plan.replace("batch_size", batch)) for batch in range(1, plan.batch_size + 1)]
        return max(*below, *smaller, raw(plan))

    real = walk_for_real(ladder, recipe, need, room)
    guide, _ = be_guided(Guide(ladder, recipe, estimate, room), need)
    assert guide.walk().chosen == real.chosen


@given(jobs(), st.data())
def test_whatever_trials_show_the_search_ends_on_a_measured_fit_or_on_the_last_rung(job, data):
    ladder, recipe, room = job
    answers: dict[Plan, int] = {}

    def need(plan: Plan) -> int:
        return answers.setdefault(plan, data.draw(st.integers(GIB, 60 * GIB)))

    guide, tried = be_guided(Guide(ladder, recipe, estimate, room), need)
    chosen = guide.walk().chosen
    assert len(set(tried)) == len(tried)
    assert chosen is None or (chosen in tried and need(chosen) <= room)


def test_an_exact_forecast_takes_one_trial_wherever_no_plan_is_near_the_edge() -> None:
    recipe = Recipe(START, 8, 1, FLOORS)
    room = count(START.replace("batch_size", 4)) + 600 * MIB
    guide, tried = be_guided(Guide(CLASSIC, recipe, estimate, room), count)
    assert tried == [START.replace("batch_size", 4)]
    assert guide.next() is None


def test_if_nothing_can_fit_only_the_last_rung_is_tried() -> None:
    recipe = Recipe(START, 8, 1, FLOORS)
    guide, tried = be_guided(Guide(CLASSIC, recipe, estimate, GIB), count)
    assert tried == [list(CLASSIC.rungs(recipe))[-1].plan]
    assert guide.walk().exhausted


def test_a_plan_too_close_to_call_is_tried_and_the_smallest_of_them_first() -> None:
    recipe = Recipe(START, 8, 1, FLOORS)
    room = count(START)  # the count leaves no byte for scratch, so only a trial can tell
    guide = Guide(CLASSIC, recipe, estimate, room)
    first = guide.next()
    assert first is not None
    assert first.plan.batch_size < START.batch_size
    guide = guide.record(first.plan, Trialled(True, count(first.plan)))
    second = guide.next()
    assert second is not None
    assert second.plan.batch_size == first.plan.batch_size + 1


def test_one_measurement_narrows_what_the_others_need() -> None:
    recipe = Recipe(START, 8, 1, FLOORS)
    small = START.replace("batch_size", 2)
    before = Guide(CLASSIC, recipe, estimate, 40 * GIB)
    after = before.record(small, Trialled(True, count(small) + 30 * MIB))
    wide, narrow = before.need(START), after.need(START)
    assert wide is not None
    assert narrow is not None
    assert narrow.width_bytes < wide.width_bytes
    assert narrow.low_bytes == count(START) - round(COUNT_ERROR * count(START))
    growing = round(30 * MIB * count(START) / count(small))
    assert narrow.high_bytes == count(START) + 2 * growing + 2 * SEGMENT_BYTES
    assert after.need(START.replace("batch_size", 3)) != narrow


def test_residuals_of_earlier_jobs_move_the_guess_and_settle_nothing() -> None:
    recipe = Recipe(START, 8, 1, FLOORS)
    room = count(START) + 100 * MIB
    heavy = Residual(4 * GIB, 4 * GIB + 300 * MIB)
    plain, taught = (
        Guide(CLASSIC, recipe, lambda p: Estimate(count(p), count(p), Interval(0, 0)), room, one)
        for one in ((), (heavy,))
    )
    assert plain.guess(START)
    assert not taught.guess(START)
    assert taught.need(START) == plain.need(START)
    guide, tried = be_guided(taught, count)
    assert guide.walk().chosen == START
    assert tried[-1] == START


@given(jobs())
def test_without_forecasts_it_is_the_plain_walk(job):
    ladder, recipe, room = job
    real = walk_for_real(ladder, recipe, count, room)
    guide, tried = be_guided(Guide(ladder, recipe, lambda plan: None, room), count)
    assert guide.walk().chosen == real.chosen
    assert tried == [visit.step.plan for visit in real.visits if visit.source == "trial"]


def test_a_failure_that_is_not_memory_says_nothing_of_other_plans() -> None:
    recipe = Recipe(START, 8, 1, FLOORS)
    guide = Guide(CLASSIC, recipe, estimate, 60 * GIB)
    four = START.replace("batch_size", 4)
    assert guide.record(four, Trialled(False, None)).guess(START) is False
    assert guide.record(four, Trialled(False, None, by_memory=False)).guess(START) is True


def test_a_need_is_never_thought_below_what_the_plan_had_allocated() -> None:
    tight = Estimate(10 * GIB, 10 * GIB - 50 * MIB, Interval(0, 0))
    need = Guide(CLASSIC, Recipe(START, 8, 1, FLOORS), lambda plan: tight, 9 * GIB).need(START)
    assert need == Interval(10 * GIB - 50 * MIB, 10 * GIB)


def test_a_card_that_needs_less_than_forecast_lowers_the_bound_for_the_other_plans() -> None:
    recipe = Recipe(START, 8, 1, FLOORS)
    small = START.replace("batch_size", 2)
    guide = Guide(CLASSIC, recipe, estimate, 40 * GIB).record(small, Trialled(True, round(0.95 * count(small))))
    need = guide.need(START)
    assert need is not None
    assert need.low_bytes == pytest.approx(0.9 * count(START), rel=0.001)


@pytest.mark.parametrize(("measured", "believed"), [(1.02, True), (0.9, True), (2.0, False), (0.3, False)])
def test_a_forecast_of_another_job_is_recognised(measured: float, believed: bool) -> None:
    assert Residual(GIB, round(measured * GIB)).believable is believed
