"""The walk ends on the first rung that fits and then on the largest batch, one change per trial."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.ladder.knobs import Cost
from autotune.ladder.ladders import CLASSIC, LOSSLESS_FIRST
from autotune.ladder.plan import Plan, Recipe
from autotune.ladder.walk import Direction, Source, Walk, largest_batch

PLAN = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)


def need(plan):
    """Bytes of a made-up but monotone training job."""
    pixels = sum(width * height for width, height in plan.resolutions)
    activations = plan.batch_size * pixels * (1 if plan.gradient_checkpointing else 3)
    return 100_000 + activations + plan.network_dim * 2_000


def run(walk, fits):
    steps = []
    while (step := walk.next()) is not None:
        steps.append(step)
        walk = walk.record(step, fits(step.plan))
        assert len(steps) < 500
    return walk, steps


@st.composite
def recipes(draw):
    side = st.integers(4, 20).map(lambda n: n * 64)
    plan = Plan.of(
        batch_size=draw(st.integers(1, 24)),
        resolution=tuple(draw(st.lists(st.tuples(side, side), min_size=1, max_size=3))),
        gradient_checkpointing=draw(st.booleans()),
        network_dim=draw(st.integers(1, 128)),
    )
    processes = draw(st.integers(1, 3))
    effective = plan.batch_size * draw(st.integers(1, 6)) * processes
    floors = draw(st.fixed_dictionaries({}, optional={"resolution": st.sampled_from([256, 384, 512])}))
    return Recipe(plan, effective, processes, floors)


@st.composite
def cases(draw):
    """A ladder, a recipe, and a budget that falls anywhere on the way down, or under it, or above."""
    ladder, recipe = draw(st.sampled_from([CLASSIC, LOSSLESS_FIRST])), draw(recipes())
    plans = [recipe.plan, *(rung.plan for rung in ladder.rungs(recipe))]
    budget = need(draw(st.sampled_from(plans))) + draw(st.integers(-1, 3_000_000))
    return ladder, recipe, plans, budget


@given(cases())
def test_the_walk_ends_on_the_first_fitting_rung_and_then_on_the_largest_batch(case):
    ladder, recipe, plans, budget = case
    walk, _ = run(Walk.start(ladder, recipe), lambda plan: need(plan) <= budget)
    first = next((plan for plan in plans if need(plan) <= budget), None)
    if first is None:
        assert walk.exhausted
        assert walk.chosen is None
        assert walk.receipts == ()
        return
    limit = max(largest_batch(recipe), first.batch_size)
    allowed = [first.replace("batch_size", n) for n in range(first.batch_size, limit + 1)]
    assert walk.chosen == max((p for p in allowed if need(p) <= budget), key=lambda p: p.batch_size)
    assert walk.done
    assert not walk.exhausted


@given(cases())
def test_every_trial_changes_one_knob_and_no_plan_is_tried_twice(case):
    ladder, recipe, _, budget = case
    _, steps = run(Walk.start(ladder, recipe), lambda plan: need(plan) <= budget)
    assert steps[0].plan == recipe.plan
    assert steps[0].change is None
    assert len({step.plan for step in steps}) == len(steps)
    for before, after in itertools.pairwise(steps):
        assert after.change is not None
        assert before.plan != after.plan
        assert before.plan.replace(after.change.knob, after.change.after) == after.plan
        assert before.plan[after.change.knob] == after.change.before


@given(cases())
def test_no_plan_is_under_a_floor_or_over_the_effective_batch(case):
    ladder, recipe, _, budget = case
    _, steps = run(Walk.start(ladder, recipe), lambda plan: need(plan) <= budget)
    floor = recipe.floors.get("resolution", 256)
    for step in steps:
        for size, written in zip(step.plan.resolutions, recipe.plan.resolutions, strict=True):
            assert all(side >= min(floor, was) for side, was in zip(size, written, strict=True))
        assert step.plan.network_dim >= min(4, recipe.plan.network_dim)
        assert 1 <= step.plan.batch_size <= max(largest_batch(recipe), recipe.plan.batch_size)
        assert step.plan.batch_size * recipe.accumulation(step.plan) * recipe.processes >= recipe.effective_batch


@given(cases())
def test_the_receipts_lead_from_the_recipe_to_the_chosen_plan(case):
    ladder, recipe, _, budget = case
    walk, _ = run(Walk.start(ladder, recipe), lambda plan: need(plan) <= budget)
    plan = recipe.plan
    for change in walk.receipts:
        assert plan[change.knob] == change.before
        plan = plan.replace(change.knob, change.after)
    assert plan == (walk.chosen or recipe.plan)


@given(cases(), st.data())
def test_what_is_known_beforehand_saves_trials_and_changes_nothing(case, data):
    ladder, recipe, plans, budget = case
    told = data.draw(st.lists(st.sampled_from(plans), max_size=4))
    known = {plan: need(plan) <= budget for plan in told}
    plain, all_steps = run(Walk.start(ladder, recipe), lambda plan: need(plan) <= budget)
    walk, steps = run(Walk.start(ladder, recipe, known), lambda plan: need(plan) <= budget)
    assert walk.chosen == plain.chosen
    assert not {step.plan for step in steps} & set(known)
    assert len(steps) <= len(all_steps)
    for before, after in zip(walk.visits, walk.visits[1:], strict=False):
        change = after.step.change
        assert before.step.plan.replace(change.knob, change.after) == after.step.plan


@given(cases(), st.data())
def test_the_walk_ends_even_when_outcomes_contradict_each_other(case, data):
    ladder, recipe, _, _ = case
    walk, steps = run(Walk.start(ladder, recipe), lambda _: data.draw(st.booleans()))
    assert len({step.plan for step in steps}) == len(steps)
    assert walk.chosen is None or any(v.fits and v.step.plan == walk.chosen for v in walk.visits)


def test_a_recipe_of_batch_1_and_accumulation_4_runs_as_4_and_1_when_it_fits():
    walk, steps = run(Walk.start(CLASSIC, Recipe(PLAN.replace("batch_size", 1), 4)), lambda _: True)
    assert [step.plan.batch_size for step in steps] == [1, 2, 4]
    assert [step.direction for step in steps] == [Direction.START, Direction.CLIMB, Direction.CLIMB]
    assert walk.chosen.batch_size == 4
    assert [(c.before, c.after, c.cost) for c in walk.receipts] == [(1, 4, Cost.NONE)]


def test_the_climb_bisects_after_a_failure_and_never_loses_the_fit():
    walk, steps = run(
        Walk.start(CLASSIC, Recipe(PLAN.replace("batch_size", 1), 16)), lambda plan: plan.batch_size <= 5
    )
    assert [step.plan.batch_size for step in steps] == [1, 2, 4, 8, 6, 5]
    assert walk.chosen.batch_size == 5


def test_the_climb_does_not_retry_batches_that_failed_on_the_way_down():
    walk, steps = run(Walk.start(CLASSIC, Recipe(PLAN, 8)), lambda plan: plan.batch_size <= 2)
    assert [step.plan.batch_size for step in steps] == [4, 2, 3]
    assert walk.chosen.batch_size == 2


def test_the_climb_fills_one_process_share_of_the_effective_batch():
    walk, _ = run(Walk.start(CLASSIC, Recipe(PLAN.replace("batch_size", 1), 6, processes=2)), lambda _: True)
    assert walk.chosen.batch_size == 3


def test_a_climb_under_way_already_has_a_plan_to_fall_back_on():
    walk = Walk.start(CLASSIC, Recipe(PLAN.replace("batch_size", 1), 4))
    walk = walk.record(walk.next(), True)
    assert not walk.done
    assert walk.chosen.batch_size == 1
    walk = walk.record(walk.next(), False)
    assert walk.done
    assert walk.chosen.batch_size == 1


def test_recording_leaves_the_earlier_state_as_it_was():
    start = Walk.start(CLASSIC, Recipe(PLAN, 4))
    start.record(start.next(), False)
    assert start.visits == ()
    assert start.next().plan == PLAN


def test_steps_known_beforehand_are_walked_through_and_marked():
    walk = Walk.start(CLASSIC, Recipe(PLAN, 4), known={PLAN.replace("batch_size", 2): False})
    assert [(v.step.plan.batch_size, v.source) for v in walk.visits] == [
        (4, Source.IMPLIED),
        (2, Source.KNOWN),
    ]
    assert walk.next().plan.batch_size == 1


def test_a_trial_overrules_what_was_known():
    half = PLAN.replace("batch_size", 2)
    walk = Walk.start(CLASSIC, Recipe(PLAN, 4), known={PLAN: False, half: True})
    assert walk.next().plan.batch_size == 3
    walk = walk.record(half, False)
    assert walk.chosen is None
    assert [v.source for v in walk.visits] == [Source.KNOWN, Source.TRIAL]
    assert walk.next().plan.batch_size == 1


def test_a_confirming_trial_turns_a_known_step_into_a_tried_one():
    walk = Walk.start(CLASSIC, Recipe(PLAN, 4), known={PLAN: True})
    assert walk.done
    walk = walk.record(PLAN, True)
    assert walk.done
    assert walk.chosen == PLAN
    assert [v.source for v in walk.visits] == [Source.TRIAL]


def test_a_workload_without_a_batch_size_does_not_climb():
    recipe = Recipe(Plan.of(network_dim=8), 4)
    walk, steps = run(Walk.start(CLASSIC, recipe), lambda plan: plan["network_dim"] == 4)
    assert [step.plan["network_dim"] for step in steps] == [8, 4]
    assert walk.chosen == Plan.of(network_dim=4)


@pytest.mark.parametrize("ladder", [CLASSIC, LOSSLESS_FIRST])
def test_each_rung_in_turn_can_be_the_last_that_fits(ladder):
    recipe = Recipe(PLAN, 4)
    for rung in ladder.rungs(recipe):
        walk, _ = run(Walk.start(ladder, recipe), lambda plan, rung=rung: need(plan) <= need(rung.plan))
        assert walk.chosen == rung.plan
