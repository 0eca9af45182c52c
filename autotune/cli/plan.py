"""`autotune plan`: what a job needs and which cards it fits, told on one screen. Parses, calls, prints."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.forecast_cache import ForecastCache, cache_key
from autotune.controller.plan import Asked, CardRow, Planned, Saving, plan_job, planned_json
from autotune.controller.text import remarks_on
from autotune.device.null.card import NullCard
from autotune.errors import ConfigError, ModelError, NothingFitsError
from autotune.files import check_new
from autotune.ladder.knobs import Cost, describe_value
from autotune.memory.account import CATEGORIES, PhaseAccount
from autotune.memory.forecast import FitVerdict
from autotune.memory.interval import Interval
from autotune.trial.search import describe_plan
from autotune.trial.trial import OPEN
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
MOST_WORKERS = 2
"""On a machine with as many cores. Each takes about 1.2 GiB of the host's memory."""
EXIT_DOES_NOT_FIT = NothingFitsError.exit_code
EXIT_TOO_CLOSE = 13
_OPTIONS = {
    "train_batch_size": "--batch-size",
    "resolution": "--resolution",
    "network_dim": "--network-dim",
    "gradient_checkpointing": "--gradient-checkpointing",
    "mixed_precision": "--precision",
    "optimizer_type": "--optimizer",
}
_STYLES = {FitVerdict.FITS: "bold green", FitVerdict.NO: "red", FitVerdict.CLOSE: "yellow"}
_BATCHES = "batch: the largest that fits; w/ ckpt: with gradient checkpointing on"
_SHORT = {FitVerdict.CLOSE: "too close"}
_BAR_LENGTH = 30
_EIGHTHS = "▏▎▍▌▋▊▉"
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
    files = _check(options)
    cards = tuple(NullCard.parse(gpu) for gpu in options.gpus or USUAL_CARDS)
    asked = Asked(cards, frontier=options.report is not None, snapshot=options.snapshot)
    console = Console(stderr=True, highlight=False)
    with console.status("forecasting on the null GPU ...") as status:
        planned = plan_job(asked, lambda architecture: _forecaster(options, architecture, files, status.update))
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
        self._print(f"[dim]forecast on the null GPU, nothing was measured; memory peaks in phase {peak}[/dim]")
        self._print(Text(f"{_BATCHES}\n", style="dim"))
        self._print(_cards_table(planned.rows), "")
        remarks = remarks_on(planned.rows)
        for remark in [*remarks, ""] if remarks else ():
            self._print(Text(remark, style="dim"))
        for phase in planned.account.phases if planned.account else ():
            if phase.phase == peak:
                self._print(_bytes_table(phase, planned.rows[0]), "")
        if planned.savings:
            self._print(_savings_table(planned.savings))
        for note in planned.job.notes:
            self._print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def _cards_table(rows: Sequence[CardRow]) -> Table:
    table = _table("card", "MiB>", "needs MiB>", "", "batch>", "w/ ckpt>")
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for row in rows:
        table.add_row(
            row.card.slug,
            _mib(row.card.total_bytes),
            describe_interval(row.need),
            Text(_SHORT.get(row.verdict, row.verdict.value), style=_STYLES[row.verdict]),
            *("" if batch is None else f"≤ {batch}" if batch else "none" for batch in row.largest),
        )
    return table


def _table(*headers: str) -> Table:
    """A table without lines; a header that ends in `>` is over a column of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header.rstrip(">"), justify="right" if header.endswith(">") else "left", no_wrap=True)
    return table


def _bytes_table(phase: PhaseAccount, row: CardRow) -> Table:
    """The parts of what the first card must hold; they add up to what the plan needs there."""
    table = _table(f"bytes at the peak, in {phase.phase}", "MiB>", "")
    slack = row.forecast.counted_bytes - phase.peak_allocated_bytes
    sizes = {name: phase.parts.get(name, 0) for name in CATEGORIES} | {"cache slack": slack}
    largest = max(sizes.values(), default=1) or 1
    for name, size in sizes.items():
        if size:
            table.add_row(name, _mib(size), Text(bar(size / largest), style="cyan"))
    for part in row.forecast.parts:
        table.add_row(part.name, describe_interval(part.interval))
    table.add_row("CUDA context", describe_interval(row.context))
    table.add_row("in all", describe_interval(row.need), f"on {row.card.slug}", style="bold")
    return table


def bar(share: float) -> str:
    """A bar for a share between 0 and 1, at most 30 characters long, to an eighth of one; never empty."""
    eighths = max(1, round(share * _BAR_LENGTH * 8))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")


def _savings_table(savings: Sequence[Saving]) -> Table:
    table = _table("one step down would save", "MiB>", "costs")
    for saving in sorted(savings, key=lambda one: -one.saved_bytes):
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


def _check(options: PlanOptions) -> list[Path]:
    """Raise what is wrong with the options; what the job reads of the user's files."""
    from trainer.blank_settings import load_settings
    from trainer.families.family import family_names

    known = family_names()
    if not options.configs and not options.family:
        raise ConfigError(
            "neither a family nor a config is given.", f"Say --family ({', '.join(known)}) or --config FILE."
        )
    if options.family is not None and options.family not in known:
        raise ModelError(f"{options.family!r} is no model family.", f"Known: {', '.join(known)}.")
    said_as = {key: _OPTIONS[key] for key in options.settings}
    settings = load_settings(factory_config(options), said_as=said_as).config
    if options.report is not None:
        from autotune.report.write import check_ending

        check_ending(options.report)
    for path in (options.report, options.snapshot):
        if path is not None:
            check_new(path)
    named = (settings.pretrained_model_name_or_path, settings.vae, settings.train_data_dir, settings.metadata_path)
    return [Path(name).expanduser() for name in named if name]


def _forecaster(
    options: PlanOptions, architecture: Architecture, files: Sequence[Path], tell: Callable[[str], None]
) -> Forecaster:
    config = factory_config(options)
    cache = ForecastCache.load(cache_key(FORECAST_TRAINER, config, architecture, files))
    trials = count(1)

    def on_event(event: Mapping[str, Any]) -> None:
        if event.get("phase") == OPEN:
            tell(f"forecasting on the null GPU: trial {next(trials)} ...")

    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    return Forecaster(FORECAST_TRAINER, config, architecture, cache, on_event=on_event, workers=workers)


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
