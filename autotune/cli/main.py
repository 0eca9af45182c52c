"""The `autotune` command: options in, one call, output. Nothing heavy is imported until a command runs."""

import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

import autotune
from autotune.cli import DEFAULT_DEVICE, DEFAULT_LADDER
from autotune.errors import AutotuneError, ConfigError

app = typer.Typer(
    help="Fit diffusion LoRA training into the GPU memory you have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Configs = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", help="Config file; give several to merge them, the later one wins."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="key=value that wins over the files; may be repeated.")
]
Device = Annotated[
    str,
    typer.Option(help="auto, cuda, cuda:N, virtual:SIZE (the CPU with counted memory) or null:CARD (forecasts)."),
]
LadderName = Annotated[str, typer.Option("--ladder", help="classic, lossless-first, or a TOML file of rungs.")]
VramLimit = Annotated[str | None, typer.Option(help="Use at most this much device memory, such as 8GiB.")]
Profiles = Annotated[Path | None, typer.Option(help="Folder of profiles (default: the user's data folder).")]
NoForecast = Annotated[
    bool,
    typer.Option("--no-forecast", help="Walk by real trials alone, without the null GPU.", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


null_app = typer.Typer(no_args_is_help=True, help="The null GPU: PyTorch's CUDA memory without a card.")
app.add_typer(null_app, name="null")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Fit diffusion LoRA training into the GPU memory you have."""
    if version:
        typer.echo(f"autotune {autotune.__version__}")
        raise typer.Exit


@app.command()
def probe(
    config: Configs = None,
    overrides: Overrides = None,
    device: Device = DEFAULT_DEVICE,
    all_cards: Annotated[bool, typer.Option("--all", help="Probe every card of this machine.")] = False,
    ladder: LadderName = DEFAULT_LADDER,
    vram_limit: VramLimit = None,
    workload: Annotated[
        str | None, typer.Option(help="module:factory of a Workload of your own, instead of LoRA training.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the config with the chosen values here, in its own dialect.")
    ] = None,
    profiles: Profiles = None,
    capture: Annotated[
        Path | None, typer.Option(help="Record what the driver says, masked, into this file, and end.")
    ] = None,
    no_forecast: NoForecast = False,
    family: Annotated[
        str | None, typer.Option(help="What the base model is, on a null GPU, if it is not on this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    debug: Debug = False,
) -> None:
    """Show the card and, given a config, find the plan that fits: by forecasts, confirmed by short real trials.

    Every row is one plan with one change; the first plan that fits is then given the largest batch that
    still fits. What is chosen has always been tried. The result is kept as a profile, which
    `autotune train --fit-vram` uses.
    """
    from autotune.cli import probe as command

    options = command.ProbeOptions(
        config or (), overrides or (), device, all_cards, ladder, vram_limit, workload, write, profiles,
        capture, as_json, not no_forecast, family,
    )  # fmt: skip
    _run(lambda: command.run(options), debug)


@app.command()
def train(
    config: Configs = None,
    overrides: Overrides = None,
    fit_vram: Annotated[
        bool,
        typer.Option("--fit-vram", help="Fit the config to the card first: by profile, else by probing."),
    ] = False,
    device: Device = DEFAULT_DEVICE,
    ladder: LadderName = DEFAULT_LADDER,
    vram_limit: VramLimit = None,
    profiles: Profiles = None,
    no_forecast: NoForecast = False,
    debug: Debug = False,
) -> None:
    """Train a LoRA from your config, as written or, with --fit-vram, as far as it must change to fit."""
    from autotune.cli import train as command

    options = command.TrainOptions(
        config or [], overrides or [], fit_vram, device, ladder, vram_limit, profiles, not no_forecast
    )
    _run(lambda: command.run(options), debug)


@app.command()
def plan(
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu", help="Card (rtx-3060-12gb), or memory and compute capability (12GiB@8.6); repeatable."
        ),
    ] = None,
    family: Annotated[str | None, typer.Option(help="sd1, sdxl, sd3, flux1, ...; a wrong name lists all.")] = None,
    variant: Annotated[str | None, typer.Option(help="Which model of the family, such as sd35-large.")] = None,
    config: Configs = None,
    overrides: Overrides = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pictures computed at once.")] = None,
    resolution: Annotated[str | None, typer.Option(help="Pixels: 1024, or width x height: 832x1216.")] = None,
    network_dim: Annotated[int | None, typer.Option(min=1, help="LoRA rank.")] = None,
    gradient_checkpointing: Annotated[
        bool | None, typer.Option(help="Compute twice, keep less: takes longer.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, or no (fp32).")] = None,
    optimizer: Annotated[str | None, typer.Option(help="AdamW or AdamW8bit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a report: a new FILE.html or FILE.png.")] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Write PyTorch's memory snapshot: a new FILE.pickle.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Forecast, without a GPU, what a training needs and which cards it fits."""
    from autotune.cli import plan as command

    settings = {
        "train_batch_size": batch_size, "resolution": resolution, "network_dim": network_dim,
        "gradient_checkpointing": gradient_checkpointing, "mixed_precision": precision,
        "optimizer_type": optimizer,
    }  # fmt: skip
    given = {key: value for key, value in settings.items() if value is not None}
    options = command.PlanOptions(
        gpu or (), family, variant, config or (), overrides or (), given, as_json, report, snapshot
    )
    _run(lambda: command.run(options), debug)


@app.command(context_settings={"allow_interspersed_args": False})
def dryrun(
    command: Annotated[list[str] | None, typer.Argument(help="The program and its arguments, after --.")] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A card or size (12GiB@8.6); repeat it for several cards."),
    ] = None,
    max_vram: Annotated[str | None, typer.Option(help="A budget below the card's memory, such as 8GiB.")] = None,
    ladder: Annotated[
        bool, typer.Option("--ladder", help="Walk the ladder on the command's options; print what fits.")
    ] = False,
    rungs: Annotated[
        str, typer.Option(help="With --ladder: classic, lossless-first, or a TOML file.")
    ] = DEFAULT_LADDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a report: FILE.html or FILE.png.")] = None,
    debug: Debug = False,
) -> None:
    """Run any PyTorch program on a card that is not there, and say whether it fits."""
    from autotune.cli import dryrun as module

    options = module.DryRunOptions(command or (), gpu or (), max_vram, rungs if ladder else None, as_json, report)
    _run(lambda: module.run(options), debug)


def main() -> None:
    """Entry point of the console script."""
    _run(_check_trainer_is_ours, debug=False)
    app()


@null_app.command("install")
def null_install(
    torch: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The torch to fetch (default: the installed one's).")
    ] = None,
    debug: Debug = False,
) -> None:
    """Fetch the CUDA build of torch (530 MB, without NVIDIA's packages) and build the null GPU's libraries."""
    from autotune.cli import null as command

    _run(lambda: command.install(torch), debug)


@null_app.command("status")
def null_status(debug: Debug = False) -> None:
    """Say whether the null GPU is ready here, and where its parts are."""
    from autotune.cli import null as command

    _run(command.status, debug)


def _run(command: Callable[[], None], debug: bool) -> None:
    try:
        command()
    except typer.Exit:
        raise
    except AutotuneError as error:
        if debug:
            traceback.print_exc()
        print(f"autotune: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:  # a fault of ours: still one line, and the log has the traceback of a run
        if debug:
            traceback.print_exc()
        text = " ".join(str(error).split())
        print(f"autotune: internal error: {type(error).__name__}: {text} (--debug shows where).", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("autotune: stopped by the user.", file=sys.stderr)
        sys.exit(130)


def _check_trainer_is_ours() -> None:
    # `trainer` is also the import name of a package on PyPI; whichever comes first on the path wins.
    spec = find_spec("trainer")
    home = Path(autotune.__file__).resolve().parent.parent
    found = Path(spec.origin).resolve() if spec and spec.origin else None
    if found is None or found.parent.parent != home:
        raise ConfigError(
            f"another package called trainer shadows autotune's own: {found or 'none found'}.",
            "Uninstall it (pip uninstall trainer coqui-tts-trainer) or run autotune in an environment of its own.",
        )
