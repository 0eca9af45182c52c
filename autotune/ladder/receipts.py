"""Receipts: what a plan changes against the recipe, what that costs, and what stays equal. Text, for people.

Owns the comparison and its words. Must never choose a plan, and states only what the ladder guarantees.
"""

from collections.abc import Mapping
from fractions import Fraction

from autotune.ladder.knobs import KNOBS, Change, Cost, Knob, describe_value
from autotune.ladder.plan import BATCH_SIZE, NETWORK_DIM, Plan, Recipe

_COSTS = {
    Cost.NONE: "costs nothing",
    Cost.SPEED: "costs speed, not quality",
    Cost.QUALITY: "costs quality",
}


def scaled_alpha(recipe_dim: int, recipe_alpha: float, dim: int) -> float:
    """The network_alpha for rank `dim` that keeps the recipe's alpha/dim, which scales what LoRA adds."""
    return float(Fraction(recipe_alpha) * dim / recipe_dim)


def compare_plans(before: Plan, after: Plan, knobs: Mapping[str, Knob] = KNOBS) -> tuple[Change, ...]:
    """The knobs whose value differs, in the order of `before`, each with what the change costs.

    A larger batch costs nothing: the walk raises it only within the effective batch.
    """
    return tuple(
        Change(name, value, after[name], _cost(name, before, after, knobs))
        for name, value in before.items()
        if after[name] != value
    )


def describe_change(change: Change, knobs: Mapping[str, Knob] = KNOBS) -> str:
    """One change in one line: `resolution 512x512 -> 448x448, costs quality`."""
    before, after = (describe_value(change.knob, value, knobs) for value in (change.before, change.after))
    return f"{change.knob} {before} -> {after}, {_COSTS[change.cost]}"


def render_receipts(
    recipe: Recipe, plan: Plan, recipe_alpha: float | None = None, knobs: Mapping[str, Knob] = KNOBS
) -> tuple[str, ...]:
    """What `plan` changes against the recipe, one line per knob, and a last line with what stays equal.

    `recipe_alpha` is the recipe's network_alpha, where the workload has one.
    """
    changes = compare_plans(recipe.plan, plan, knobs)
    lines = [describe_change(change, knobs) + _detail(change, recipe, plan, recipe_alpha) for change in changes]
    return (
        *(lines or ["nothing changes: the recipe fits as written"]),
        _what_stays(recipe, plan, recipe_alpha, knobs),
    )


def _cost(name: str, before: Plan, after: Plan, knobs: Mapping[str, Knob]) -> Cost:
    if name == BATCH_SIZE and after.batch_size > before.batch_size:
        return Cost.NONE
    return knobs[name].cost if name in knobs else Cost.QUALITY  # unknown: claim the worst


def _detail(change: Change, recipe: Recipe, plan: Plan, recipe_alpha: float | None) -> str:
    if change.knob == BATCH_SIZE:
        before, after = recipe.accumulation(recipe.plan), recipe.accumulation(plan)
        return f" (microbatches per step {before} -> {after})"
    if change.knob == NETWORK_DIM and recipe_alpha is not None:
        alpha = scaled_alpha(recipe.plan.network_dim, recipe_alpha, plan.network_dim)
        return f" (network_alpha {recipe_alpha:g} -> {alpha:g})"
    return ""


def _what_stays(recipe: Recipe, plan: Plan, recipe_alpha: float | None, knobs: Mapping[str, Knob]) -> str:
    equal = []
    if BATCH_SIZE in plan:
        equal += [f"effective batch {recipe.effective_batch}", "which samples share a step and their order"]
    equal.append("number of optimizer steps")
    if NETWORK_DIM in plan and recipe_alpha is not None:
        equal.append(f"alpha/dim {recipe_alpha / recipe.plan.network_dim:g}")
    untouched = [name for name in plan if plan[name] == recipe.plan[name] and name != BATCH_SIZE]
    equal += [f"{name} {describe_value(name, plan[name], knobs)}" for name in untouched]
    return f"stays equal: {', '.join(equal)}"
