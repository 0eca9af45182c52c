"""Events in words, for the log and the screen alike. Owns wording only."""

from collections.abc import Mapping
from typing import Any

from autotune.ladder.receipts import describe_change
from autotune.trial.search import SearchStep, describe_plan
from autotune.units import format_mib

_PHASES = {"cache_latents": "latents cached", "cache_text": "captions encoded"}


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
