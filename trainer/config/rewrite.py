"""A user's config written to a new file with only chosen settings changed. Owns keeping everything else as it
was, byte for byte: comments, order, quotes, unknown keys, encoding and line ends; never writes over any file.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from reprlib import Repr

from autotune.errors import ConfigError
from trainer.config.dialects import Dialect, Entry, Translation, translate
from trainer.config.documents import Document, Syntax, parse, read_document
from trainer.config.respell import respell
from trainer.config.schema import Size
from trainer.config.splice import Edit, Place, splice_json, splice_toml, splice_yaml
from trainer.config.values import SpellingFault, parse_value, shown

Change = int | float | bool | Sequence[Size]
CHANGEABLE = (
    "train_batch_size",
    "gradient_accumulation_steps",
    "resolution",
    "gradient_checkpointing",
    "network_dim",
    "network_alpha",
)

_SECTIONS = {
    "train_batch_size": "training",
    "gradient_accumulation_steps": "training",
    "gradient_checkpointing": "training",
    "network_dim": "network",
    "network_alpha": "network",
    "resolution": "dataset",
}
_NAMES = {
    Dialect.GUI: {"resolution": "max_resolution"},
    Dialect.LORA_SCRIPTS: {
        "train_batch_size": "batch_size",
        "network_dim": "lora_rank",
        "network_alpha": "lora_alpha",
    },
    Dialect.KOHYA: {},
}


def rewrite_config(
    source: Path, destination: Path, changes: Mapping[str, Change], unchanged: Collection[str] = ()
) -> None:
    """Write `source` to `destination` in its own dialect with `changes` (canonical key -> value) made.

    `changes` takes the keys of CHANGEABLE. A value keeps the type and spelling it had ("448,448" stays text,
    448 a number); a value that already says so is left as it is; a missing key is added beside its kin,
    but for those of `unchanged`, whose value holds without a line of its own.
    Raises ConfigError when `destination` exists (the source itself included), when `source` can't be read, or
    when the change can't be made without touching anything else; DiskError when it can't be written.
    """
    from autotune.files import write_atomically

    check_destination(source, destination)
    unknown = [key for key in changes if key not in CHANGEABLE]
    if unknown:
        raise ConfigError(f"{unknown[0]} can't be rewritten.", f"Change {', '.join(CHANGEABLE)}.")
    document = read_document(source)
    edits = _edits(translate(document), document, changes, unchanged)
    splice = _SPLICERS[document.syntax]
    text = splice(document.source.text, edits, document.name)
    _verify(document, text, edits)
    try:
        write_atomically(destination, document.source.encode(text), replace=False)
    except FileExistsError:  # it came about while we worked
        raise _exists(f"{destination} exists and is never overwritten") from None


def check_destination(source: Path, destination: Path) -> None:
    """Raise ConfigError when there is something at `destination` already: no file is ever written over."""
    if destination.exists() or destination.is_symlink():
        same = destination.exists() and source.exists() and destination.samefile(source)
        subject = "is the config itself, which is never changed" if same else "exists and is never overwritten"
        raise _exists(f"{destination} {subject}")


def _exists(fact: str) -> ConfigError:
    return ConfigError(f"{fact}.", "Give the name of a new file.")


def _edits(
    translation: Translation, document: Document, changes: Mapping[str, Change], unchanged: Collection[str]
) -> list[Edit]:
    edits = []
    for key, value in changes.items():
        wanted = tuple(tuple(size) for size in value) if isinstance(value, list | tuple) else value
        entry = _in_force(translation, key)
        if entry is None and key in unchanged:
            continue
        if entry is None:
            place = _new_place(key, translation, document)
            edits.append(Edit(place, respell(key, wanted, None), new=True))
        elif not _says(key, entry.raw, wanted):
            edits.append(Edit(entry.place, respell(key, wanted, entry.raw), new=False))
    return edits


def _in_force(translation: Translation, key: str) -> Entry | None:
    """The last line that sets `key`: the one that counts."""
    return next((entry for entry in reversed(translation.entries) if entry.key == key), None)


def _says(key: str, raw: object, wanted: object) -> bool:
    try:
        return parse_value(key, raw) == wanted
    except SpellingFault:
        return False


def _new_place(key: str, translation: Translation, document: Document) -> Place:
    """Where a missing key goes: its section by name, else beside its kin, else beside any setting."""
    name = _NAMES[translation.dialect].get(key, key)
    sections = [title for title, content in document.values.items() if isinstance(content, dict)]
    named = [title for title in sections if title.lower() == _SECTIONS[key]]
    kin = [entry.place[:-1] for entry in translation.entries if _SECTIONS.get(entry.key) == _SECTIONS[key]]
    if named:
        return (named[0], name)
    if kin:
        return (*kin[-1], name)
    tables = [entry.place[:-1] for entry in translation.entries]
    return (*min(tables, key=len, default=()), name)


def _verify(document: Document, text: str, edits: Sequence[Edit]) -> None:
    """Parse the result and compare: exactly the edits, nothing else. Raises ConfigError."""
    expected = {key: dict(value) if isinstance(value, dict) else value for key, value in document.values.items()}
    for edit in edits:
        table = expected[edit.place[0]] if len(edit.place) > 1 else expected
        table[edit.place[-1]] = edit.value
    try:
        same = _print.repr(parse(text, document.path)[1]) == _print.repr(expected)
    except (ConfigError, RecursionError):
        same = False
    if not same:
        keys = ", ".join(shown(edit.place[-1]) for edit in edits)
        raise ConfigError(
            f"{document.name} can't be rewritten without touching other settings ({keys}).",
            "Make these changes by hand in a copy.",
        )


_print = Repr()  # bounded: aliases can make a small YAML file a huge tree
_print.maxlevel, _print.maxdict, _print.maxlist, _print.maxstring, _print.maxlong = 4, 1000, 20, 10000, 100

_SPLICERS: Mapping[Syntax, Callable[[str, Sequence[Edit], str], str]] = {
    Syntax.TOML: splice_toml,
    Syntax.JSON: splice_json,
    Syntax.YAML: splice_yaml,
}
