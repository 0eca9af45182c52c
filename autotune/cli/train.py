"""`autotune train`: the config, fitted if asked, trained to the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.cli import DEFAULT_LADDER
from autotune.cli.console import Screen
from autotune.cli.setup import Common, check_data, choose_device, load_settings, make_task
from autotune.controller.events import Event, NoteEvent
from autotune.controller.run_log import RunLog
from autotune.controller.train import Trained, train
from autotune.errors import ConfigError
from autotune.files import check_writable
from autotune.units import format_mib


@dataclass(frozen=True)
class TrainOptions:
    """The command's options, as parsed."""

    configs: Sequence[Path]
    overrides: Sequence[str]
    fit_vram: bool
    device: str
    ladder: str
    vram_limit: str | None
    profiles: Path | None
    forecast: bool = True

    @property
    def common(self) -> Common:
        """Those that `probe` has too."""
        return Common(
            self.configs,
            self.overrides,
            self.device,
            self.ladder,
            self.vram_limit,
            self.profiles,
            self.forecast,
        )


def run(options: TrainOptions) -> None:
    """Train and say what was written. Raises AutotuneError."""
    if not options.configs:
        raise ConfigError("no config was given.", "Give one with --config config.toml.")
    if options.device.strip().lower().startswith("null:"):
        raise ConfigError(
            f"--device {options.device} computes nothing, so nothing can be trained on it.",
            "Use autotune probe there, or train on cuda or virtual:SIZE.",
        )
    settings = load_settings(options.common)
    folder = Path(settings.logging_dir)
    with RunLog(folder) as log, Screen() as screen:
        check_writable(Path(settings.output_dir))
        check_data(settings)

        def tell(event: Event) -> None:
            log.tell(event)
            screen.tell(event)

        device = choose_device(options.device)
        if device.reason:
            tell(NoteEvent(device.reason))
        for note in _idle_flags(options):
            tell(NoteEvent(note))
        task = make_task(options.common, device.spec, None, folder / "worker.log")
        trained = train(task, tell, fit=options.fit_vram)
        tell(NoteEvent(_closing(trained), "done"))
        tell(NoteEvent(f"{log.log_path}, events in {log.events_path}", "log"))


def _idle_flags(options: TrainOptions) -> list[str]:
    given = {
        "--ladder": options.ladder != DEFAULT_LADDER,
        "--profiles": options.profiles is not None,
        "--no-forecast": not options.forecast,
    }
    if options.fit_vram:
        return []
    return [f"{flag} has no effect without --fit-vram" for flag, on in given.items() if on]


def _closing(trained: Trained) -> str:
    summary = trained.summary
    peak = summary["statistics"]["allocated_bytes.all.peak"]
    changed = "" if summary["largest_change"] else ", but its weights are all zero: nothing was learned"
    return (
        f"{summary['steps']} steps done; last loss {summary['last_loss']:.4f}; the LoRA has "
        f"{summary['modules']} modules{changed}; peak allocated {format_mib(peak)}"
    )
