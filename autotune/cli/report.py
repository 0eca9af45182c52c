"""From what the commands found to what a report shows. Owns the report's titles and words, computes nothing."""

import shlex

from autotune.controller.plan import CardRow, Planned
from autotune.controller.text import remarks_on
from autotune.dryrun.run import DryRun
from autotune.dryrun.verdict import Judgement
from autotune.ladder.knobs import describe_value
from autotune.memory.account import Account, PhaseAccount
from autotune.memory.interval import Interval
from autotune.report.model import Curve, PhaseBytes, Report, Saving, Span, Timeline, Verdict
from autotune.trial.search import describe_plan

FORECAST = "forecast on the null GPU: PyTorch's own allocator and choice of kernels; nothing was measured"
_PAGE_CARDS = 7  # colours that everybody can tell apart


def report_of_plan(planned: Planned) -> Report:
    """The report of `autotune plan`."""
    first = planned.rows[0]
    return Report(
        title=f"{planned.job.label}: {describe_plan(planned.plan)}",
        evidence=FORECAST,
        facts=_facts(planned),
        verdicts=tuple(_verdict_of(row) for row in planned.rows),
        timeline=_timeline_of(planned.account),
        phases=_phases_of(planned.account, first),
        curves=_curves_of(planned),
        savings=_savings_of(planned),
        unseen=(
            *((part.name, _ends(part.interval), part.basis) for part in first.forecast.parts),
            ("CUDA context", _ends(first.context), f"of {first.card.name}"),
        ),
        notes=(*remarks_on(planned.rows), *planned.job.notes),
    )


def report_of_dry_run(done: DryRun, judgement: Judgement) -> Report:
    """The report of `autotune dryrun`."""
    oom = judgement.out_of_memory
    places = [("ran out at", oom.user or oom.library or "")] if oom else []
    return Report(
        title=shlex.join(done.command),
        evidence=FORECAST,
        facts=(("result", judgement.result.value), ("exit status", str(done.status)), *places),
        verdicts=tuple(
            Verdict(f"{row.index} {row.card.slug}", row.card.total_bytes, _ends(row.need), judgement.result.value)
            for row in judgement.cards
        ),
        phases=tuple(
            PhaseBytes(
                f"card {row.index}",
                {
                    "other": row.use.allocated_bytes,
                    "cache slack": max(0, row.use.reserved_bytes - row.use.allocated_bytes),
                    "context": row.use.processes * row.card.context_low_bytes,
                },
                _ends(row.need),
            )
            for row in judgement.cards
        ),
        notes=judgement.notes,
    )


def _facts(planned: Planned) -> tuple[tuple[str, str], ...]:
    shown = ("family", "adapter", "precision", "optimizer", "attention")
    facts = [(key, str(planned.job.workload[key])) for key in shown if key in planned.job.workload]
    return (*facts, ("effective batch", str(planned.job.recipe.effective_batch)))


def _verdict_of(row: CardRow) -> Verdict:
    return Verdict(row.card.slug, row.card.total_bytes, _ends(row.need), row.verdict.value, row.largest)


def _timeline_of(account: Account | None) -> Timeline | None:
    if account is None or not account.timeline.allocated_bytes:
        return None
    spans = tuple(Span(span.phase, span.start, span.end) for span in account.timeline.spans)
    return Timeline(account.timeline.allocated_bytes, account.timeline.reserved_bytes, spans)


def _phases_of(account: Account | None, row: CardRow) -> tuple[PhaseBytes, ...]:
    """Phases that hold something, with the context of the first card at its middle."""
    phases = [phase for phase in account.phases if phase.peak_allocated_bytes] if account else []
    needs = {peak.phase: row.forecast.phase_need(peak, row.context) for peak in row.forecast.phases}
    return tuple(
        PhaseBytes(phase.phase, _parts_of(phase, row), _ends(needs[phase.phase]) if phase.phase in needs else None)
        for phase in phases
    )


def _parts_of(phase: PhaseAccount, row: CardRow) -> dict[str, int]:
    return {**phase.parts, "cache slack": phase.cache_slack_bytes, "context": row.context.middle_bytes}


def _curves_of(planned: Planned) -> tuple[Curve, ...]:
    cards = list(dict.fromkeys(curve.card.slug for curve in planned.curves))[:_PAGE_CARDS]
    return tuple(
        Curve(curve.card.slug, curve.checkpointing, curve.points)
        for curve in planned.curves
        if curve.card.slug in cards
    )


def _savings_of(planned: Planned) -> tuple[Saving, ...]:
    rows = []
    for one in sorted(planned.savings, key=lambda saving: -saving.saved_bytes):
        knob = one.change.knob
        before, after = (describe_value(knob, value) for value in (one.change.before, one.change.after))
        rows.append(Saving(f"{knob} {before} to {after}", one.saved_bytes, one.change.cost.value))
    return tuple(rows)


def _ends(interval: Interval) -> tuple[int, int]:
    return interval.low_bytes, interval.high_bytes
