"""What guided probes rest on: a plan fits exactly where its reserved peak, had without a limit, has room."""

import os

import pytest

from autotune.device.null.card import NullCard
from autotune.device.session import DeviceSpec
from autotune.trial.client import Worker
from autotune.trial.outcome import Verdict
from autotune.trial.process import Launch
from autotune.units import MIB

JOB = {"family": "sd1", "sample_at_end": False}


def try_on(spec, budget_bytes=None):
    launch = Launch(environment=os.environ | {"OMP_NUM_THREADS": "1"})
    with Worker("trainer.forecast:create", JOB, DeviceSpec.parse(spec), budget_bytes, launch) as worker:
        plan = worker.ready.job.recipe.plan
        return worker.trial(plan, 2).outcome


@pytest.mark.slow
def test_to_the_last_segment_the_allocator_itself_decides_as_the_peak_without_a_limit_says(null_gpu):
    endless = try_on("null:4096GiB@8.6")
    assert endless.fits
    peak = endless.peak_reserved_bytes
    context = NullCard.parse("12GiB@8.6").context_high_bytes  # a budget counts it
    enough = try_on("null:12GiB@8.6", peak + context)
    assert enough.verdict is Verdict.FITS
    assert enough.peak_reserved_bytes == peak
    short = try_on("null:12GiB@8.6", peak + context - 2 * MIB)
    assert short.verdict in (Verdict.THRASH, Verdict.OOM)
