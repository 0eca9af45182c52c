"""`autotune plan`: what a job needs and which cards it fits, told on one screen. Parses, calls, prints."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.forecast_cache import ForecastCache, cache_key
from autotune.controller.plan import Asked, CardRow, Planned, plan_job, planned_json
from autotune.device.null.card import NullCard
from autotune.errors import ConfigError, ModelError, NothingFitsError
from autotune.files import check_writable
from autotune.ladder.knobs import Cost, describe_value
from autotune.memory.account import CATEGORIES, PhaseAccount
from autotune.memory.forecast import FitVerdict
from autotune.memory.interval import Interval
from autotune.trial.search import describe_plan
from autotune.units import MIB

FORECAST_TRAINER = "trainer.forecast:create"
USUAL_CARDS = (
    "rtx-3060-12gb",
    "rtx-3070",
    "rtx-3080-10gb",
    "rtx-3090",
    "rtx-4060-ti-16gb",
    "rtx-4070",
    "rtx-4090",
)
EXIT_DOES_NOT_FIT = NothingFitsError.exit_code
EXIT_TOO_CLOSE = 13
_STYLES = {FitVerdict.FITS: "bold green", FitVerdict.NO: "red", FitVerdict.CLOSE: "yellow"}
_COSTS = {Cost.NONE: "nothing", Cost.SPEED: "speed", Cost.QUALITY: "quality"}


@dataclass(frozen=True)
class PlanOptions:
    """What `plan` was asked. `settings` are trainer settings by their config names."""

    gpus: Sequence[str]
    family: str | None
    variant: str | None
    configs: Sequence[Path]
    overrides: Sequence[str]
    settings: Mapping[str, Any]
    as_json: bool
    report: Path | None
    snapshot: Path | None


def run(options: PlanOptions) -> None:
    """Forecast, print, write the report. Ends the command with an exit code when a named card does not fit."""
    _check(options)
    cards = tuple(NullCard.parse(gpu) for gpu in options.gpus or USUAL_CARDS)
    asked = Asked(cards, frontier=options.report is not None, snapshot=options.snapshot)
    console = Console(stderr=True, highlight=False)
    with console.status("forecasting on the null GPU ...") as status:
        planned = plan_job(asked, lambda architecture: _forecaster(options, architecture, status.update))
    if options.as_json:
        typer.echo(json.dumps(planned_json(planned), indent=2))
    else:
        Printer(Console(highlight=False)).show(planned)
    _write(options, planned, console)
    if options.gpus:
        _end(planned.rows)


def factory_config(options: PlanOptions) -> dict[str, Any]:
    """What the workload's factory gets."""
    named = {key: value for key, value in (("family", options.family), ("variant", options.variant)) if value}
    if options.configs:
        settings = [f"{key}={_spelled(value)}" for key, value in options.settings.items()]
        paths = [str(path.absolute()) for path in options.configs]
        return {**named, "configs": paths, "set": [*options.overrides, *settings]}
    overrides = dict(_split(one) for one in options.overrides)
    return {**named, **overrides, **options.settings}


class Printer:
    """One screen: the cards, where the bytes go, what a step down buys."""

    def __init__(self, console: Console) -> None:
        """Print to `console`."""
        self._print = console.print

    def show(self, planned: Planned) -> None:
        """Print all of it."""
        self._print(Text(f"{planned.job.label}: {describe_plan(planned.plan)}", style="bold"), soft_wrap=True)
        peak = planned.rows[0].forecast.peak_phase
        self._print(f"[dim]forecast on the null GPU, nothing was measured; memory peaks in phase {peak}[/dim]\n")
        self._print(_cards_table(planned.rows), "")
        phase = planned.account.peak if planned.account else None
        if phase is not None:
            self._print(_bytes_table(phase, planned.rows[0].context), "")
        if planned.savings:
            self._print(_savings_table(planned))
        for note in planned.job.notes:
            self._print(f"[dim]note: {note}[/dim]")


def _cards_table(rows: Sequence[CardRow]) -> Table:
    table = _table("card", "has MiB>", "needs MiB>", "", "batch>", "with ckpt>")
    for row in rows:
        table.add_row(
            row.card.slug if "@" not in row.card.slug else row.card.name,
            _mib(row.card.total_bytes),
            describe_interval(row.need),
            Text(row.verdict.value, style=_STYLES[row.verdict]),
            *("" if batch is None else f"≤ {batch}" if batch else "none" for batch in row.largest),
        )
    return table


def _table(*headers: str) -> Table:
    """A table without lines; a header that ends in `>` is over a column of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in headers:
        table.add_column(header.rstrip(">"), justify="right" if header.endswith(">") else "left", no_wrap=True)
    return table


def _bytes_table(phase: PhaseAccount, context: Interval) -> Table:
    table = _table(f"where the bytes go (peak of {phase.phase})", "MiB>", "")
    sizes = {name: phase.parts.get(name, 0) for name in CATEGORIES} | {"cache slack": phase.cache_slack_bytes}
    largest = max(sizes.values(), default=1) or 1
    for name, size in sizes.items():
        if size:
            table.add_row(name, _mib(size), Text("█" * max(1, round(30 * size / largest)), style="cyan"))
    table.add_row("context", describe_interval(context), "")
    return table


def _savings_table(planned: Planned) -> Table:
    table = _table("one step down would save", "MiB>", "costs")
    for saving in sorted(planned.savings, key=lambda one: -one.saved_bytes):
        change = saving.change
        before, after = (describe_value(change.knob, value) for value in (change.before, change.after))
        table.add_row(f"{change.knob} {before} to {after}", _mib(saving.saved_bytes), _COSTS[change.cost])
    return table


def describe_interval(interval: Interval) -> str:
    """`7,885 to 8,500`, in MiB."""
    low, high = _mib(interval.low_bytes), _mib(interval.high_bytes)
    return high if low == high else f"{low} to {high}"


def _mib(size_bytes: int) -> str:
    return f"{round(size_bytes / MIB):,}"


def _check(options: PlanOptions) -> None:
    from trainer.blank_settings import load_settings
    from trainer.families.family import family_names

    known = family_names()
    if not options.configs and not options.family:
        raise ConfigError(
            "neither a family nor a config is given.", f"Say --family ({', '.join(known)}) or --config FILE."
        )
    if options.family is not None and options.family not in known:
        raise ModelError(f"{options.family!r} is no model family.", f"Known: {', '.join(known)}.")
    load_settings(factory_config(options))
    if options.report is not None:
        from autotune.report.write import check_ending

        check_ending(options.report)
    for path in (options.report, options.snapshot):
        if path is not None:
            check_writable(path.absolute().parent)


def _forecaster(options: PlanOptions, architecture: Architecture, tell: Any) -> Forecaster:
    config = factory_config(options)
    cache = ForecastCache.load(cache_key(FORECAST_TRAINER, config, architecture))

    def on_event(event: Mapping[str, Any]) -> None:
        if "phase" in event:
            tell(f"forecasting on the null GPU: {event['phase']} ...")

    return Forecaster(FORECAST_TRAINER, config, architecture, cache, on_event=on_event)


def _split(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--set {text!r} is not of the form key=value.")
    return key.strip(), value.strip()


def _spelled(value: object) -> str:
    """A setting as `--set` takes it: text bare, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _write(options: PlanOptions, planned: Planned, console: Console) -> None:
    if options.report is not None:
        from autotune.cli.report import report_of_plan
        from autotune.report.write import write_report

        write_report(options.report, report_of_plan(planned))
        console.print(f"wrote {options.report}", soft_wrap=True)
    if options.snapshot is not None:
        console.print(
            f"wrote {options.snapshot}: open it in PyTorch's memory visualiser (pytorch.org/memory_viz)",
            soft_wrap=True,
        )


def _end(rows: Sequence[CardRow]) -> None:
    verdicts = {row.verdict for row in rows}
    if FitVerdict.NO in verdicts:
        raise typer.Exit(EXIT_DOES_NOT_FIT)
    if FitVerdict.CLOSE in verdicts:
        raise typer.Exit(EXIT_TOO_CLOSE)
