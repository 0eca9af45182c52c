"""From options to a Task, shared by the commands. Reads config files; starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.controller.task import Task
from autotune.device.probe import DefaultDevice, detect_default_device
from autotune.device.session import DeviceSpec
from autotune.errors import ConfigError
from autotune.store.directory import DirectoryStore
from autotune.store.places import profiles_directory
from autotune.trial.ladder_file import load_ladder
from autotune.units import parse_size

if TYPE_CHECKING:
    from trainer.config.schema import TrainConfig

TRAINER = "trainer.workload:create"
FORECAST_TRAINER = "trainer.forecast:create"
"""The same trainer without weights and pictures: what runs on the null GPU."""


@dataclass(frozen=True)
class Common:
    """The options both commands have."""

    configs: Sequence[Path]
    overrides: Sequence[str]
    device: str
    ladder: str
    vram_limit: str | None
    profiles: Path | None
    forecast: bool = True


def choose_device(text: str) -> DefaultDevice:
    """The device named, or for `auto` the card if one can be used, else a virtual GPU, with the reason."""
    if text.strip().lower() == "auto":
        return detect_default_device()
    return DefaultDevice(DeviceSpec.parse(text), "")


def make_task(
    common: Common,
    device: DeviceSpec,
    workload: str | None,
    worker_log: Path | None,
    family: str | None = None,
) -> Task:
    """The task behind the options; `family` says on the null GPU what a base model is that is not here.

    Raises ConfigError for a limit, ladder or workload that can't be read.
    """
    on_null = FORECAST_TRAINER if workload is None else workload
    return Task(
        workload or (on_null if device.kind == "null" else TRAINER),
        factory_config(common) | ({"family": family} if family else {}),
        device,
        load_ladder(common.ladder),
        open_store(common.profiles),
        parse_limit(common.vram_limit),
        worker_log,
        forecast_workload=on_null if common.forecast else None,
    )


def factory_config(common: Common) -> dict[str, Any]:
    """What the workload's factory gets: absolute config paths in order, and the overrides."""
    return {
        "configs": [str(path.absolute()) for path in common.configs],
        "set": list(common.overrides),
    }


def open_store(profiles: Path | None) -> DirectoryStore:
    """The store named by --profiles, else the user's own. A repository's `profiles/`, however it is named,
    takes no simulation."""
    folder = (profiles or profiles_directory()).resolve()
    committed = any(p.name == "profiles" and (p.parent / ".git").exists() for p in (folder, *folder.parents))
    return DirectoryStore(folder, allow_simulated=not committed)


def load_settings(common: Common, files_must_exist: bool = True) -> "TrainConfig":
    """The settings of the config files and overrides. Raises ConfigError, or ModelError for no base model (which
    the null GPU can do without: `files_must_exist=False`)."""
    from trainer.config.loader import load_config

    return load_config(common.configs, common.overrides, files_must_exist=files_must_exist).config


def check_data(settings: "TrainConfig") -> None:
    """Raise DataError for a folder of pictures that can't be trained on: at once, not after a worker's start."""
    from trainer.data.samples import load_dataset

    load_dataset(settings)


def parse_limit(text: str | None) -> int | None:
    """The bytes of --vram-limit, or None. Raises ConfigError."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"--vram-limit: {error}.") from None
