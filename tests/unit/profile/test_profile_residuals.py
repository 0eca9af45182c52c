"""Profiles keep forecasts beside measurements, each as what it is, and tell how far both are apart on a card."""

from datetime import date

from autotune.device.session import Evidence
from autotune.ladder.ladders import CLASSIC
from autotune.profile.build import profile_from
from autotune.profile.matching import known_outcomes
from autotune.profile.residuals import card_residuals
from autotune.profile.schema import parse_profile
from autotune.testing.store_contract import RTX_3060, sample_job
from autotune.trial.guide import Residual
from autotune.trial.outcome import Outcome, Verdict
from autotune.units import GIB

JOB = sample_job()
PLAN = JOB.recipe.plan
TOTAL = RTX_3060.total_bytes


def outcome(plan, verdict, evidence, reserved):
    return Outcome(plan, verdict, evidence, peak_allocated_bytes=GIB, peak_reserved_bytes=reserved)


MEASURED_BYTES = round(5.1 * GIB)


def profile(measured=MEASURED_BYTES, evidence=Evidence.MEASURED, verdict=Verdict.FITS):
    larger = PLAN.replace("batch_size", 8)
    outcomes = [
        outcome(larger, Verdict.OOM, Evidence.FORECAST, 40 * GIB),
        outcome(PLAN, Verdict.FITS, Evidence.FORECAST, 5 * GIB),
        outcome(PLAN, verdict, evidence, measured),
    ]
    made = profile_from(
        JOB,
        outcomes,
        PLAN,
        RTX_3060,
        evidence=evidence,
        versions={"torch": "2.13.0", "driver": "580.1"},
        forecast_versions={"torch": "2.13.0+cu130"},
        ladder=CLASSIC,
        budget_bytes=10 * GIB,
        created=date(2026, 1, 31),
    )
    return parse_profile(made.canonical_bytes, "stored")


def test_a_profile_keeps_both_with_the_versions_of_each():
    stored = profile()
    assert [trial.evidence for trial in stored.trials] == [Evidence.FORECAST, Evidence.FORECAST, Evidence.MEASURED]
    assert stored.versions[Evidence.FORECAST] == {"torch": "2.13.0+cu130"}
    assert stored.versions[Evidence.MEASURED]["driver"] == "580.1"


def test_what_a_profile_is_used_for_is_the_measurement():
    stored = profile()
    assert stored.chosen_trial.peak_reserved_bytes == round(5.1 * GIB)
    assert known_outcomes(stored, 10 * GIB) == {PLAN: True}


def test_the_residual_is_that_of_the_plan_with_both_numbers():
    assert card_residuals([profile(), profile()], TOTAL) == (Residual(5 * GIB, round(5.1 * GIB)),) * 2


def test_other_cards_other_devices_and_what_can_not_be_say_nothing():
    assert card_residuals([profile()], TOTAL + 1) == ()
    assert card_residuals([profile(evidence=Evidence.SIMULATED)], TOTAL) == ()
    assert card_residuals([profile(measured=9 * GIB)], TOTAL) == ()
