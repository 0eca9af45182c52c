"""`autotune probe`: the cards, and for a config or workload the plan that fits each chosen card."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.cli.console import Screen
from autotune.cli.setup import Common, choose_device, logging_folder, make_task
from autotune.controller.events import DeviceEvent, Event, NoteEvent, device_json, trial_json
from autotune.controller.probe import Probed, probe
from autotune.controller.run_log import RunLog
from autotune.device.probe import list_cuda_devices, reading_for
from autotune.device.session import DeviceSpec
from autotune.errors import AutotuneError, ConfigError, DeviceError
from autotune.ladder.receipts import render_receipts


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
        return Common(
            self.configs, self.overrides, self.device, self.ladder, self.vram_limit, self.profiles
        )


def run(options: ProbeOptions) -> None:
    """Probe and print. Raises AutotuneError; with several cards, the last one's if none could be fitted."""
    if options.capture is not None:
        _record(options.capture)
        return
    _check(options)
    with Screen() as screen:
        devices = _devices(options, screen)
        asks_for_fit = bool(options.configs or options.workload)
        results = [_probe_one(options, spec, screen, asks_for_fit) for spec in devices]
    if options.as_json:
        print(json.dumps(results[0] if not options.all_cards else {"devices": results}, indent=2))
    failed = [result for result in results if "error" in result]
    if failed and len(failed) == len(results):
        raise failed[-1]["error_object"]


def _check(options: ProbeOptions) -> None:
    if options.write is not None and not options.configs:
        raise ConfigError("--write needs a config to rewrite.", "Give it with --config.")
    if options.write is not None and options.all_cards:
        raise ConfigError("--write and --all don't go together.", "Name one card with --device cuda:N.")


def _record(path: Path) -> None:
    from autotune.device.capture import record_capture

    machine = record_capture(path)
    print(f"recorded {len(machine.gpus)} cards, masked, in {path}")


def _devices(options: ProbeOptions, screen: Screen) -> Sequence[DeviceSpec]:
    if options.all_cards:
        found = list_cuda_devices()
        if not found:
            raise DeviceError("no NVIDIA card can be used here.", "Use --device virtual:2GiB to try without.")
        return found
    device = choose_device(options.device)
    if device.reason:
        screen.tell(NoteEvent(device.reason))
    return [device.spec]
