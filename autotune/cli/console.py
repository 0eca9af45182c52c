"""What a person sees on the terminal: the card, the table of trials, progress, receipts, files.

Everything goes to stderr, so that stdout stays free for `--json`. Owns layout only; wording shared with the log
lives in `autotune.controller.text`.
"""

import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from autotune.controller.events import (
    NOTE,
    DeviceEvent,
    Event,
    FittedEvent,
    JobEvent,
    NoteEvent,
    ProfileEvent,
    TrialEvent,
    WorkerEvent,
)
from autotune.controller.text import describe_card, describe_worker_event
from autotune.device.session import Evidence
from autotune.ladder.knobs import describe_value
from autotune.ladder.plan import Plan
from autotune.trial.oom import shorten
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.search import SearchStep, describe_plan
from autotune.units import format_mib

HEADERS = {"batch_size": "batch", "gradient_checkpointing": "checkpointing", "network_dim": "dim"}
WORKER = "worker"
_STYLES = {Verdict.FITS: "bold green", Verdict.OOM: "red", Verdict.THRASH: "yellow"}
_CLASSES = {
    Evidence.MEASURED: "measured on the card",
    Evidence.FORECAST: "forecast on the null GPU",
    Evidence.SIMULATED: "simulated: real arithmetic on the CPU, memory an account of live tensors",
}


# PyTorch's own text and the virtual GPU's, which has its shape (c10/cuda/CUDACachingAllocator.cpp)
_ALLOCATION = re.compile(r"Tried to allocate (?P<asked>[\d.]+ \w+)\..* of which (?P<free>[\d.]+ \w+) is free")


class Screen:
    """Renders events as they come. A context manager, since a progress bar may be up."""

    def __init__(self, console: Console | None = None) -> None:
        """Print to `console`, by default stderr."""
        self.console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._bars: dict[str, TaskID] = {}
        self._trials = TrialTable(self.console.print)

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress.live.is_started:  # stopping one that never started prints an empty line
            self._progress.stop()

    def tell(self, event: Event) -> None:
        """Show one event."""
        match event:
            case NoteEvent(text, label):
                self._line(label, text, "yellow" if label == NOTE else "bold")
            case DeviceEvent(reading):
                same = reading.name == str(reading.spec)
                self._line("device", reading.name if same else f"{reading.name} ({reading.spec})")
                for line in (*describe_card(reading), reading.budget.explain()):
                    self._line("", line)
                for note in reading.notes:
                    self._note(note)
            case JobEvent():
                self._hide(WORKER)
                self._job(event)
            case TrialEvent(number, step):
                self._hide(WORKER)
                self._trials.row(number, step)
            case FittedEvent(plan, receipts):
                self._fitted(plan, receipts)
            case ProfileEvent(digest, location, action):
                self._line("profile", f"{digest[:12]} {action}: {location}")
            case WorkerEvent(body):
                self._worker(body)

    def _job(self, event: JobEvent) -> None:
        job = event.ready.job
        count = job.recipe.accumulation(job.recipe.plan)
        microbatches = "1 microbatch" if count == 1 else f"{count} microbatches"
        self._line("job", f"{job.label}: {describe_plan(job.recipe.plan)}")
        self._line("", f"effective batch {job.recipe.effective_batch}, {microbatches} a step")
        self._line("", f"numbers are {_CLASSES[event.ready.evidence]}")
        for note in (*job.notes, *event.ready.warnings):
            self._note(note)

    def _fitted(self, plan: Plan, receipts: tuple[str, ...]) -> None:
        self._line("chosen", describe_plan(plan), "bold green")
        for line in receipts:
            self._line("receipt", line)

    def _worker(self, body: Mapping[str, Any]) -> None:
        match body.get("event"):
            case "step":
                shown = f"loss {body['loss']:.4f}"
                self._bar("training", body["step"], body["steps"], shown)
                if not self.console.is_terminal and _worth_a_line(body["step"], body["steps"]):
                    self.console.print(describe_worker_event(body))
            case "phase":
                self._bar(body["name"], body["done"], body["total"], "")
            case "file":
                self._line("wrote", f"{body['kind']} {body['path']}")
            case "note":
                self._note(str(body["text"]))
            case _:
                step = f" {body['step']}/{body['of']}" if "step" in body else ""
                self._bar(WORKER, 0, None, f"{body.get('phase', '')}{step}")

    def _bar(self, name: str, done: int, total: int | None, shown: str) -> None:
        shown = shown if total is None else f"{done}/{total}  {shown}"
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, shown=shown)
        self._progress.update(self._bars[name], completed=done, total=total, shown=shown)
        if total is not None and done >= total:
            self._hide(name)

    def _hide(self, name: str) -> None:
        if name in self._bars:
            self._progress.remove_task(self._bars.pop(name))

    def _note(self, text: str) -> None:
        self._line(NOTE, text, "yellow")

    def _line(self, word: str, text: str, style: str = "bold") -> None:
        self.console.print(Text.assemble((f"{word:<9}", style), text), soft_wrap=True)


class TrialTable:
    """The table of trials, printed row by row: knobs, outcome, peaks, step time, evidence."""

    def __init__(self, write: Callable[..., None]) -> None:
        """`write` prints one rich Text."""
        self._write = write
        self._widths: dict[str, int] = {}

    def row(self, number: int, step: SearchStep) -> None:
        """Print one trial, under the header if it is the first."""
        outcome = step.outcome
        if number == 1:
            self._header(outcome.plan)
        changed = step.step.change.knob if step.step.change else None
        text = Text(f"{number:>5}  ")
        for knob, value in outcome.plan.items():
            cell = describe_value(knob, value).ljust(self._widths[knob])
            text.append(cell, style="bold cyan" if knob == changed else "")
        text.append(f"{outcome.verdict.value:<8}", style=_STYLES.get(outcome.verdict, "bold red"))
        cells = (f" {_mib(size)}" for size in (outcome.peak_allocated_bytes, outcome.peak_reserved_bytes))
        text.append("".join(f"{cell:>10}" for cell in cells))
        text.append(f"{_ms(outcome.step_ms):>10}  {outcome.evidence.value}")
        self._write(text, soft_wrap=True)
        if outcome.reason:
            self._write(Text(f"{'':7}{_reason(outcome)}", style="dim"), soft_wrap=True)

    def _header(self, plan: Plan) -> None:
        names = {knob: HEADERS.get(knob, knob) for knob in plan}
        self._widths = {
            knob: max(len(name), len(describe_value(knob, plan[knob])), 7) + 2 for knob, name in names.items()
        }
        text = f"{'trial':>5}  " + "".join(names[knob].ljust(width) for knob, width in self._widths.items())
        text += f"{'outcome':<8}{'allocated':>10}{'reserved':>10}{'step':>10}  evidence"
        self._write(Text(text, style="bold"), soft_wrap=True)


def _reason(outcome: Outcome) -> str:
    """Why a trial ended, short; the log has the whole text."""
    phase = f"{outcome.failed_phase}: " if outcome.failed_phase else ""
    if asked := _ALLOCATION.search(outcome.reason):
        return f"{phase}out of memory: asked for {asked['asked']}, {asked['free']} free"
    return f"{phase}{shorten(outcome.reason)}"


def _mib(size_bytes: int | None) -> str:
    return "–" if size_bytes is None else format_mib(size_bytes)


def _ms(step_ms: float | None) -> str:
    return "–" if step_ms is None else f"{step_ms:,.0f} ms"


def _worth_a_line(step: int, steps: int) -> bool:
    return step in (1, steps) or step % max(1, steps // 10) == 0
