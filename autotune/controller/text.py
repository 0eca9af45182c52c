"""Events in words, for the log and the screen alike. Owns wording only."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.controller.plan import CardRow
from autotune.device.nvml import ProcessUse
from autotune.device.probe import DeviceReading
from autotune.ladder.knobs import Change, describe_value
from autotune.ladder.receipts import describe_change
from autotune.memory.forecast import FitVerdict
from autotune.trial.search import SearchStep, describe_plan
from autotune.units import format_mib

_PROCESSES_SHOWN = 5
_PHASES = {
    "cache_latents": "latents cached",
    "cache_text": "captions encoded",
    "sample": "sampling steps of a picture",
}


def remarks_on(rows: Sequence[CardRow]) -> list[str]:
    """Sentences on a plan's cards: why a verdict near the limit is what it is; then the step down that is enough,
    with the cards for which it is."""
    remarks = [
        f"{row.card.slug}: {'too close to call: ' if row.verdict is FitVerdict.CLOSE else ''}{row.reason}"
        for row in rows
        if row.reason
    ]
    by_step: dict[Change, list[str]] = {}
    for row in rows:
        if row.enough is not None:
            by_step.setdefault(row.enough, []).append(row.card.slug)
    for change, slugs in by_step.items():
        step = f"{change.knob} {describe_value(change.knob, change.after)}"
        remarks.append(f"{', '.join(slugs)}: {step} is enough")
    return remarks


def describe_card(reading: DeviceReading) -> list[str]:
    """What is known of a card beside its budget: memory, capability, driver, display, MIG, who uses it."""
    gpu = reading.gpu
    if gpu is None:
        return []
    free = "unknown" if reading.free_bytes is None else format_mib(reading.free_bytes)
    facts = [f"{format_mib(reading.total_bytes)} total, {free} free"]
    if gpu.compute_capability:
        facts.append("compute capability {}.{}".format(*gpu.compute_capability))
    if reading.driver_version:
        facts.append(f"driver {reading.driver_version} (CUDA up to {reading.cuda_driver_version or 'unknown'})")
    facts.append({True: "display active", False: "no display", None: "display unknown"}[gpu.display_active])
    if gpu.mig_enabled:
        facts.append(f"MIG on, {len(gpu.mig_instances)} instance(s)")
    return [", ".join(facts), _describe_processes(reading.processes)]


def describe_trial(step: SearchStep) -> str:
    """One trial in one line: the change, the plan, the outcome, the peak and the step time."""
    outcome = step.outcome
    change = describe_change(step.step.change) if step.step.change else "as written"
    parts = [f"{change} [{describe_plan(outcome.plan)}]: {outcome.verdict.value}"]
    if outcome.peak_allocated_bytes is not None:
        parts.append(f"peak {format_mib(outcome.peak_allocated_bytes)}")
    if outcome.step_ms is not None:
        parts.append(f"step {outcome.step_ms:,.0f} ms")
    parts.append(outcome.evidence.value)
    if outcome.reason:
        where = f" in {outcome.failed_phase}" if outcome.failed_phase else ""
        parts.append(f"{outcome.reason}{where}")
    return "; ".join(parts)


def describe_worker_event(body: Mapping[str, Any]) -> str:
    """What a full run reports, in one line."""
    match body.get("event"):
        case "step":
            skipped = ", update skipped (fp16 overflow)" if body.get("skipped") else ""
            return (
                f"step {body['step']}/{body['steps']} epoch {body['epoch']} "
                f"loss {body['loss']:.5f} lr {body['learning_rate']:.3g}{skipped}"
            )
        case "phase":
            return f"{_PHASES.get(body['name'], body['name'])}: {body['done']}/{body['total']}"
        case "file":
            return f"wrote {body['kind']} {body['path']}"
        case "note":
            return str(body["text"])
        case _:
            return ", ".join(f"{key} {value}" for key, value in body.items())


def _describe_processes(processes: Sequence[ProcessUse]) -> str:
    if not processes:
        return "no process uses it"
    told = [
        f"pid {use.pid} {'unknown' if use.used_bytes is None else format_mib(use.used_bytes)}"
        for use in processes[:_PROCESSES_SHOWN]
    ]
    more = len(processes) - len(told)
    return f"used by {', '.join(told)}" + (f" and {more} more" if more else "")
