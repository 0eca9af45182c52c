"""`autotune probe`: the cards, and for a config or workload the plan that fits each chosen card."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.cli import DEFAULT_DEVICE, DEFAULT_LADDER
from autotune.cli.console import Screen
from autotune.cli.setup import (
    Common,
    check_data,
    choose_device,
    load_settings,
    make_task,
    parse_limit,
)
from autotune.controller.events import DeviceEvent, Event, NoteEvent, device_json, trial_json
from autotune.controller.probe import Probed, probe
from autotune.controller.run_log import RunLog
from autotune.device.probe import list_cuda_devices, reading_for
from autotune.device.session import DeviceSpec
from autotune.errors import AutotuneError, ConfigError, DiskError
from autotune.ladder.plan import BATCH_SIZE, Plan
from autotune.ladder.receipts import render_receipts, scaled_alpha


@dataclass(frozen=True)
class ProbeOptions:
    """The command's options, as parsed."""

    configs: Sequence[Path] = ()
    overrides: Sequence[str] = ()
    device: str = DEFAULT_DEVICE
    all_cards: bool = False
    ladder: str = DEFAULT_LADDER
    vram_limit: str | None = None
    workload: str | None = None
    write: Path | None = None
    profiles: Path | None = None
    capture: Path | None = None
    as_json: bool = False
    forecast: bool = True
    family: str | None = None

    @property
    def common(self) -> Common:
        """Those that `train` has too."""
        return Common(
            self.configs,
            self.overrides,
            self.device,
            self.ladder,
            self.vram_limit,
            self.profiles,
            self.forecast,
        )


def run(options: ProbeOptions) -> None:
    """Probe and print. Raises AutotuneError; with several cards, only if none of them could be fitted."""
    _check(options)
    if options.capture is not None:
        _record(options.capture)
        return
    with Screen() as screen:
        if options.all_cards:
            answer = _probe_every(options, screen)
        else:
            answer = _probe_one(options, _chosen_device(options, screen), screen)
    if options.as_json:
        print(json.dumps(answer.body, indent=2))
    if answer.error is not None:
        raise answer.error


@dataclass(frozen=True)
class Answer:
    """What was found, as JSON; and what then could not be kept or written, for the exit code."""

    body: dict[str, Any]
    error: AutotuneError | None = None


def _check(options: ProbeOptions) -> None:
    if options.capture is not None and options != ProbeOptions(capture=options.capture):
        raise ConfigError("--capture goes with no other option.", "It records what the driver says, and ends.")
    if options.all_cards and options.device != DEFAULT_DEVICE:
        raise ConfigError(f"--all and --device {options.device} don't go together.", "Leave one of them out.")
    if options.write is not None:
        _check_write(options, options.write)
    if options.family and (options.workload or not _on_null(options)):
        raise ConfigError(
            f"--family {options.family} can't take effect: it says what a base model is that is not here.",
            "It goes with --device null:NAME and --config.",
        )
    idle = [name for name, given in _NEED_A_JOB.items() if given(options)]
    if idle and not options.configs and not options.workload:
        raise ConfigError(
            f"{' and '.join(idle)} can't take effect: there is nothing to fit.", "Give a config with --config."
        )


_NEED_A_JOB: dict[str, Callable[[ProbeOptions], object]] = {
    "--set": lambda options: options.overrides,
    "--ladder": lambda options: options.ladder != DEFAULT_LADDER,
    "--profiles": lambda options: options.profiles is not None,
    "--no-forecast": lambda options: not options.forecast,
    "--family": lambda options: options.family,
}


def _on_null(options: ProbeOptions) -> bool:
    return options.device.strip().lower().startswith("null:")


def _check_write(options: ProbeOptions, destination: Path) -> None:
    from trainer.config.rewrite import check_destination

    if options.workload:
        raise ConfigError(
            "--write and --workload don't go together.", "A workload of your own has no config file."
        )
    if not options.configs:
        raise ConfigError("--write needs a config to rewrite.", "Give it with --config.")
    if options.all_cards:
        raise ConfigError("--write and --all don't go together.", "Name one card with --device cuda:N.")
    check_destination(options.configs[-1], destination)


def _record(path: Path) -> None:
    from autotune.device.capture import record_capture

    machine = record_capture(path)
    print(f"recorded {len(machine.gpus)} cards, masked, in {path}")


def _chosen_device(options: ProbeOptions, screen: Screen) -> DeviceSpec:
    device = choose_device(options.device)
    if device.reason:
        screen.tell(NoteEvent(device.reason))
    return device.spec


def _probe_every(options: ProbeOptions, screen: Screen) -> Answer:
    """One answer for all cards; a card that fails is told and does not stop the others."""
    devices = list_cuda_devices() or (DeviceSpec("cuda", "0"),)  # reading that one says why there is none
    answers, failed = [], []
    for spec in devices:
        try:
            answers.append(_probe_one(options, spec, screen))
        except AutotuneError as error:
            failed.append(error)
            answers.append(Answer({"device": str(spec), "error": str(error)}))
            if len(devices) > 1:
                screen.tell(NoteEvent(f"{spec}: {error}"))
    if len(failed) == len(devices):
        raise failed[-1]
    unkept = next((answer.error for answer in answers if answer.error), None)
    return Answer({"devices": [answer.body for answer in answers]}, unkept)


def _probe_one(options: ProbeOptions, spec: DeviceSpec, screen: Screen) -> Answer:
    """The device alone or, given something to fit, the whole probe."""
    if not options.configs and not options.workload:
        reading = reading_for(spec, limit_bytes=parse_limit(options.vram_limit))
        screen.tell(DeviceEvent(reading))
        return Answer(device_json(reading))
    with ExitStack() as stack:
        on_null = spec.kind == "null"
        settings = None if options.workload else load_settings(options.common, files_must_exist=not on_null)
        folder = Path(settings.logging_dir if settings else "logs")
        log = stack.enter_context(RunLog(folder))
        if settings and not on_null:
            check_data(settings)

        def tell(event: Event) -> None:
            log.tell(event)
            screen.tell(event)

        task = make_task(options.common, spec, options.workload, folder / "worker.log", options.family)
        probed = probe(task, tell)
        unwritten = None if options.write is None else _write(options, options.write, probed, tell)
        return Answer(probed_json(probed), probed.profile.error or unwritten)


def probed_json(probed: Probed) -> dict[str, Any]:
    """What `probe --json` prints: the device, the job, every trial, the chosen plan with its receipts."""
    job, result, profile = probed.ready.job, probed.result, probed.profile.reference
    return {
        **device_json(probed.reading),
        "evidence": probed.ready.evidence.value,
        "context_bytes": probed.ready.device.get("context_bytes", 0),
        "label": job.label,
        "recipe": {"plan": job.recipe.plan.to_json(), "effective_batch": job.recipe.effective_batch},
        "forecasts": [trial_json(number, step) for number, step in enumerate(result.forecasts, 1)],
        "trials": [trial_json(number, step) for number, step in enumerate(result.steps, 1)],
        "chosen": result.chosen.to_json(),
        "receipts": list(render_receipts(job.recipe, result.chosen, job.network_alpha)),
        "profile": {"digest": profile.digest, "location": profile.location} if profile else None,
        "notes": [*probed.reading.notes, *job.notes, *probed.ready.warnings],
    }


def _write(
    options: ProbeOptions, destination: Path, probed: Probed, tell: Callable[[Event], None]
) -> AutotuneError | None:
    """The last config (the one that wins) with the chosen values at `destination`, or why it is not there."""
    from trainer.config.rewrite import CHANGEABLE, rewrite_config

    source = options.configs[-1]
    changes, notes = written_changes(probed)
    try:
        rewrite_config(source, destination, changes, _unchanged(options, probed, changes))
    except (ConfigError, DiskError) as error:
        return error
    others = [one for one in options.overrides if one.partition("=")[0].strip() not in CHANGEABLE]
    if others:
        notes.append(f"not in {destination}, so give it again: {' '.join(f'--set {one}' for one in others)}")
    for note in notes:
        tell(NoteEvent(note))
    tell(NoteEvent(f"{destination}: {source.name} with the chosen values", "wrote"))
    return None


def written_changes(probed: Probed) -> tuple[dict[str, Any], list[str]]:
    """The config keys for the chosen plan, and what must be said about them.

    A config can only say batch x accumulation, so a batch that does not divide the effective batch is written
    as the largest one below it that does.
    """
    recipe, chosen = probed.ready.job.recipe, probed.result.chosen
    batch = next(b for b in range(chosen.batch_size, 0, -1) if recipe.effective_batch % b == 0)
    notes = []
    if batch != chosen.batch_size:
        notes.append(
            f"train_batch_size is written as {batch}, not {chosen.batch_size}: a config can only say batch x "
            f"accumulation, and their product must stay {recipe.effective_batch}"
        )
    return _config_values(probed, chosen.replace(BATCH_SIZE, batch)), notes


def _config_values(probed: Probed, plan: Plan) -> dict[str, Any]:
    """`plan`, whose batch size divides the effective batch, in the words of a config."""
    recipe, alpha = probed.ready.job.recipe, probed.ready.job.network_alpha
    values: dict[str, Any] = {
        "train_batch_size": plan.batch_size,
        "gradient_accumulation_steps": recipe.effective_batch // plan.batch_size,
        "resolution": plan.resolutions,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "network_dim": plan.network_dim,
    }
    if alpha is not None:
        values["network_alpha"] = scaled_alpha(recipe.plan.network_dim, alpha, plan.network_dim)
    return values


def _unchanged(options: ProbeOptions, probed: Probed, changes: dict[str, Any]) -> set[str]:
    """Keys of `changes` that the config files say already, be it by default: not those that came by --set."""
    from trainer.config.meanings import canonical_key

    written = _config_values(probed, probed.ready.job.recipe.plan)
    flags = {one.partition("=")[0].strip() for one in options.overrides}
    overridden = {canonical_key(flag) or flag for flag in flags}
    return {key for key, value in changes.items() if written.get(key) == value and key not in overridden}
