"""The promises of a ProfileStore as tests, for every store to inherit, and sample profiles for them.

Owns no store. A test class of a store subclasses `StoreContract` and says how to make an empty one.
"""

from abc import ABC, abstractmethod
from datetime import date

import pytest

from autotune.device.session import Evidence
from autotune.errors import ProfileError
from autotune.ladder.ladders import CLASSIC
from autotune.ladder.plan import Plan, Recipe
from autotune.memory.phases import PhasePeak
from autotune.profile.build import Card, profile_from
from autotune.profile.schema import Profile
from autotune.store.store import ProfileStore
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.workload import Job
from autotune.units import GIB

RTX_3060 = Card("NVIDIA GeForce RTX 3060", 12 * GIB, "8.6", context_bytes=300 << 20)
RTX_3090 = Card("NVIDIA GeForce RTX 3090", 24 * GIB, "8.6", context_bytes=320 << 20)


def sample_job(**facts: object) -> Job:
    """A job as a trainer describes one; `facts` are added to its workload."""
    plan = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)
    workload = {
        "family": "sd15",
        "precision": "fp16",
        "buckets": [[512, 512], [448, 576]],
        "betas": [0.9, 0.999],
    }
    return Job("sd15-lora-fp16-adamw", workload | facts, Recipe(plan, 4, 1, {"resolution": 256}))


def sample_outcomes(job: Job, evidence: Evidence) -> list[Outcome]:
    """The recipe as written runs out of memory; half the batch fits with 5 GiB reserved."""
    half = job.recipe.plan.replace("batch_size", 2)
    reason = "CUDA out of memory. Process 4242 has 1.00 GiB. See /home/ann/photos/cat.png"
    peaks = (PhasePeak("cache_latents", 2 * GIB, 3 * GIB), PhasePeak("steps", 4 * GIB, 5 * GIB))
    return [
        Outcome(job.recipe.plan, Verdict.OOM, evidence, reason, "steps"),
        Outcome(half, Verdict.FITS, evidence, "", "", 4 * GIB, 5 * GIB, 812.5, peaks),
    ]


def sample_profile(
    job: Job | None = None,
    card: Card = RTX_3060,
    evidence: Evidence = Evidence.MEASURED,
    budget_bytes: int = 10 * GIB,
    created: date = date(2026, 1, 31),
) -> Profile:
    """A profile of `sample_job`, whose chosen plan is half the batch."""
    job = job or sample_job()
    outcomes = sample_outcomes(job, evidence)
    versions = {"autotune": "0.1.0", "torch": "2.13.0+cu130", "driver": "580.95.05"}
    return profile_from(
        job,
        outcomes,
        outcomes[-1].plan,
        card,
        evidence=evidence,
        versions=versions,
        ladder=CLASSIC,
        budget_bytes=budget_bytes,
        created=created,
    )


class StoreContract(ABC):
    """What every ProfileStore promises. A subclass makes its empty store in `make_store`."""

    @abstractmethod
    def make_store(self) -> ProfileStore:
        """An empty store, the same one each time within one test."""

    def test_an_empty_store_lists_nothing(self) -> None:
        """An empty store is no error."""
        listing = self.make_store().list()
        assert listing.entries == ()
        assert listing.notes == ()

    def test_what_was_put_comes_back_equal(self) -> None:
        """Content and identity survive."""
        store, profile = self.make_store(), sample_profile()
        reference = store.put(profile)
        assert reference.digest == profile.digest
        assert store.get(profile.digest) == profile
        assert store.get(profile.digest).canonical_bytes == profile.canonical_bytes

    def test_putting_twice_keeps_one(self) -> None:
        """Put is idempotent by content."""
        store, profile = self.make_store(), sample_profile()
        assert store.put(profile) == store.put(profile)
        assert store.list().profiles == (profile,)

    def test_different_profiles_of_one_workload_live_side_by_side(self) -> None:
        """Identity is the content's, not the label's."""
        store = self.make_store()
        first, second = sample_profile(budget_bytes=8 * GIB), sample_profile(budget_bytes=9 * GIB)
        assert store.put(first) != store.put(second)
        assert {profile.digest for profile in store.list().profiles} == {first.digest, second.digest}

    def test_find_gives_the_profiles_of_one_card_name(self) -> None:
        """The name is the driver's."""
        store = self.make_store()
        store.put(sample_profile(card=RTX_3060))
        store.put(sample_profile(card=RTX_3090))
        assert [p.gpu.name for p in store.find(RTX_3090.name).profiles] == [RTX_3090.name]
        assert store.find("NVIDIA H200").profiles == ()

    def test_a_digest_that_is_not_there_is_a_clear_error(self) -> None:
        """Absent is not None."""
        store = self.make_store()
        store.put(sample_profile())
        with pytest.raises(ProfileError, match="0" * 64):
            store.get("0" * 64)
