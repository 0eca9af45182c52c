"""The dialects of config files. Owns recognising them by content, refusing those of other programs with one
sentence, flattening sections, and translating keys; never parses a value.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.errors import ConfigError
from trainer.config.documents import Document
from trainer.config.gui import gui_notes, is_gui, plain_name, refuse_other_adapters, resolve_gui
from trainer.config.known import is_interface, is_known, is_neutral, suggestion
from trainer.config.meanings import canonical_key, meaning_of
from trainer.config.values import SpellingFault, is_true, shown


class Dialect(StrEnum):
    """Whose words a file uses."""

    KOHYA = "kohya config"
    GUI = "kohya_ss GUI settings"
    LORA_SCRIPTS = "lora-scripts"


@dataclass(frozen=True)
class Entry:
    """One setting of a file: canonical key, raw value, and where it is written (section, key)."""

    key: str
    raw: object
    place: tuple[str, ...]


@dataclass(frozen=True)
class Translation:
    """A file in our words: settings in file order, notes. `whole_model`: it asks for no adapter."""

    dialect: Dialect
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    whole_model: bool = False


Written = tuple[tuple[str, ...], Any]


def translate(document: Document) -> Translation:
    """The settings of `document` under our names. Raises ConfigError for another program's file."""
    _refuse_foreign(document)
    written, notes = _flatten(document.values)
    flat = {place[-1]: value for place, value in written}
    dialect = _dialect_of(flat)
    try:
        if dialect is Dialect.GUI:
            refuse_other_adapters(flat)
            notes += gui_notes(flat)
            written = resolve_gui(written)
        entries, more = _entries(_precision_once(written), dialect)
    except SpellingFault as fault:
        raise ConfigError(f"{document.name}: {fault.reason}", fault.way_out) from fault
    _refuse_strangers(document, entries, flat)
    whole_model = dialect is Dialect.GUI and "LoRA_type" not in flat and "network_dim" not in flat
    named = tuple(f"{document.name}: {note}" for note in (*notes, *more))
    return Translation(dialect, tuple(entries), document.notes + named, whole_model)


def _dialect_of(flat: Mapping[str, Any]) -> Dialect:
    if is_gui(flat):
        return Dialect.GUI
    return Dialect.LORA_SCRIPTS if flat.keys() & {"base_model", "lora_rank", "lora_alpha"} else Dialect.KOHYA


def _flatten(values: Mapping[str, Any]) -> tuple[list[Written], list[str]]:
    """One level of sections melts into one list, as in kohya's reader; deeper tables are named in a note."""
    written: list[Written] = []
    notes: list[str] = []
    for key, value in values.items():
        if not isinstance(value, dict) or key in _TABLES:
            written.append(((key,), value))
            continue
        for inner, setting in value.items():
            if isinstance(setting, dict) and inner not in _TABLES:
                notes.append(f"[{shown(key)}.{shown(str(inner))}] is a table in a table: not read")
            else:
                written.append(((key, str(inner)), setting))
    return written, notes


_TABLES = ("optimizer_args", "network_args")


def _precision_once(written: list[Written]) -> list[Written]:
    """fp16 and bf16 are two switches for one setting: a false one says nothing when the other is true."""
    switches = {place[-1]: value for place, value in written if place[-1] in ("fp16", "bf16")}
    on = {key for key, value in switches.items() if is_true(value)}
    if len(on) == 2:
        raise SpellingFault("fp16 and bf16 are both true.", "Keep one of them.")
    return [item for item in written if item[0][-1] not in switches or not on or item[0][-1] in on]


def _entries(written: Iterable[Written], dialect: Dialect) -> tuple[list[Entry], list[str]]:
    entries: list[Entry] = []
    notes: list[str] = []
    idle: list[str] = []
    for place, raw in written:
        key = place[-1]
        if is_interface(key):
            idle += [] if is_neutral(key, raw) else [key]
            continue
        try:
            meaning = meaning_of(plain_name(key) if dialect is Dialect.GUI else key, raw)
        except SpellingFault as fault:
            raise SpellingFault(f"{key} = {shown(raw)} {fault.reason}", fault.way_out) from fault
        entries += [Entry(name, value, place) for name, value in meaning.values]
        notes += meaning.notes
        name = canonical_key(key)
        if dialect is Dialect.KOHYA and name not in (None, key):
            notes.append(f"{key} is read as {name}")
    if idle:
        notes.append(f"not needed here, so not used: {', '.join(idle)}")
    return entries, notes


def _refuse_foreign(document: Document) -> None:
    values = document.values
    for recognises, sentence in _FOREIGN:
        if recognises(values):
            raise ConfigError(f"{document.name} {sentence}", _USE_OURS)


def _refuse_strangers(document: Document, entries: list[Entry], flat: Mapping[str, Any]) -> None:
    if not entries and not any(is_known(key) or suggestion(key) for key in flat):
        names = ", ".join(shown(key) for key in list(flat)[:4])
        raise ConfigError(f"{document.name} holds no training setting (its keys: {names}).", _USE_OURS)


_USE_OURS = "Give a kohya-style config.toml, a settings.json, a lora-scripts YAML or a kohya_ss GUI file."


def _has(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda values: all(key in values for key in keys)


def _is_language_job(values: Mapping[str, Any]) -> bool:
    task = str(values.get("task_type", "")).lower().replace("_", "-")
    words = ("text-generation", "causal", "seq", "sft", "dpo", "chat", "token", "question", "language")
    marks = (
        "sequence_len",
        "cutoff_len",
        "max_seq_length",
        "max_seq_len",
        "finetuning_type",
        "lora_target_modules",
    )
    return any(word in task for word in words) or any(mark in values for mark in marks)


def _is_dataset_config(values: Mapping[str, Any]) -> bool:
    general = values.get("general")
    lone = isinstance(general, dict) and len(values) == 1 and not general.keys() & {"output_dir", "network_dim"}
    return isinstance(values.get("datasets"), list) or lone


def _is_easy_training(values: Mapping[str, Any]) -> bool:
    return any(isinstance(section, dict) and isinstance(section.get("args"), dict) for section in values.values())


def _is_ai_toolkit(values: Mapping[str, Any]) -> bool:
    config = values.get("config")
    return "job" in values or (isinstance(config, dict) and "process" in config)


def _is_simple_tuner(values: Mapping[str, Any]) -> bool:
    return "model_family" in values or any(str(key).startswith("--") for key in values)


_FOREIGN: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = (
    (_has("training_method", "model_type"), "is a OneTrainer config, which is not read."),
    (_is_simple_tuner, "is a SimpleTuner config, which is not read."),
    (_is_ai_toolkit, "is an ai-toolkit job, which is not read."),
    (_is_easy_training, "is a LoRA Easy Training Scripts config, which is not read."),
    (
        _is_dataset_config,
        "is a kohya dataset_config (it describes datasets, not a training), which is not read yet.",
    ),
    (_has("compute_environment", "distributed_type"), "is accelerate's own config, not a training's."),
    (
        _is_language_job,
        "is a language-model job (task_type or its keys say so); autotune trains picture models.",
    ),
)
