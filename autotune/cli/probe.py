"""`autotune probe`: the cards, and for a config or workload the plan that fits each chosen card."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.cli.console import Screen
from autotune.cli.setup import Common, choose_device, logging_folder, make_task, parse_limit
from autotune.controller.events import DeviceEvent, Event, NoteEvent, device_json, trial_json
from autotune.controller.probe import Probed, probe
from autotune.controller.run_log import RunLog
from autotune.device.probe import list_cuda_devices, reading_for
from autotune.device.session import DeviceSpec
from autotune.errors import AutotuneError, ConfigError, DeviceError
from autotune.ladder.receipts import render_receipts, scaled_alpha


@dataclass(frozen=True)
class ProbeOptions:
    """The command's options, as parsed."""

    configs: Sequence[Path]
    overrides: Sequence[str]
    device: str
    all_cards: bool
    ladder: str
    vram_limit: str | None
    workload: str | None
    write: Path | None
    profiles: Path | None
    capture: Path | None
    as_json: bool

    @property
    def common(self) -> Common:
        """Those that `train` has too."""
        return Common(self.configs, self.overrides, self.device, self.ladder, self.vram_limit, self.profiles)


def run(options: ProbeOptions) -> None:
    """Probe and print. Raises AutotuneError; with several cards, only if none of them could be fitted."""
    if options.capture is not None:
        _record(options.capture)
        return
    _check(options)
    with Screen() as screen:
        if options.all_cards:
            answer: dict[str, Any] = {"devices": _probe_every(options, screen)}
        else:
            answer = _probe_one(options, _chosen_device(options, screen), screen)
    if options.as_json:
        print(json.dumps(answer, indent=2))


def _check(options: ProbeOptions) -> None:
    if options.write is not None and not options.configs:
        raise ConfigError("--write needs a config to rewrite.", "Give it with --config.")
    if options.write is not None and options.all_cards:
        raise ConfigError("--write and --all don't go together.", "Name one card with --device cuda:N.")


def _record(path: Path) -> None:
    from autotune.device.capture import record_capture

    machine = record_capture(path)
    print(f"recorded {len(machine.gpus)} cards, masked, in {path}")


def _chosen_device(options: ProbeOptions, screen: Screen) -> DeviceSpec:
    device = choose_device(options.device)
    if device.reason:
        screen.tell(NoteEvent(device.reason))
    return device.spec


def _probe_every(options: ProbeOptions, screen: Screen) -> list[dict[str, Any]]:
    """One answer per card; a card that fails is told and does not stop the others."""
    devices = list_cuda_devices()
    if not devices:
        raise DeviceError("no NVIDIA card can be used here.", "Use --device virtual:2GiB to try without.")
    answers, errors = [], []
    for spec in devices:
        try:
            answers.append(_probe_one(options, spec, screen))
        except AutotuneError as error:
            errors.append(error)
            answers.append({"device": str(spec), "error": str(error)})
            screen.tell(NoteEvent(f"{spec}: {error}"))
    if len(errors) == len(devices):
        raise errors[-1]
    return answers


def _probe_one(options: ProbeOptions, spec: DeviceSpec, screen: Screen) -> dict[str, Any]:
    """The device alone or, given something to fit, the whole probe; as JSON."""
    if not options.configs and not options.workload:
        reading = reading_for(spec, limit_bytes=parse_limit(options.vram_limit))
        screen.tell(DeviceEvent(reading))
        return device_json(reading)
    with ExitStack() as stack:
        folder = Path("logs") if options.workload else logging_folder(options.common)
        log = stack.enter_context(RunLog(folder))

        def tell(event: Event) -> None:
            log.tell(event)
            screen.tell(event)

        task = make_task(options.common, spec, options.workload, folder / "worker.log")
        probed = probe(task, tell)
        if options.write is not None:
            _write(options, probed, tell)
        return probed_json(probed)


def probed_json(probed: Probed) -> dict[str, Any]:
    """What `probe --json` prints: the device, the job, every trial, the chosen plan with its receipts."""
    job, result = probed.ready.job, probed.result
    return {
        **device_json(probed.reading),
        "evidence": probed.ready.evidence.value,
        "label": job.label,
        "recipe": {"plan": job.recipe.plan.to_json(), "effective_batch": job.recipe.effective_batch},
        "trials": [trial_json(number, step) for number, step in enumerate(result.steps, 1)],
        "chosen": result.chosen.to_json(),
        "receipts": list(render_receipts(job.recipe, result.chosen, job.network_alpha)),
        "profile": {"digest": probed.profile.digest, "location": probed.profile.location},
        "notes": [*job.notes, *probed.ready.warnings],
    }


def _write(options: ProbeOptions, probed: Probed, tell: Callable[[Event], None]) -> None:
    """The last config (the one that wins) with the chosen values, at --write's path."""
    from trainer.config.rewrite import rewrite_config

    assert options.write is not None
    changes, notes = written_changes(probed)
    rewrite_config(options.configs[-1], options.write, changes)
    for note in notes:
        tell(NoteEvent(note))
    tell(NoteEvent(f"wrote {options.write}: {options.configs[-1].name} with the chosen values"))


def written_changes(probed: Probed) -> tuple[dict[str, Any], list[str]]:
    """The config keys to change for the chosen plan, and what must be said about them.

    A config can only say batch x accumulation, so a batch that does not divide the effective batch is written
    as the largest one below it that does.
    """
    recipe, chosen, alpha = probed.ready.job.recipe, probed.result.chosen, probed.ready.job.network_alpha
    batch = next(b for b in range(chosen.batch_size, 0, -1) if recipe.effective_batch % b == 0)
    notes = []
    if batch != chosen.batch_size:
        notes.append(
            f"train_batch_size is written as {batch}, not {chosen.batch_size}: a config can only say batch x "
            f"accumulation, and their product must stay {recipe.effective_batch}"
        )
    changes: dict[str, Any] = {
        "train_batch_size": batch,
        "gradient_accumulation_steps": recipe.effective_batch // batch,
        "resolution": chosen.resolutions,
        "gradient_checkpointing": chosen.gradient_checkpointing,
        "network_dim": chosen.network_dim,
    }
    if alpha is not None:
        changes["network_alpha"] = scaled_alpha(recipe.plan.network_dim, alpha, chosen.network_dim)
    return changes, notes
