"""Receipts say what changed, what it costs and what stayed equal."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.ladder.knobs import Change, Cost
from autotune.ladder.plan import Plan, Recipe
from autotune.ladder.receipts import compare_plans, describe_change, render_receipts, scaled_alpha

PLAN = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)
LOW = Plan.of(batch_size=1, resolution=((448, 448),), gradient_checkpointing=True, network_dim=16)


@given(st.integers(1, 256), st.floats(0.01, 512), st.integers(1, 256))
def test_alpha_follows_the_rank_so_that_the_scale_stays(dim, alpha, new_dim):
    scale = alpha / dim
    assert abs(scaled_alpha(dim, alpha, new_dim) / new_dim - scale) <= 1e-12 * scale


def test_every_changed_knob_has_one_receipt_with_its_cost():
    assert render_receipts(Recipe(PLAN, 4), LOW, recipe_alpha=16) == (
        "batch_size 4 -> 1, costs speed, not quality (microbatches per step 1 -> 4)",
        "resolution 512x512 -> 448x448, costs quality",
        "gradient_checkpointing off -> on, costs speed, not quality",
        "network_dim 32 -> 16, costs quality (network_alpha 16 -> 8)",
        "stays equal: effective batch 4, which samples share a step and their order, "
        "number of optimizer steps, alpha/dim 0.5",
    )


def test_a_recipe_that_fits_has_nothing_to_confess():
    lines = render_receipts(Recipe(PLAN, 4), PLAN)
    assert lines[0] == "nothing changes: the recipe fits as written"
    assert "resolution 512x512" in lines[1]
    assert "network_dim 32" in lines[1]


def test_a_larger_batch_within_the_effective_batch_costs_nothing():
    small = PLAN.replace("batch_size", 1)
    assert compare_plans(small, PLAN) == (Change("batch_size", 1, 4, Cost.NONE),)
    assert "costs nothing (microbatches per step 4 -> 1)" in render_receipts(Recipe(small, 4), PLAN)[0]


def test_plans_compare_by_value_whatever_the_order_of_their_knobs():
    shuffled = Plan(tuple(reversed(PLAN.items_)))
    assert shuffled == PLAN
    assert hash(shuffled) == hash(PLAN)
    assert compare_plans(PLAN, shuffled) == ()


def test_one_change_reads_as_one_line():
    change = Change("network_dim", 32, 16, Cost.QUALITY)
    assert describe_change(change) == "network_dim 32 -> 16, costs quality"
