"""The screen shows one header, one row per trial, and never breaks a long line apart."""

import io

from rich.console import Console

from autotune.cli.console import Screen, TrialTable
from autotune.controller.events import FittedEvent, WorkerEvent
from autotune.device.session import Evidence
from autotune.ladder.knobs import Change, Cost
from autotune.ladder.plan import Plan
from autotune.ladder.walk import Direction, Step
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import TrialReport
from autotune.trial.search import SearchStep
from autotune.units import MIB

PLAN = Plan.of(batch_size=4, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)


def trial(plan, verdict, change=None, **fields):
    outcome = Outcome(plan, verdict, Evidence.SIMULATED, **fields)
    return SearchStep(Step(plan, change, Direction.DOWN if change else Direction.START), TrialReport(outcome))


def screen():
    out = io.StringIO()
    return Screen(Console(file=out, width=60, highlight=False)), out


def test_the_table_has_one_header_and_a_row_per_trial_with_peaks_and_evidence():
    out = io.StringIO()
    table = TrialTable(Console(file=out, width=200).print)
    table.row(1, trial(PLAN, Verdict.OOM, reason="CUDA out of memory.", failed_phase="step: backward"))
    change = Change("batch_size", 4, 2, Cost.SPEED)
    fit = {"peak_allocated_bytes": 90 * MIB, "peak_reserved_bytes": 96 * MIB, "step_ms": 12.4}
    table.row(2, trial(PLAN.replace("batch_size", 2), Verdict.FITS, change, **fit))
    header, first, reason, second = out.getvalue().splitlines()
    assert header.split() == [
        "trial", "batch", "resolution", "checkpointing", "dim", "outcome", "allocated", "reserved", "step",
        "evidence",
    ]  # fmt: skip
    assert first.split()[:6] == ["1", "4", "512x512", "off", "32", "oom"]
    assert reason.strip() == "step: backward: CUDA out of memory."
    assert second.split() == [
        "2",
        "2",
        "512x512",
        "off",
        "32",
        "fits",
        "90",
        "MiB",
        "96",
        "MiB",
        "12",
        "ms",
        "simulated",
    ]


def test_an_out_of_memory_row_says_in_short_what_was_asked_for_and_what_was_free():
    reason = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 "
        "GiB of which 512.25 MiB is free. Of the allocated memory 6.00 GiB is allocated by PyTorch"
    )
    out = io.StringIO()
    TrialTable(Console(file=out, width=200).print).row(
        1, trial(PLAN, Verdict.OOM, reason=reason, failed_phase="load")
    )
    assert out.getvalue().splitlines()[-1].strip() == "load: out of memory: asked for 2.00 GiB, 512.25 MiB free"


def test_long_lines_stay_whole_for_copying():
    shown, out = screen()
    receipt = "network_dim 32 -> 16, costs quality (network_alpha 16 -> 8) and some more words beyond the width"
    shown.tell(FittedEvent(PLAN, (receipt,)))
    assert f"receipt  {receipt}" in out.getvalue().splitlines()


def test_a_pipe_gets_a_line_now_and_then_instead_of_a_bar():
    shown, out = screen()
    with shown:
        for step in range(1, 101):
            body = {"event": "step", "step": step, "steps": 100, "epoch": 1, "loss": 1.0, "learning_rate": 1e-4}
            shown.tell(WorkerEvent(body))
    assert len(out.getvalue().splitlines()) == 11


def test_peaks_of_ten_thousand_mib_and_more_stay_apart():
    out = io.StringIO()
    peaks = {"peak_allocated_bytes": 11_294 * MIB, "peak_reserved_bytes": 11_360 * MIB}
    TrialTable(Console(file=out, width=200).print).row(1, trial(PLAN, Verdict.FITS, **peaks))
    assert "11,294 MiB 11,360 MiB" in out.getvalue()
