"""Makes a profile from what a walk showed. Owns the translation from outcomes to the schema and the trimming.

Must never let free text through: of a trial's reason only the verdict, the failed phase and numbers stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from autotune.device.session import Evidence
from autotune.errors import ProfileError
from autotune.ladder.ladders import Ladder
from autotune.ladder.plan import Plan, Recipe
from autotune.profile.schema import (
    MAX_PROFILE_BYTES,
    SCHEMA_VERSION,
    Profile,
    WorkloadFacts,
    clean_gpu_name,
    clean_token,
    parse_model,
)
from autotune.trial.outcome import Outcome
from autotune.trial.workload import Job


@dataclass(frozen=True)
class Card:
    """The card of a profile or of today: what decides whether they are the same model.

    `total_bytes` as the driver reports it; `compute_capability` such as `8.6`; `context_bytes` is what a
    process takes on the card beside the allocator's reserve, where it is known.
    """

    name: str
    total_bytes: int
    compute_capability: str | None = None
    context_bytes: int = 0


def profile_from(
    job: Job,
    outcomes: Sequence[Outcome],
    chosen: Plan,
    card: Card,
    *,
    evidence: Evidence,
    versions: Mapping[str, str],
    ladder: Ladder,
    budget_bytes: int,
    created: date,
    forecast_versions: Mapping[str, str] | None = None,
) -> Profile:
    """The profile of a finished walk.

    `outcomes` in the order they were had, with one that says `chosen` fits; `evidence` is the class of the
    device; `versions` maps package (also `driver`, `cuda`) to version. Numbers of another class than
    `evidence` among the outcomes are kept under that class: forecasts with `forecast_versions` where given, else
    with the same versions. Raises ProfileError, naming key and value, for what the schema has no place for, and
    when the size limit can't be met.
    """
    classes = sorted({evidence, *(outcome.evidence for outcome in outcomes)})
    others = {} if forecast_versions is None else {Evidence.FORECAST: forecast_versions}
    values = {
        "schema_version": SCHEMA_VERSION,
        "created": created.isoformat(),
        "evidence": evidence.value,
        "gpu": _gpu(card),
        "versions": {kind.value: _versions(others.get(kind, versions)) for kind in classes},
        "workload": {"label": job.label, "facts": dict(job.workload)},
        "recipe": recipe_values(job.recipe),
        "ladder": ladder.to_json(),
        "budget_bytes": budget_bytes,
        "trials": [_trial(outcome) for outcome in outcomes],
        "trials_omitted": 0,
        "chosen": chosen.to_json(),
    }
    return _within_limit(values, f"profile of {job.label}")


def check_job(job: Job) -> None:
    """Raise ProfileError, naming key and value, if what `job` says of itself may not stand in a profile.

    Cheap: call it before the walk, so that no trial is spent in vain.
    """
    values = {"label": job.label, "facts": dict(job.workload)}
    parse_model(WorkloadFacts, values, f"workload {job.label[:80]}")


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """The JSON form a recipe has in a profile."""
    return {
        "plan": recipe.plan.to_json(),
        "effective_batch": recipe.effective_batch,
        "processes": recipe.processes,
        "floors": dict(recipe.floors),
    }


def _gpu(card: Card) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": clean_gpu_name(card.name),
        "total_bytes": card.total_bytes,
        "context_bytes": card.context_bytes,
    }
    return values | ({"compute_capability": card.compute_capability} if card.compute_capability else {})


def _versions(versions: Mapping[str, str]) -> dict[str, str]:
    return {package: clean_token(version) for package, version in versions.items() if version}


def _trial(outcome: Outcome) -> dict[str, Any]:
    values = outcome.to_json()
    del values["reason"]  # free text: allocator messages name processes, errors name paths
    values["failed_phase"] = clean_token(outcome.failed_phase) or None
    values["phases"] = [phase | {"phase": clean_token(phase["phase"])} for phase in values["phases"]]
    return values


def _within_limit(values: dict[str, Any], source: str) -> Profile:
    """The profile of `values` within the size limit.

    Phases go first, then trials from the middle of the walk; those of the chosen plan stay whole.
    """
    profile = parse_model(Profile, values, source)
    if len(profile.canonical_bytes) > MAX_PROFILE_BYTES:
        values = _without_phases(values)
        profile = parse_model(Profile, values, source)
    while len(profile.canonical_bytes) > MAX_PROFILE_BYTES:
        values = _with_fewer_trials(values, len(profile.canonical_bytes), source)
        profile = parse_model(Profile, values, source)
    return profile


def _without_phases(values: dict[str, Any]) -> dict[str, Any]:
    trials = [t if t["plan"] == values["chosen"] else t | {"phases": []} for t in values["trials"]]
    return values | {"trials": trials}


def _with_fewer_trials(values: dict[str, Any], size_bytes: int, source: str) -> dict[str, Any]:
    """`values` less a quarter of the trials that may go, the middle of the walk first."""
    trials = values["trials"]
    may_go = [place for place, trial in enumerate(trials) if trial["plan"] != values["chosen"]]
    if not may_go:
        raise ProfileError(
            f"{source}: {size_bytes:,} bytes with one trial only, more than {MAX_PROFILE_BYTES:,}.",
            "Describe the workload in fewer facts.",
        )
    count = -(-len(may_go) // 4)
    first = (len(may_go) - count) // 2
    gone = set(may_go[first : first + count])
    kept = [trial for place, trial in enumerate(trials) if place not in gone]
    return values | {"trials": kept, "trials_omitted": values["trials_omitted"] + count}
