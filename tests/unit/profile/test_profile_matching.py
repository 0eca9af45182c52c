"""A profile is used only for the same card, workload, recipe, ladder and class, and only while it fits."""

import json
from dataclasses import replace
from datetime import date

import pytest

from autotune.device.session import Evidence
from autotune.ladder.ladders import CLASSIC, LOSSLESS_FIRST, Ladder
from autotune.ladder.plan import Recipe
from autotune.ladder.walk import Walk
from autotune.profile.build import Card, profile_from
from autotune.profile.matching import find_match, known_outcomes
from autotune.profile.schema import parse_profile
from autotune.testing.store_contract import RTX_3060, RTX_3090, sample_job, sample_outcomes, sample_profile
from autotune.units import GIB, MIB

JOB = sample_job()


def stored(profile):
    return parse_profile(profile.canonical_bytes, "x")


def match(*profiles, card=RTX_3060, job=JOB, ladder=CLASSIC, evidence=Evidence.MEASURED, budget=10 * GIB):
    return find_match(profiles, card, job, ladder, evidence, budget)


def with_recipe(**changes):
    return replace(JOB, recipe=replace(JOB.recipe, **changes))


def test_the_same_card_and_job_match():
    profile = stored(sample_profile())
    found = match(profile)
    assert found.profile is profile
    assert found.why.startswith(f"profile {profile.digest[:8]} of 2026-01-31 matches")


@pytest.mark.parametrize(
    ("today", "why"),
    [
        ({"card": RTX_3090}, "it is of a NVIDIA GeForce RTX 3060, this card is a NVIDIA GeForce RTX 3090"),
        ({"card": Card(RTX_3060.name, 8 * GIB)}, "its card has 12,288 MiB, this one 8,192 MiB"),
        ({"evidence": Evidence.SIMULATED}, "its numbers are measured, this device gives simulated ones"),
        ({"job": sample_job(precision="bf16")}, "differs in precision: fp16 there, bf16 here"),
        ({"job": sample_job(attention="sdpa")}, "differs in attention: nothing there, sdpa here"),
        ({"job": with_recipe(effective_batch=8)}, "recipe differs in effective_batch: 4 there, 8 here"),
        (
            {"job": with_recipe(plan=JOB.recipe.plan.replace("network_dim", 16))},
            "network_dim: 32 there, 16 here",
        ),
        ({"job": with_recipe(floors={})}, "recipe differs in floors"),
        ({"ladder": LOSSLESS_FIRST}, "made with ladder classic, not lossless-first"),
        ({"ladder": Ladder("classic", CLASSIC.stages[:2])}, "ladder classic has other rungs or floors now"),
        ({"budget": 5 * GIB}, "its plan takes 5,420 MiB, today's budget is 5,120 MiB"),
        ({"budget": 11 * GIB}, "the card has more room now (11,264 MiB against 10,240 MiB)"),
    ],
)
def test_any_difference_that_matters_is_an_objection_and_is_named(today, why):
    found = match(stored(sample_profile()), **today)
    assert found.profile is None
    assert why in found.why


@pytest.mark.parametrize(
    "forged",
    [
        {"network_dim": 1},
        {"resolution": [[64, 64]]},
        {"resolution": [[448, 448]], "gradient_checkpointing": 1},
        {"batch_size": 8},
        {"batch_size": [[512, 512]]},
        {"batch_size": None},
        {"network_dim": None},
        {"rank": 4},
    ],
)
def test_a_plan_that_no_walk_ends_on_is_never_used(forged):
    values = json.loads(sample_profile().canonical_bytes)
    for plan in (values["chosen"], values["trials"][1]["plan"]):
        plan.update(forged)
        for knob in [knob for knob, value in plan.items() if value is None]:
            del plan[knob]
    found = match(parse_profile(json.dumps(values).encode(), "x"))
    assert found.profile is None
    assert "on no rung of the ladder" in found.why


def test_the_context_counts_against_the_budget():
    profile = stored(sample_profile())
    exact = 5 * GIB + 300 * MIB
    assert match(profile, budget=exact).profile is profile
    assert match(profile, budget=exact - 1).profile is None


def test_a_little_more_room_does_not_make_a_profile_stale():
    assert match(stored(sample_profile()), budget=int(10 * GIB * 1.04)).profile


def test_a_recipe_that_fitted_as_written_is_never_stale():
    job = with_recipe(plan=JOB.recipe.plan.replace("batch_size", 2))
    outcomes = sample_outcomes(JOB, Evidence.MEASURED)[1:]
    profile = profile_from(
        job, outcomes, outcomes[0].plan, RTX_3060, evidence=Evidence.MEASURED, versions={"torch": "2"},
        ladder=CLASSIC, budget_bytes=6 * GIB, created=date(2026, 1, 1),
    )  # fmt: skip
    assert match(profile, job=job, budget=12 * GIB).profile is profile


def test_among_several_the_one_with_the_largest_budget_wins_and_then_the_newest():
    small, old = sample_profile(budget_bytes=9 * GIB), sample_profile()
    new, foreign = sample_profile(created=date(2026, 2, 1)), sample_profile(card=RTX_3090)
    assert match(new, old, small, foreign).profile is new
    assert match(foreign, small, old, new).profile is new


def test_the_objection_speaks_of_the_closest_profile():
    found = match(sample_profile(card=RTX_3090), sample_profile(budget_bytes=6 * GIB))
    assert "more room now" in found.why


def test_without_profiles_the_reason_says_so():
    assert match().why == "no profile is stored for this card"


def test_trials_of_a_profile_spare_the_walk_what_follows_from_them():
    profile = stored(sample_profile())
    half = JOB.recipe.plan.replace("batch_size", 2)
    assert known_outcomes(profile, 10 * GIB) == {JOB.recipe.plan: False, half: True}
    assert known_outcomes(profile, 11 * GIB) == {half: True}
    assert known_outcomes(profile, 5 * GIB) == {JOB.recipe.plan: False}
    walk = Walk.start(CLASSIC, JOB.recipe, known_outcomes(profile, 9 * GIB))
    assert walk.chosen == half
    assert walk.next().plan == JOB.recipe.plan.replace("batch_size", 3)


def test_a_recipe_without_floors_matches_itself():
    job = replace(JOB, recipe=Recipe(JOB.recipe.plan, 4))
    profile = stored(sample_profile(job))
    assert match(profile, job=job).profile is profile
