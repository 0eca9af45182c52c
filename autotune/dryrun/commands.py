"""Trainers whose command lines are known: where their knobs stand in the options, and how to turn one.

Owns the spelling of options of kohya's sd-scripts and of diffusers' LoRA scripts, and reading what their config
files say. Must never edit a user's file: what a plan changes goes on the command line, which wins over the files;
only a dataset file of kohya's wins over the command line, so a changed copy is made elsewhere and named. A dry run
computes zeros, so it must never leave files where a real run would find them.
"""

import ast
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
_LARGE_FAMILIES = re.compile(r"sdxl|sd3|flux|lumina")
_LARGE_FLOOR = 512  # pixels of a side: SDXL and later families
_EPOCHS = "max_train_epochs"  # wins over the number of steps in sd-scripts
_TO_DISK = re.compile(r"cache_\w+_to_disk")
_SHORT_ACCUMULATION = 2  # gradients are kept between microbatches from the second on


@dataclass(frozen=True)
class KnownCommand:
    """A command line that is understood: its dialect, and what it says (files below, options above)."""

    dialect: Dialect
    command: tuple[str, ...]
    said: Mapping[str, Any]
    dataset: Path | None = None
    script: Path = Path()

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
        floors = {BATCH_SIZE: 1, NETWORK_DIM: 4}
        if _LARGE_FAMILIES.search(self.script.name):
            floors[RESOLUTION] = _LARGE_FLOOR
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

    def short(self, command: Sequence[str], folder: Path) -> tuple[str, ...]:
        """`command` ended after a few steps, for a dry run, not for printing. It writes into `folder` alone: its
        results, and caches that the options want on the disk, would be zeros to the real run."""
        words = set_option(list(command), self.dialect.steps, str(SHORT_RUN_STEPS))
        words = [word for word in drop_option(words, _EPOCHS) if not _TO_DISK.fullmatch(word.lstrip("-"))]
        if any(name for name in self.said if _TO_DISK.fullmatch(name) and self.said[name]):
            words += [f"--{name.removesuffix('_to_disk')}" for name in self.said if _TO_DISK.fullmatch(name)]
        config = options_of(words).get("config_file")
        if config:
            words = set_option(words, "config_file", str(_short_config(_config_path(config), folder)))
        accumulation = int(
            options_of(words).get(self.dialect.accumulation, self._value(self.dialect.accumulation))
        )
        if accumulation > _SHORT_ACCUMULATION:
            words = set_option(words, self.dialect.accumulation, str(_SHORT_ACCUMULATION))
        return tuple(set_option(words, "output_dir", str(folder / "output")))

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
            name = dialect.alpha or ("lora_alpha" if self._value("lora_alpha") is not None else None)
            if name is not None:
                alpha = scaled_alpha(before.plan.network_dim, float(self._value(name) or 1), plan.network_dim)
                changes[name] = f"{alpha:g}"
        return changes

    def _value(self, name: str) -> Any:
        """What is said, else the script's own default, else what its kind of script has."""
        said = self.said.get(name)
        return script_defaults(self.script).get(name, self.dialect.defaults.get(name)) if said is None else said


def understand(command: Sequence[str]) -> KnownCommand:
    """The command line as a known trainer's. Raises ConfigError when it is none, or a file of it can't be read."""
    for number, word in enumerate(command):
        dialect = next((d for d in DIALECTS if d.scripts.fullmatch(Path(word).name)), None)
        if dialect is not None:
            options = options_of(command[number + 1 :])
            files = _from_files(options)
            dataset = options.get("dataset_config") or files.get("dataset_config")
            path = Path(str(dataset)) if dataset else None
            said = {**files, **options, **(_from_dataset(path) if path else {})}
            return KnownCommand(dialect, tuple(command), said, path, Path(word))
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


def drop_option(command: Sequence[str], name: str) -> list[str]:
    """`command` without `--name value` or `--name=value`."""
    words, option, skip = list[str](), f"--{name}", False
    for word in command:
        if not skip and word != option and not word.startswith(option + "="):
            words.append(word)
        skip = word == option
    return words


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Every option of `words` and its value; the last of a name wins, as argparse has it."""
    return dict(_options(words))


@cache
def script_defaults(script: Path) -> Mapping[str, Any]:
    """The numbers that the script gives its options by default, read from its text; none if it can't be read."""
    try:
        tree = ast.parse(script.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError):
        return {}
    return {name: value for node in ast.walk(tree) for name, value in _default_of(node)}


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
    document = _read_toml(_config_path(name))
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= value if isinstance(value, dict) else {key: value}
    return flat


def _config_path(name: Any) -> Path:
    path = Path(str(name))
    return path if path.suffix else path.with_suffix(".toml")


def _short_config(path: Path, folder: Path) -> Path:
    """A copy of kohya's config file in `folder` that neither counts epochs nor caches on the disk."""
    import tomlkit

    document = tomlkit.parse(path.read_text("utf-8-sig"))
    for part in [document, *(value for value in document.values() if isinstance(value, dict))]:
        for name in [name for name in part if name == _EPOCHS or _TO_DISK.fullmatch(name)]:
            del part[name]
    copy = folder / path.name
    copy.write_text(tomlkit.dumps(document), "utf-8")
    return copy


def _default_of(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """The option and its default of a call like `parser.add_argument("--rank", default=4)`."""
    if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument" and node.args):
        return
    first = node.args[0]
    default = next((word.value for word in node.keywords if word.arg == "default"), None)
    if isinstance(first, ast.Constant) and isinstance(default, ast.Constant) and type(default.value) is int:
        yield str(first.value).lstrip("-"), default.value


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
    """A copy of kohya's dataset file with no set above `plan`; None when it says neither batch nor resolution."""
    import tomlkit

    document = tomlkit.parse(path.read_text("utf-8-sig"))
    changed = False
    for part in [document.get("general", {}), *document.get("datasets", [])]:
        if "batch_size" in part:
            part["batch_size"], changed = min(int(part["batch_size"]), plan.batch_size), True
        if "resolution" in part:
            size, most = _size(part["resolution"]), plan.resolutions[0]
            part["resolution"], changed = list(most if size[0] * size[1] > most[0] * most[1] else size), True
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
