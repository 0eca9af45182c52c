"""Config files and --set overrides into one TrainConfig. Owns precedence, origins and notes; the later file
wins, an override wins over files, and whatever does not take effect is named.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from autotune.errors import ConfigError
from trainer.config.checks import Draft, read_prompts, settle
from trainer.config.dialects import Dialect, Entry, Translation, translate
from trainer.config.documents import read_document
from trainer.config.known import is_interface
from trainer.config.meanings import meaning_of
from trainer.config.paths import absolute_path, resolve_paths
from trainer.config.schema import TrainConfig
from trainer.config.values import UNSET, SpellingFault, parse_value, shown

OVERRIDE = "--set"
REQUIRED = ("pretrained_model_name_or_path", "train_data_dir")


@dataclass(frozen=True)
class LoadedConfig:
    """A run's settings; `origins` says which file (as given) or `--set` set each canonical key that was set;
    `notes` are the named warnings, in the order in which they came up.
    """

    config: TrainConfig
    origins: Mapping[str, str]
    notes: tuple[str, ...]


def load_config(
    paths: Sequence[Path],
    overrides: Sequence[str] = (),
    *,
    files_must_exist: bool = True,
    said_as: Mapping[str, str] = MappingProxyType({}),
    stand_ins: Mapping[str, str] = MappingProxyType({}),
) -> LoadedConfig:
    """Read config files in order (the later wins), then `key=value` overrides, into a checked TrainConfig.
    `said_as` names the option that an override's key came by, for messages, where that was not `--set`;
    `stand_ins` are values of required keys that nothing sets.

    TOML, JSON and YAML are told apart by content; so are the dialects (kohya config, front-end settings,
    lora-scripts, kohya_ss GUI). Raises ConfigError: unreadable file, foreign dialect, value that can't be
    read or trained, missing required key, contradiction. Raises ModelError or DataError for a base model, VAE
    or metadata file that is not there, unless `files_must_exist` is off.
    """
    draft = Draft()
    folders: dict[str, Path] = {}
    whole_model = ""
    dialect = Dialect.KOHYA
    for path in paths:
        translation = translate(read_document(Path(path)))
        dialect = translation.dialect
        whole_model = str(path) if translation.whole_model else whole_model
        _take_file(draft, folders, Path(path), translation)
    for override in overrides:
        _take_override(draft, folders, override, said_as)
    draft.values |= {key: value for key, value in stand_ins.items() if not draft.values.get(key)}
    _require(draft, paths, dialect, whole_model)
    settle(draft)
    _find_prompts(draft, folders)
    read_prompts(draft)
    resolve_paths(draft, folders, files_must_exist)
    return LoadedConfig(_build(draft), MappingProxyType(draft.origins), tuple(draft.notes))


def _take_file(draft: Draft, folders: dict[str, Path], path: Path, translation: Translation) -> None:
    sections: dict[str, tuple[str, ...]] = {}
    draft.notes += translation.notes
    for entry in translation.entries:
        value = _parsed(draft, path, entry)
        if value is UNSET:
            continue
        here = _place(path, entry.place) if entry.key in sections else path.name
        _note_override(draft, entry.key, value, here, sections.get(entry.key))
        draft.values[entry.key] = value
        draft.origins[entry.key] = str(path)
        folders[entry.key] = path.absolute().parent
        sections[entry.key] = entry.place


def _parsed(draft: Draft, path: Path, entry: Entry) -> object:
    """The typed value; one that can't be read is kept as a fault and counts as unset."""
    try:
        value = parse_value(entry.key, entry.raw)
    except SpellingFault as fault:
        written = f"{path.name}: {entry.place[-1]} = {shown(entry.raw)}"
        draft.faults[entry.key] = ConfigError(f"{written} {fault.reason}", fault.way_out)
        return UNSET
    if value is not UNSET:
        draft.faults.pop(entry.key, None)
    return value


def _note_override(draft: Draft, key: str, value: object, here: str, before: tuple[str, ...] | None) -> None:
    if key in draft.values and draft.values[key] != value:
        there = _place(Path(draft.origins[key]), before) if before else draft.origins[key]
        old = shown(draft.values[key])
        draft.notes.append(f"{here}: {key} = {shown(value)} overrides {old} from {there}")


def _place(path: Path, place: tuple[str, ...]) -> str:
    section = f"[{place[0]}] " if len(place) > 1 else ""
    return f"{path.name} {section}{place[-1]}"


def _take_override(draft: Draft, folders: dict[str, Path], override: str, said_as: Mapping[str, str]) -> None:
    key, equals, text = override.partition("=")
    key = key.strip().removeprefix("--").replace("-", "_")
    if not equals or not key:
        raise ConfigError(f"{OVERRIDE} {shown(override)} is not key=value.", "Write --set train_batch_size=2.")
    try:
        if is_interface(key):
            raise SpellingFault("is not needed here and would have no effect.", "Leave it out.")
        meaning = meaning_of(key, _list_or_text(text))
        values = [(name, parse_value(name, raw)) for name, raw in meaning.values]
    except SpellingFault as fault:
        written = f"{said_as[key]} {shown(text)}" if key in said_as else f"{OVERRIDE} {key} = {shown(text)}"
        raise ConfigError(f"{written} {fault.reason}", fault.way_out) from fault
    unknown = [note for note in meaning.notes if note.startswith("unknown key")]
    if unknown:
        raise ConfigError(f"{OVERRIDE}: {unknown[0]}.", "Use a key of the config files.")
    draft.notes += [f"{OVERRIDE}: {note}" for note in meaning.notes]
    for name, value in values:
        _put_override(draft, folders, name, value)


def _put_override(draft: Draft, folders: dict[str, Path], key: str, value: object) -> None:
    folders.pop(key, None)
    draft.faults.pop(key, None)
    if value is UNSET:
        draft.values.pop(key, None)
        draft.origins.pop(key, None)
        return
    draft.values[key] = value
    draft.origins[key] = OVERRIDE


def _list_or_text(text: str) -> object:
    if text.strip().startswith("["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _require(draft: Draft, paths: Sequence[Path], dialect: Dialect, whole_model: str) -> None:
    """Readable values, an adapter to train, and the required keys under the names of the reader's dialect."""
    if draft.faults:
        faults = list(draft.faults.values())
        raise faults[0] if len(faults) == 1 else ConfigError(" ".join(map(str, faults)))
    if whole_model and "network_dim" not in draft.values:
        raise ConfigError(
            f"{whole_model} trains the whole model (the GUI's DreamBooth or finetuning tab: no LoRA_type,"
            " no network_dim); this version trains LoRA only.",
            "Save the settings of the LoRA tab, or add --set network_dim=16 to train a LoRA with these.",
        )
    missing = [key for key in REQUIRED if not draft.values.get(key)]
    if missing:
        names = {"pretrained_model_name_or_path": "base_model"} if dialect is Dialect.LORA_SCRIPTS else {}
        where = " and ".join(str(path) for path in paths) or "no config file"
        words = " and ".join(names.get(key, key) for key in missing)
        flags = " ".join(f"--set {key}=PATH" for key in missing)
        verb, it = ("are", "them") if len(missing) > 1 else ("is", "it")
        clues = "".join(f" {note}." for note in draft.notes if _is_clue(note, missing))
        raise ConfigError(
            f"{words} {verb} not set (read: {where}).{clues}", f"Add {it} to a file, or say {flags}."
        )


def _is_clue(note: str, missing: Sequence[str]) -> bool:
    """Whether a note tells why a required key is missing: a misspelling, or a way in that we don't have."""
    misspelt = any(f"did you mean {key}?" in note for key in missing)
    return misspelt or ("train_data_dir" in missing and ("dataset_config =" in note or "in_json =" in note))


def _find_prompts(draft: Draft, folders: dict[str, Path]) -> None:
    """A file of prompts is looked for like every other path."""
    prompts = draft.get("sample_prompts")
    if len(prompts) == 1 and prompts[0].lower().endswith((".txt", ".json", ".toml")):
        base = [folders["sample_prompts"]] if "sample_prompts" in folders else []
        draft.values["sample_prompts"] = (str(absolute_path(prompts[0], base)),)


def _build(draft: Draft) -> TrainConfig:
    try:
        return TrainConfig(**draft.values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        problem = first["msg"].replace("Input should be", "is out of range: it must be")
        raise draft.fault(key, f"{problem}.", "Correct it.") from error
