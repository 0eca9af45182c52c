"""Near the limit: a warm null worker whose room is small for one trial decides as a card of that size does."""

import os

import pytest

from autotune.device.null.card import NullCard
from autotune.device.session import DeviceSpec
from autotune.trial.client import Worker
from autotune.trial.outcome import Verdict
from autotune.trial.process import Launch
from autotune.units import MIB

JOB = {"family": "sd1", "sample_at_end": False}


def worker_on(spec: str) -> Worker:
    launch = Launch(environment=os.environ | {"OMP_NUM_THREADS": "1"})
    return Worker("trainer.forecast:create", JOB, DeviceSpec.parse(spec), launch=launch)


@pytest.mark.slow
def test_a_room_for_one_trial_is_as_good_as_a_card_of_that_size(null_gpu: object) -> None:
    with worker_on("null:4096GiB@8.6") as worker:
        plan = worker.ready.job.recipe.plan
        whole = worker.trial(plan).outcome
        assert whole.peak_reserved_bytes is not None
        assert whole.peak_allocated_bytes is not None
        exact = worker.trial(plan, room_bytes=whole.peak_reserved_bytes).outcome
        assert (exact.verdict, exact.peak_reserved_bytes) == (Verdict.FITS, whole.peak_reserved_bytes)
        short = whole.peak_reserved_bytes - 2 * MIB
        tight = worker.trial(plan, room_bytes=short).outcome
        assert tight.verdict in (Verdict.THRASH, Verdict.OOM)
        none = worker.trial(plan, room_bytes=whole.peak_allocated_bytes - 64 * MIB)
        assert (none.outcome.verdict, none.reusable) == (Verdict.OOM, True)
        again = worker.trial(plan).outcome  # the room was of that trial alone
        assert (again.verdict, again.peak_reserved_bytes) == (Verdict.FITS, whole.peak_reserved_bytes)

    card = NullCard.sized(short, (8, 6))  # whose contexts take nothing of it
    assert card.context_bytes == 0
    with worker_on(f"null:{card.slug}") as worker:
        assert worker.trial(plan).outcome.verdict is tight.verdict
