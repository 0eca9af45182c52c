"""The part of the GPU check that holds forecasts against the card: same trainer, same plan, null GPU and real one.

Owns the comparison phase by phase and what must hold of it. The card belongs to a worker; this process only asks
and divides. Must never show a forecast as measured, or count a comparison that did not run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.forecast_cache import ForecastCache
from autotune.device.session import DeviceSpec
from autotune.errors import DeviceError
from autotune.memory.forecast import FitVerdict, Forecast
from autotune.memory.interval import Interval
from autotune.memory.phases import PhasePeak
from autotune.trial.client import Worker
from autotune.trial.outcome import Outcome
from autotune.trial.process import Launch
from autotune.trial.protocol import STEPS_TO_TIME
from autotune.units import format_mib
from bench.findings import Findings, Skipped

FORECAST = "trainer.forecast:create"
ON_CARD = "bench.blank_on_card:create"
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "sd1": {"family": "sd1"},
    "sdxl": {"family": "sdxl"},
    "flux2": {"family": "flux2"},  # its first variant is FLUX.2-klein
}


def check_forecast(
    spec: DeviceSpec, config: Mapping[str, Any], architecture: Architecture, launch: Launch, found: Findings
) -> None:
    """Run the recipe of `config` on `spec` and on the null GPU of its architecture, and compare. Raises Skipped
    where the null GPU can't work."""
    try:
        with Forecaster(FORECAST, config, architecture, ForecastCache(None)) as forecaster:
            plan = forecaster.job.recipe.plan
            forecast = forecaster.forecast(plan)
    except DeviceError as error:
        raise Skipped(f"no forecast to compare with: {error}") from None
    with Worker(ON_CARD, config, spec, launch=launch) as worker:
        outcome = worker.trial(plan, STEPS_TO_TIME).outcome
    found.note(plan=plan.to_json())
    compare(forecast, outcome, found)


def compare(forecast: Forecast, outcome: Outcome, found: Findings) -> None:
    """Record both sides by phase and check that the card's bytes are where the forecast put them."""
    found.check("the plan ran through on the device", outcome.fits, outcome.reason[:200])
    if not outcome.fits:
        return
    found.note(phases=rows(forecast.phases, outcome.phases))
    counted, measured = ([phase.phase for phase in side.phases] for side in (forecast, outcome))
    found.check("both ran the same phases", counted == measured, f"{counted} and {measured}")
    interval, reserved = forecast.reserved(), outcome.peak_reserved_bytes or 0
    detail = f"{format_mib(reserved)} in {format_mib(interval.low_bytes)} to {format_mib(interval.high_bytes)}"
    found.note(reserved_bytes=reserved, forecast_reserved_bytes=[interval.low_bytes, interval.high_bytes])
    found.check("the reserved bytes are within the forecast's interval", reserved in interval, detail)
    verdict = forecast.judge(reserved, Interval(0, 0))
    found.check("a card of just these bytes is not called too small", verdict is not FitVerdict.NO, verdict.value)


def rows(forecast: Sequence[PhasePeak], measured: Sequence[PhasePeak]) -> list[dict[str, Any]]:
    """Each phase that both have: bytes at the peak on the device and in the forecast, and forecast / device."""
    counted = {phase.phase: phase for phase in forecast}
    return [_row(counted[phase.phase], phase) for phase in measured if phase.phase in counted]


def _row(forecast: PhasePeak, measured: PhasePeak) -> dict[str, Any]:
    sides = {
        "allocated": (measured.peak_allocated_bytes, forecast.peak_allocated_bytes),
        "reserved": (measured.peak_reserved_bytes, forecast.peak_reserved_bytes),
    }
    row: dict[str, Any] = {"phase": measured.phase}
    for name, (device, null) in sides.items():
        row |= {f"{name}_bytes": device, f"forecast_{name}_bytes": null}
        row[f"{name}_ratio"] = round(null / device, 4) if device else None
    return row
