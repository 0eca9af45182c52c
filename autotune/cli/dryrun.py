"""`autotune dryrun`: any PyTorch program on null cards; does it fit? Parses, calls, prints."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.device.null.card import NullCard
from autotune.dryrun.commands import understand
from autotune.dryrun.ladder import Rung, walk_command
from autotune.dryrun.run import DryRun, run_on_null_cards
from autotune.dryrun.verdict import Judgement, Result, judge
from autotune.errors import ConfigError, NothingFitsError
from autotune.trial.ladder_file import load_ladder
from autotune.trial.search import describe_plan
from autotune.units import MIB, format_mib, parse_size

DEFAULT_CARD = "rtx-3060-12gb"
EXIT_CODES = {Result.FITS: 0, Result.NO: NothingFitsError.exit_code, Result.CLOSE: 13, Result.FAILED: 14}
_STYLES = {Result.FITS: "bold green", Result.NO: "bold red", Result.CLOSE: "yellow", Result.FAILED: "bold red"}


@dataclass(frozen=True)
class DryRunOptions:
    """What `dryrun` was asked."""

    command: Sequence[str]
    gpus: Sequence[str]
    max_vram: str | None
    ladder: str | None
    as_json: bool
    report: Path | None


def run(options: DryRunOptions) -> None:
    """Run the command on null cards and say whether it fits; the exit code says so too."""
    if not options.command:
        raise ConfigError("no command is given.", "Write it after --: autotune dryrun -- python train.py ...")
    if options.report is not None:
        from autotune.report.write import check_ending

        check_ending(options.report)
    cards = _cards(options)
    console = Console(stderr=True, highlight=False)
    if options.ladder is not None:
        _walk(options, cards, console)
        return
    done = run_on_null_cards(options.command, cards)
    judgement = judge(done)
    if options.as_json:
        typer.echo(json.dumps(dry_run_json(done, judgement), indent=2))
    else:
        show(judgement, console)
    _report(options, done, judgement, console)
    raise typer.Exit(EXIT_CODES[judgement.result])


def show(judgement: Judgement, console: Console) -> None:
    """One small table, the place where memory ran out, and what else must be said."""
    console.print(Text(f"\n{judgement.result.value}", style=_STYLES[judgement.result]))
    if judgement.cards:
        console.print(_table(judgement))
    oom = judgement.out_of_memory
    if oom is not None:
        console.print(f"out of memory asking for {format_mib(oom.requested_bytes)}", soft_wrap=True)
        for label, place in (("your code", oom.user), ("library", oom.library)):
            if place:
                console.print(f"  {label}: {place}", soft_wrap=True, markup=False)
    for note in judgement.notes:
        console.print(f"note: {note}", style="dim", soft_wrap=True, markup=False)


def dry_run_json(done: DryRun, judgement: Judgement) -> dict[str, Any]:
    """What `dryrun --json` prints: plain values, sizes in bytes."""
    oom = judgement.out_of_memory
    return {
        "evidence": "forecast",
        "command": list(done.command),
        "result": judgement.result.value,
        "status": done.status,
        "cards": [
            {
                "index": row.index,
                "card": row.card.slug,
                "total_bytes": row.card.total_bytes,
                "peak_allocated_bytes": row.use.allocated_bytes,
                "peak_reserved_bytes": row.use.reserved_bytes,
                "need_bytes": {"low": row.need.low_bytes, "high": row.need.high_bytes},
                "processes": row.use.processes,
                "alloc_retries": row.use.retries,
                "peak_at": row.use.place,
            }
            for row in judgement.cards
        ],
        "out_of_memory": None
        if oom is None
        else {
            "card": oom.device,
            "requested_bytes": oom.requested_bytes,
            "user_code": oom.user,
            "library": oom.library,
        },
        "unmodelled_calls": dict(done.unmodelled),
        "notes": list(judgement.notes),
    }


def _cards(options: DryRunOptions) -> list[NullCard]:
    """The cards, each as large as the budget allows, whose contexts take the low end of their interval."""
    cards = [NullCard.parse(gpu) for gpu in options.gpus or (DEFAULT_CARD,)]
    if options.max_vram is not None:
        try:
            most = parse_size(options.max_vram)
        except ValueError as error:
            raise ConfigError(f"--max-vram: {error}.") from None
        cards = [card.resized(min(most, card.total_bytes)) for card in cards]
    return [card.with_context(card.context_low_bytes) for card in cards]


def _walk(options: DryRunOptions, cards: Sequence[NullCard], console: Console) -> None:
    known = understand(options.command)
    ladder = load_ladder(options.ladder or "classic")
    walked = walk_command(known, cards, ladder, lambda rung: console.print(_rung_line(rung), soft_wrap=True))
    if options.as_json:
        rungs = [
            {"plan": r.plan.to_json(), "result": r.judgement.result.value, "command": list(r.command)}
            for r in walked.rungs
        ]
        typer.echo(
            json.dumps({"evidence": "forecast", "rungs": rungs, "command": list(walked.chosen.command)}, indent=2)
        )
        return
    console.print("\nthis command fits:", style="bold")
    typer.echo(shlex.join(walked.chosen.command))


def _rung_line(rung: Rung) -> Text:
    line = Text(f"{describe_plan(rung.plan)}: ")
    line.append(rung.judgement.result.value, style=_STYLES[rung.judgement.result])
    peaks = [card.need.high_bytes for card in rung.judgement.cards]
    return line.append(f" (up to {format_mib(max(peaks))})") if peaks else line


def _table(judgement: Judgement) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("card", "has MiB>", "allocated>", "reserved>", "needs>", "peak at"):
        right = header.endswith(">")
        table.add_column(header.rstrip(">"), justify="right" if right else "left", no_wrap=right)
    for row in judgement.cards:
        table.add_row(
            f"{row.index} {row.card.slug}",
            *(
                f"{size / MIB:,.0f}"
                for size in (row.card.total_bytes, row.use.allocated_bytes, row.use.reserved_bytes)
            ),
            f"{row.need.low_bytes / MIB:,.0f} to {row.need.high_bytes / MIB:,.0f}",
            Text(_shortened(row.use.place)),
        )
    return table


def _shortened(place: str | None) -> str:
    """`train.py:81 step` of a place with its whole path."""
    return "" if place is None else place.replace("\\", "/").rpartition("/")[2]


def _report(options: DryRunOptions, done: DryRun, judgement: Judgement, console: Console) -> None:
    if options.report is None:
        return
    from autotune.cli.report import report_of_dry_run
    from autotune.report.write import write_report

    write_report(options.report, report_of_dry_run(done, judgement))
    console.print(f"wrote {options.report}", soft_wrap=True)
