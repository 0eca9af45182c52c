"""Trainers whose command lines are known: where their knobs stand in the options, and how to turn one.

Owns the spelling of options of kohya's sd-scripts and of diffusers' LoRA scripts, and reading what their config
files say. Must never edit a user's file: what a plan changes goes on the command line, which wins over the files;
only a dataset file of kohya's wins over the command line, so a changed copy is made elsewhere and named.
"""

import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import ConfigError
from autotune.ladder.plan import (
    BATCH_SIZE,
    GRADIENT_CHECKPOINTING,
    NETWORK_DIM,
    RESOLUTION,
    Plan,
    Recipe,
    Size,
)
from autotune.ladder.receipts import scaled_alpha

SHORT_RUN_STEPS = 3
"""Optimizer steps of a dry run: the first makes the optimizer's state, so only the second meets the peak."""


@dataclass(frozen=True)
class Dialect:
    """The options of one kind of script. `rank`, `alpha` and the rest are option names, `defaults` the script's
    own; `alpha` is None where the script ties it to the rank by itself."""

    name: str
    scripts: re.Pattern[str]
    batch: str
    rank: str
    alpha: str | None
    defaults: Mapping[str, int]
    resolution_floor: int = 256
    accumulation: str = "gradient_accumulation_steps"
    steps: str = "max_train_steps"


KOHYA = Dialect(
    "kohya's sd-scripts",
    re.compile(r"(?:flux_|sd3_|lumina_)?train_network\.py|sdxl_train_network\.py"),
    "train_batch_size",
    "network_dim",
    "network_alpha",
    {"train_batch_size": 1, "network_dim": 4, "resolution": 512, "gradient_accumulation_steps": 1},
)
DIFFUSERS = Dialect(
    "diffusers' LoRA scripts",
    re.compile(r"train_(?:text_to_image|dreambooth|instruct_pix2pix)_lora\w*\.py"),
    "train_batch_size",
    "rank",
    None,
    {"train_batch_size": 4, "rank": 4, "resolution": 512, "gradient_accumulation_steps": 1},
)
DIALECTS = (KOHYA, DIFFUSERS)


@dataclass(frozen=True)
class KnownCommand:
    """A command line that is understood: its dialect, and what it says (files below, options above)."""

    dialect: Dialect
    command: tuple[str, ...]
    said: Mapping[str, Any]
    dataset: Path | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe as written: its plan, effective batch and floors."""
        plan = Plan.of(
            batch_size=int(self._value(self.dialect.batch)),
            resolution=(_size(self._value("resolution")),),
            gradient_checkpointing=bool(self.said.get("gradient_checkpointing", False)),
            network_dim=int(self._value(self.dialect.rank)),
        )
        effective = plan.batch_size * int(self._value(self.dialect.accumulation))
        floors = {BATCH_SIZE: 1, RESOLUTION: self.dialect.resolution_floor, NETWORK_DIM: 4}
        return Recipe(plan, effective, 1, floors)

    def for_plan(self, plan: Plan, folder: Path) -> tuple[str, ...]:
        """The command under `plan`: only options whose values differ from what is said are set. A dataset file
        that says others is copied, changed, into `folder`."""

        changes = self._changes(plan)
        command = list(self.command)
        if self.dataset is not None and {self.dialect.batch, "resolution"} & changes.keys():
            copy = _changed_dataset(self.dataset, folder, plan)
            if copy is not None:
                command = set_option(command, "dataset_config", str(copy))
        for name, value in changes.items():
            command = set_option(command, name, value)
        return tuple(command)

    def short(self, command: Sequence[str]) -> tuple[str, ...]:
        """`command` ended after a few steps: for a dry run, not for printing."""
        return tuple(set_option(list(command), self.dialect.steps, str(SHORT_RUN_STEPS)))

    def _changes(self, plan: Plan) -> dict[str, str | None]:
        """Options that differ from the recipe; None is a switch turned on."""
        before, dialect = self.recipe, self.dialect
        changes: dict[str, str | None] = {}
        if plan.batch_size != before.plan.batch_size:
            changes[dialect.batch] = str(plan.batch_size)
            changes[dialect.accumulation] = str(before.accumulation(plan))
        if plan.resolutions != before.plan.resolutions:
            changes["resolution"] = _describe_size(plan.resolutions[0], self._value("resolution"))
        if plan.gradient_checkpointing and not before.plan.gradient_checkpointing:
            changes[GRADIENT_CHECKPOINTING] = None
        if plan.network_dim != before.plan.network_dim:
            changes[dialect.rank] = str(plan.network_dim)
            if dialect.alpha is not None:
                alpha = scaled_alpha(
                    before.plan.network_dim, float(self.said.get(dialect.alpha, 1)), plan.network_dim
                )
                changes[dialect.alpha] = f"{alpha:g}"
        return changes

    def _value(self, name: str) -> Any:
        return self.said.get(name, self.dialect.defaults.get(name))


def understand(command: Sequence[str]) -> KnownCommand:
    """The command line as a known trainer's. Raises ConfigError when it is none, or a file of it can't be read."""
    for number, word in enumerate(command):
        dialect = next((d for d in DIALECTS if d.scripts.fullmatch(Path(word).name)), None)
        if dialect is not None:
            options = dict(_options(command[number + 1 :]))
            files = _from_files(options)
            dataset = options.get("dataset_config") or files.get("dataset_config")
            path = Path(str(dataset)) if dataset else None
            said = {**files, **options, **(_from_dataset(path) if path else {})}
            return KnownCommand(dialect, tuple(command), said, path)
    names = " and ".join(dialect.name for dialect in DIALECTS)
    raise ConfigError(f"--ladder knows the command lines of {names}; this is neither.", "Leave --ladder out.")


def set_option(command: list[str], name: str, value: str | None) -> list[str]:
    """`command` with `--name value` in place of what it said (`--name value` or `--name=value`), else at its end.
    None is a switch."""
    words, option, found = list[str](), f"--{name}", False
    skip = False
    for word in command:
        if skip:
            skip = False
            continue
        if word == option or word.startswith(option + "="):
            if not found:
                words += [option] if value is None else [option, value]
            found, skip = True, word == option and value is not None
            continue
        words.append(word)
    if not found:
        words += [option] if value is None else [option, value]
    return words


def temporary_folder() -> Path:
    """A folder for changed copies that stays: the printed command names it."""
    return Path(tempfile.mkdtemp(prefix="autotune-ladder-"))


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`--name value`, `--name=value` and switches, in order."""
    for number, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        after = words[number + 1] if number + 1 < len(words) else "--"
        yield name, value if equals else (True if after.startswith("--") else after)


def _from_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """What kohya's --config_file says: its sections count for nothing."""
    name = options.get("config_file")
    if not name:
        return {}
    path = Path(str(name))
    document = _read_toml(path if path.suffix else path.with_suffix(".toml"))
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= value if isinstance(value, dict) else {key: value}
    return flat


def _from_dataset(path: Path) -> dict[str, Any]:
    """The largest batch and resolution that kohya's dataset file says, where it says them."""
    document = _read_toml(path)
    parts = [document.get("general", {}), *document.get("datasets", [])]
    said: dict[str, Any] = {}
    batches = [part["batch_size"] for part in parts if "batch_size" in part]
    sizes = [part["resolution"] for part in parts if "resolution" in part]
    if batches:
        said["train_batch_size"] = max(batches)
    if sizes:
        said["resolution"] = max(sizes, key=lambda size: max(_size(size)))
    return said


def _changed_dataset(path: Path, folder: Path, plan: Plan) -> Path | None:
    """A copy of kohya's dataset file under `plan`; None when it says neither batch nor resolution."""
    import tomlkit

    document = tomlkit.parse(path.read_text("utf-8-sig"))
    changed = False
    for part in [document.get("general", {}), *document.get("datasets", [])]:
        if "batch_size" in part:
            part["batch_size"], changed = plan.batch_size, True
        if "resolution" in part:
            part["resolution"], changed = list(plan.resolutions[0]), True
    if not changed:
        return None
    copy = folder / path.name
    copy.write_text(tomlkit.dumps(document), "utf-8")
    return copy


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}.") from None


def _size(value: Any) -> Size:
    """512, "512", "512,768" or [512, 768] as (width, height)."""
    parts = value if isinstance(value, list | tuple) else str(value).replace("x", ",").split(",")
    numbers = [int(part) for part in parts]
    return (numbers[0], numbers[-1])


def _describe_size(size: Size, before: Any) -> str:
    """In the form the command had: one number for a square, where there was one."""
    single = size[0] == size[1] and "," not in str(before)
    return str(size[0]) if single else f"{size[0]},{size[1]}"
