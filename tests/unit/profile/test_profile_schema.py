"""A profile is canonical, bounded, free of anything private, and refused with its reason when broken."""

import json
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.device.session import Evidence
from autotune.errors import ProfileError
from autotune.ladder.ladders import CLASSIC
from autotune.ladder.plan import Plan, Recipe
from autotune.memory.phases import PhasePeak
from autotune.profile.build import Card, check_job, profile_from
from autotune.profile.json_schema import schema_text
from autotune.profile.schema import (
    MAX_PROFILE_BYTES,
    clean_gpu_name,
    parse_profile,
    workload_digest,
)
from autotune.testing.store_contract import RTX_3060, sample_job, sample_profile
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.workload import Job

SCHEMA_FILE = Path(__file__).parents[3] / "profiles" / "schema-v1.json"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-(2.0**53) + 1, 2.0**53 - 1)
    | st.text("abcXYZ019._+:,()=-", min_size=1, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abz_", min_size=1).filter(str.isalpha), inner)
    ),
    max_leaves=8,
)


def changed(**changes):
    values = json.loads(sample_profile().canonical_bytes)
    return json.dumps(values | changes).encode()


def make(job, outcomes, chosen, **changes):
    arguments = {
        "evidence": Evidence.MEASURED,
        "versions": {"torch": "2.13.0"},
        "ladder": CLASSIC,
        "budget_bytes": 10 << 30,
        "created": date(2026, 1, 31),
    }
    return profile_from(job, outcomes, chosen, RTX_3060, **(arguments | changes))


def many_outcomes(count, phases=0):
    peaks = tuple(PhasePeak(f"phase{n}", 1 << 30, 2 << 30) for n in range(phases))
    plan = sample_job().recipe.plan
    failed = [
        Outcome(plan.replace("batch_size", count - n), Verdict.OOM, Evidence.MEASURED, phases=peaks)
        for n in range(count)
    ]
    fit = Outcome(plan.replace("network_dim", 4), Verdict.FITS, Evidence.MEASURED, "", "", 1, 2, 3.0, phases=peaks)
    return [*failed, fit]


def test_identity_is_of_the_canonical_form_whatever_the_layout_of_the_file():
    profile = sample_profile()
    pretty = json.dumps(json.loads(profile.canonical_bytes), indent=4).encode()
    again = parse_profile(pretty, "pretty.json")
    assert again == profile
    assert again.digest == profile.digest
    assert again.canonical_bytes == profile.canonical_bytes


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON))
def test_any_workload_of_plain_json_survives_storing_with_its_identity(facts):
    profile = sample_profile(sample_job(**facts))
    again = parse_profile(profile.canonical_bytes, "x")
    assert again.canonical_bytes == profile.canonical_bytes
    assert workload_digest(again.workload.facts) == workload_digest(sample_job(**facts).workload)


def test_the_chosen_plan_comes_back_as_the_plan_it_was():
    profile = parse_profile(sample_profile().canonical_bytes, "x")
    assert profile.chosen_plan == sample_job().recipe.plan.replace("batch_size", 2)
    assert profile.chosen_trial.peak_reserved_bytes == 5 << 30


def test_reasons_of_trials_stay_out():
    text = sample_profile().canonical_bytes.decode()
    assert "4242" not in text
    assert "ann" not in text
    assert "reason" not in text


@pytest.mark.parametrize(
    "value",
    [
        "runwayml/stable-diffusion-v1-5",
        r"C:\photos",
        "a photo of sks dog",
        "GPU-8f6a2c1e-1111-2222-3333-444455556666",
        "ann@example.org",
        "~ann",
        "x" * 81,
        "",
        "名前",
        "line\nbreak",
        float("nan"),
        1 << 60,
        object(),
    ],
)
def test_what_could_name_a_path_prompt_device_or_person_cannot_enter(value):
    job = sample_job(extra={"inner": [value]})
    with pytest.raises(ProfileError) as caught:
        check_job(job)
    assert "extra" in caught.value.fact or "no JSON" in caught.value.fact
    with pytest.raises(ProfileError):
        sample_profile(job)


def test_a_label_that_is_no_file_name_is_refused():
    with pytest.raises(ProfileError, match="label"):
        check_job(Job("../evil", {}, sample_job().recipe))


def test_a_card_name_with_strange_characters_is_spelled_in_the_alphabet():
    assert clean_gpu_name("NVIDIA GeForce GTX 1060 6GB/PCIe/SSE2") == "NVIDIA GeForce GTX 1060 6GB-PCIe-SSE2"
    assert clean_gpu_name("Orin (nvgpu)") == "Orin (nvgpu)"
    assert clean_gpu_name("///") == "unnamed"


@pytest.mark.parametrize("name", ["virtual:2GiB", "名", "a" * 300, " NVIDIA  H200 ", "..", "(x)"])
def test_every_card_name_makes_a_profile(name):
    profile = sample_profile(card=Card(name, 1 << 30))
    assert parse_profile(profile.canonical_bytes, "x").gpu.name == clean_gpu_name(name)
    assert clean_gpu_name(clean_gpu_name(name)) == clean_gpu_name(name)


def test_every_class_of_evidence_among_the_trials_has_its_versions():
    job, plan = sample_job(), sample_job().recipe.plan
    outcomes = [
        Outcome(plan, Verdict.FITS, Evidence.FORECAST, peak_reserved_bytes=7),
        Outcome(plan, Verdict.FITS, Evidence.MEASURED, peak_reserved_bytes=8),
    ]
    profile = make(job, outcomes, plan)
    assert set(profile.versions) == {Evidence.FORECAST, Evidence.MEASURED}
    assert profile.chosen_trial.evidence is Evidence.MEASURED
    versions = {"measured": {"torch": "2.13.0"}}
    values = json.loads(profile.canonical_bytes) | {"versions": versions}
    with pytest.raises(ProfileError, match="versions lacks the class forecast"):
        parse_profile(json.dumps(values).encode(), "x.json")


def test_a_profile_whose_chosen_plan_never_fitted_is_refused():
    outcomes = many_outcomes(2)
    with pytest.raises(ProfileError, match="no trial says that the chosen plan fits"):
        make(sample_job(), outcomes, outcomes[0].plan)


@pytest.mark.parametrize(
    ("content", "said", "way_out"),
    [
        (b"", "no JSON", "Restore"),
        (b'{"schema_version": 1', "no JSON", "Restore"),
        (b"\xff\xfe", "no JSON", "Restore"),
        (b"[" * 60_000, "no JSON", "Restore"),
        (b"[]", "no profile", "Move"),
        (b"{}", "no schema_version", "no profile"),
        (b'{"schema_version": 1, "schema_version": 1}', "'schema_version' appears twice", "Restore"),
        (changed(schema_version=2), "schema_version is '2', this autotune reads 1", "Update autotune"),
        (changed(schema_version=0), "schema_version is '0'", "Probe again"),
        (changed(schema_version="1.0"), "schema_version is '1.0'", "Probe again"),
        (changed(host="box"), "host = 'box'", "schema"),
        (changed(budget_bytes="many"), "budget_bytes = 'many'", "schema"),
        (changed(budget_bytes=-1), "budget_bytes = -1", "schema"),
        (changed(created="yesterday"), "created = 'yesterday'", "schema"),
        (changed(chosen={"batch_size": "two"}), "chosen.batch_size = 'two'", "schema"),
        (b" " * (MAX_PROFILE_BYTES + 1), f"{MAX_PROFILE_BYTES + 1:,} bytes", "shortened"),
    ],
)
def test_a_broken_profile_is_refused_with_its_file_reason_and_way_out(content, said, way_out):
    with pytest.raises(ProfileError) as caught:
        parse_profile(content, "there/x.json")
    assert caught.value.fact.startswith("there/x.json: ")
    assert said in caught.value.fact
    assert way_out in caught.value.way_out


def test_phases_go_first_when_a_profile_is_too_large():
    profile = make(sample_job(), many_outcomes(60, phases=20), many_outcomes(60)[-1].plan)
    assert len(profile.canonical_bytes) <= MAX_PROFILE_BYTES
    assert len(profile.trials) == 61
    assert profile.trials_omitted == 0
    assert len(profile.chosen_trial.phases) == 20


def test_trials_from_the_middle_go_next_and_their_number_is_told():
    profile = make(sample_job(), many_outcomes(900), many_outcomes(1)[-1].plan)
    assert len(profile.canonical_bytes) <= MAX_PROFILE_BYTES
    assert profile.trials_omitted == 901 - len(profile.trials) > 0
    assert profile.trials[0].plan["batch_size"] == 900
    assert profile.chosen_trial.plan == profile.chosen


def test_a_workload_too_large_for_any_profile_is_refused():
    with pytest.raises(ProfileError, match="with one trial only"):
        sample_profile(sample_job(buckets=["512x512"] * 8000))


def test_a_workload_with_knobs_of_its_own_has_a_profile():
    plan = Plan.of(offload=2, fused=True)
    job = Job("mine", {"kind": "toy"}, Recipe(plan, 1))
    profile = make(job, [Outcome(plan, Verdict.FITS, Evidence.MEASURED, peak_reserved_bytes=1)], plan)
    assert profile.chosen_plan == plan


def test_names_of_phases_are_spelled_as_tokens():
    plan = sample_job().recipe.plan
    peaks = (PhasePeak("cache latents /tmp", 1, 2),)
    outcome = Outcome(plan, Verdict.FITS, Evidence.MEASURED, peak_reserved_bytes=2, phases=peaks)
    assert make(sample_job(), [outcome], plan).trials[0].phases[0].phase == "cache_latents_tmp"


def test_the_published_json_schema_is_current():
    assert SCHEMA_FILE.read_text("utf-8") == schema_text(), (
        "run: python -m autotune.profile.json_schema > profiles/schema-v1.json"
    )
