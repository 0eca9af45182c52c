"""Which profile, if any, may be used today: same card model, workload, recipe, ladder and class, and it fits.

Owns that judgement and the sentence that explains it. Pure: it must never read a store, a device or a clock.
A match is still a hint: whoever uses it confirms it by one trial first.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autotune.device.session import Evidence
from autotune.ladder.ladders import Ladder
from autotune.ladder.plan import BATCH_SIZE, Plan
from autotune.ladder.walk import largest_batch
from autotune.profile.build import Card, recipe_values
from autotune.profile.schema import (
    LadderForm,
    Profile,
    RecipeValues,
    clean_gpu_name,
    parse_model,
    workload_digest,
)
from autotune.trial.outcome import Verdict
from autotune.trial.workload import Job
from autotune.units import format_mib

MORE_ROOM = 1.05  # a budget this many times the profile's may allow a better plan


@dataclass(frozen=True)
class Match:
    """The profile to use, or None; `why` is one sentence for either."""

    profile: Profile | None
    why: str


def find_match(
    profiles: Iterable[Profile], card: Card, job: Job, ladder: Ladder, evidence: Evidence, budget_bytes: int
) -> Match:
    """The best of `profiles` for this job on this card today, or none with the reason.

    Among several the one made with the largest budget wins (its plan went furthest), then the newest. Without
    one, the sentence speaks of the profile that came closest.
    """
    query = _Query.of(card, job, ladder, evidence, budget_bytes)
    judged = sorted(
        ((query.judge(profile), profile) for profile in profiles),
        key=lambda pair: (pair[0].passed, pair[1].budget_bytes, pair[1].created, pair[1].digest),
    )
    if not judged:
        return Match(None, "no profile is stored for this card")
    verdict, profile = judged[-1]
    return Match(None if verdict.objection else profile, verdict.objection or _praise(profile))


def known_outcomes(profile: Profile, budget_bytes: int) -> dict[Plan, bool]:
    """What the profile's trials say of plans under `budget_bytes`: whether they fit, where that follows.

    A plan that fitted fits if its peak does; one that ran out of memory, or nearly, does so in any smaller
    budget. Only trials of the profile's own class of evidence count. Plans it can't judge are left out.
    """
    outcomes: dict[Plan, bool] = {}
    for trial in profile.trials:
        need = _need_bytes(profile, trial.peak_reserved_bytes)
        if trial.evidence is not profile.evidence:
            continue
        if trial.verdict is Verdict.FITS and need is not None and need <= budget_bytes:
            outcomes[Plan.from_json(trial.plan)] = True
        elif trial.verdict in (Verdict.OOM, Verdict.THRASH) and budget_bytes <= profile.budget_bytes:
            outcomes[Plan.from_json(trial.plan)] = False
    return outcomes


@dataclass(frozen=True)
class _Judgement:
    """How many checks a profile passed, and the sentence of the one it failed (empty: none)."""

    passed: int
    objection: str


@dataclass(frozen=True)
class _Query:
    """Today's side of the comparison, in the profile's own forms."""

    gpu_name: str
    total_bytes: int
    workload: str
    facts: dict[str, object]
    recipe: RecipeValues
    ladder: LadderForm
    plans: frozenset[str]
    largest_batch: int
    evidence: Evidence
    budget_bytes: int

    @classmethod
    def of(cls, card: Card, job: Job, ladder: Ladder, evidence: Evidence, budget_bytes: int) -> "_Query":
        return cls(
            clean_gpu_name(card.name),
            card.total_bytes,
            workload_digest(job.workload),
            dict(job.workload),
            parse_model(RecipeValues, recipe_values(job.recipe), "the recipe"),
            parse_model(LadderForm, ladder.to_json(), "the ladder"),
            frozenset(map(_form, (job.recipe.plan, *(rung.plan for rung in ladder.rungs(job.recipe))))),
            largest_batch(job.recipe),
            evidence,
            budget_bytes,
        )

    def judge(self, profile: Profile) -> _Judgement:
        """The first objection to `profile`, in order of importance."""
        passed = 0
        for objection in self._checks(profile):
            if objection:
                return _Judgement(passed, f"profile {profile.digest[:8]} is not used: {objection}")
            passed += 1
        return _Judgement(passed, "")

    def _checks(self, profile: Profile) -> Iterator[str]:
        yield self._other_card(profile)
        yield _unless_equal("its numbers are {}, this device gives {} ones", profile.evidence, self.evidence)
        yield self._other_workload(profile)
        yield self._other_recipe(profile)
        yield "" if profile.ladder == self.ladder else self._other_ladder(profile)
        yield self._off_the_ladder(profile)
        yield self._too_large(profile)
        yield self._stale(profile)

    def _other_card(self, profile: Profile) -> str:
        gpu = profile.gpu
        return _unless_equal("it is of a {}, this card is a {}", gpu.name, self.gpu_name) or _unless_equal(
            "its card has {}, this one {}", format_mib(gpu.total_bytes), format_mib(self.total_bytes)
        )

    def _other_workload(self, profile: Profile) -> str:
        if workload_digest(profile.workload.facts) == self.workload:
            return ""
        return f"the workload differs in {_differing(profile.workload.facts, self.facts)}"

    def _other_recipe(self, profile: Profile) -> str:
        if profile.recipe == self.recipe:
            return ""
        there, here = (
            {**recipe.plan, **recipe.model_dump(exclude={"plan"})} for recipe in (profile.recipe, self.recipe)
        )
        return f"the recipe differs in {_differing(there, here)}"

    def _other_ladder(self, profile: Profile) -> str:
        if profile.ladder.name == self.ladder.name:
            return f"ladder {self.ladder.name} has other rungs or floors now"
        return f"it was made with ladder {profile.ladder.name}, not {self.ladder.name}"

    def _off_the_ladder(self, profile: Profile) -> str:
        """A plan that no walk can end on: made by hand, or by something else than a walk."""
        chosen = profile.chosen_plan
        batch = chosen.get(BATCH_SIZE, 1)
        if _form(chosen) in self.plans and type(batch) is int and batch <= self.largest_batch:
            return ""
        return "its plan is on no rung of the ladder"

    def _too_large(self, profile: Profile) -> str:
        need = _need_bytes(profile, profile.chosen_trial.peak_reserved_bytes)
        if need is None:
            return "it does not say how much memory its plan takes"
        if need <= self.budget_bytes:
            return ""
        return f"its plan takes {format_mib(need)}, today's budget is {format_mib(self.budget_bytes)}"

    def _stale(self, profile: Profile) -> str:
        if self.budget_bytes <= profile.budget_bytes * MORE_ROOM or not _below_recipe(profile):
            return ""
        return (
            f"the card has more room now ({format_mib(self.budget_bytes)} against "
            f"{format_mib(profile.budget_bytes)}), so a plan nearer to the recipe may fit"
        )


def _form(plan: Plan) -> str:
    """The JSON text of `plan` but for its batch size, which climbs: unlike equality it tells true from 1."""
    values = plan.to_json()
    values.pop(BATCH_SIZE, None)
    return json.dumps([BATCH_SIZE in plan, values], sort_keys=True)


def _praise(profile: Profile) -> str:
    day = profile.created.isoformat()
    return f"profile {profile.digest[:8]} of {day} matches this card, workload and recipe"


def _need_bytes(profile: Profile, peak_reserved_bytes: int | None) -> int | None:
    return None if peak_reserved_bytes is None else peak_reserved_bytes + profile.gpu.context_bytes


def _below_recipe(profile: Profile) -> bool:
    """Whether the chosen plan gives something up: only the batch size may rise, other knobs go down."""
    written, chosen = Plan.from_json(profile.recipe.plan), profile.chosen_plan
    others = any(chosen[knob] != written[knob] for knob in written if knob != BATCH_SIZE)
    return others or (BATCH_SIZE in written and chosen.batch_size < written.batch_size)


def _unless_equal(sentence: str, there: object, here: object) -> str:
    return "" if there == here else sentence.format(there, here)


def _differing(there: Mapping[str, object], here: Mapping[str, object]) -> str:
    """The first differing key with both values, and how many more there are."""
    keys = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
    if not keys:
        return "the kinds of its values"
    values = (str(side.get(keys[0], "nothing"))[:60] for side in (there, here))
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"{keys[0]}: {next(values)} there, {next(values)} here{more}"
