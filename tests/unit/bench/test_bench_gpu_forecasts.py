"""Forecasts against a card: a wrong one is seen, and the null GPU in the card's place agrees with itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.controller import forecast as forecast_module
from autotune.controller.forecast import Architecture
from autotune.device.session import DeviceSpec, Evidence
from autotune.errors import DeviceError
from autotune.memory.forecast import forecast_of
from autotune.memory.phases import PhasePeak
from autotune.testing.null_workers import START
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.process import Launch
from autotune.units import GIB, MIB
from bench.findings import Findings, Skipped
from bench.gpu_check import PARTS
from bench.gpu_forecasts import CONFIGS, check_forecast, compare, rows

COUNTED = (PhasePeak("load", GIB, GIB), PhasePeak("step", 3 * GIB, 4 * GIB))
AMPERE = Architecture((8, 6), 28)


def on_card(*phases: PhasePeak, verdict: Verdict = Verdict.FITS) -> Outcome:
    most = max((phase.peak_reserved_bytes for phase in phases), default=0)
    return Outcome(START, verdict, Evidence.MEASURED, "", "", most, most, None, phases)


def failed(outcome: Outcome) -> set[str]:
    found = Findings()
    compare(forecast_of(COUNTED), outcome, found)
    assert found.checks
    return {check.name for check in found.checks if not check.passed}


def test_a_card_that_holds_what_was_counted_passes() -> None:
    more = replace(COUNTED[1], peak_reserved_bytes=4 * GIB + 60 * MIB)
    assert failed(on_card(*COUNTED)) == failed(on_card(COUNTED[0], more)) == set()


@pytest.mark.parametrize("reserved", [4 * GIB - 2 * MIB, 4 * GIB + 100 * MIB])
def test_a_card_outside_the_interval_fails(reserved: int) -> None:
    step = replace(COUNTED[1], peak_reserved_bytes=reserved)
    assert failed(on_card(COUNTED[0], step)) == {"the reserved bytes are within the forecast's interval"}


def test_a_card_that_takes_less_than_was_alive_makes_the_verdict_wrong() -> None:
    assert "a card of just these bytes is not called too small" in failed(on_card(*COUNTED[:1], COUNTED[0]))


def test_other_phases_and_a_plan_that_does_not_run_fail() -> None:
    assert "both ran the same phases" in failed(on_card(COUNTED[1]))
    assert failed(on_card(verdict=Verdict.OOM)) == {"the plan ran through on the device"}


def test_each_phase_has_both_sides_and_their_ratio() -> None:
    row = rows(COUNTED, [PhasePeak("step", 2 * GIB, 5 * GIB), PhasePeak("save", 1, 1)])
    assert row == [
        {
            "phase": "step",
            "allocated_bytes": 2 * GIB, "forecast_allocated_bytes": 3 * GIB, "allocated_ratio": 1.5,
            "reserved_bytes": 5 * GIB, "forecast_reserved_bytes": 4 * GIB, "reserved_ratio": 0.8,
        }
    ]  # fmt: skip


def test_without_the_null_gpu_the_part_says_that_it_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cards: object) -> None:
        raise DeviceError("no CUDA build of torch.")

    monkeypatch.setattr(forecast_module, "null_environment", fail)
    with pytest.raises(Skipped, match="no forecast to compare with: no CUDA build"):
        check_forecast(DeviceSpec.parse("cuda:0"), CONFIGS["sd1"], AMPERE, Launch(), Findings())


def test_the_check_has_a_part_for_every_model_compared() -> None:
    assert {f"forecast_{name}" for name in CONFIGS} <= set(PARTS)


@pytest.mark.slow
def test_the_null_gpu_in_the_cards_place_agrees_with_itself(null_gpu: object, tmp_path: Path) -> None:
    found = Findings()
    config = {**CONFIGS["sd1"], "resolution": "256", "network_dim": 4}
    launch = Launch(log_path=tmp_path / "worker.log")
    check_forecast(DeviceSpec.parse("null:rtx-3060-12gb"), config, AMPERE, launch, found)
    assert found.passed, found.checks
    phases = found.numbers["phases"]
    assert max(row["reserved_bytes"] for row in phases) > GIB
    for row in phases:
        assert row["reserved_bytes"] == row["forecast_reserved_bytes"], row
        assert row["allocated_bytes"] == row["forecast_allocated_bytes"], row
