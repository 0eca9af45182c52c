"""A config file as a tree of plain values. Owns telling TOML, JSON and YAML apart by content, and errors
with a line; never knows what a key means.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import Any

from autotune.errors import ConfigError
from trainer.config.text import ConfigText, read_text


class Syntax(StrEnum):
    """How the file is written, whatever it is called."""

    TOML = "TOML"
    JSON = "JSON"
    YAML = "YAML"


@dataclass(frozen=True)
class Document:
    """One parsed config file: its text, syntax, top-level mapping, and what was odd about it."""

    path: Path
    source: ConfigText
    syntax: Syntax
    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file name, for messages."""
        return self.path.name


class SyntaxFault(Exception):  # noqa: N818 - a finding, shown to nobody as it is
    """The text is not valid in one syntax: `line` (from 1, 0 unknown), the parser's `reason`."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(reason)


def read_document(path: Path) -> Document:
    """Read and parse `path`. Raises ConfigError naming the file and, where it is known, the line."""
    source = read_text(path)
    syntax, values, repeated = parse(source.text, path)
    notes = [f"{path.name}: {key} is written twice, the later one counts" for key in repeated]
    if source.guessed:
        notes.insert(0, f"{path.name}: not UTF-8, read as {source.encoding}; save it as UTF-8 to be sure")
    return Document(path, source, syntax, values, tuple(notes))


def parse(text: str, path: Path) -> tuple[Syntax, dict[str, Any], tuple[str, ...]]:
    """Syntax, top-level mapping and repeated JSON keys of `text`; `path` names it and breaks no tie but one:
    which syntax's error to show when none fits. Raises ConfigError.
    """
    repeated: list[str] = []
    faults: dict[Syntax, SyntaxFault] = {}
    for syntax in _candidates(text):
        try:
            values = _PARSERS[syntax](text, repeated)
        except SyntaxFault as fault:
            faults[syntax] = fault
            continue
        return syntax, _mapping(values, path), tuple(repeated)
    syntax = _meant(text, path, faults)
    raise _explained(path.name, syntax, faults[syntax], text)


def _candidates(text: str) -> tuple[Syntax, ...]:
    start = text.lstrip()[:1]
    if start == "{":
        return (Syntax.JSON, Syntax.YAML)
    if start == "[":
        return (Syntax.TOML, Syntax.JSON)
    return (Syntax.TOML, Syntax.YAML)


def _parse_toml(text: str, repeated: list[str]) -> Any:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise SyntaxFault(0, "it is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, and integers with thousands of digits
        place = re.search(r" \(at line (\d+), column \d+\)", str(error))
        reason = re.sub(r" \(at .*\)$", "", str(error))
        last = text.count("\n") + 1 if "end of document" in str(error) else 0
        raise SyntaxFault(int(place[1]) if place else last, reason) from error


def _parse_json(text: str, repeated: list[str]) -> Any:
    def keep_last(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if key in values:
                repeated.append(key)
            values[key] = value
        return values

    try:
        return json.loads(text, object_pairs_hook=keep_last)
    except RecursionError as error:
        raise SyntaxFault(0, "it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise SyntaxFault(error.lineno, error.msg) from error
    except ValueError as error:
        raise SyntaxFault(0, str(error)) from error


def _parse_yaml(text: str, repeated: list[str]) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        values = YAML(typ="safe", pure=True).load(StringIO(text))
    except RecursionError as error:
        raise SyntaxFault(0, "it is nested too deeply") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SyntaxFault(mark.line + 1 if mark else 0, str(error.problem or error.context)) from error
    except (YAMLError, ValueError) as error:
        raise SyntaxFault(0, str(error)) from error
    if not isinstance(values, dict) or any("=" in str(key) for key in values):
        raise SyntaxFault(1, "it holds no `key: value` lines")
    return {str(key): value for key, value in values.items()}


_PARSERS: Mapping[Syntax, Callable[[str, list[str]], Any]] = {
    Syntax.TOML: _parse_toml,
    Syntax.JSON: _parse_json,
    Syntax.YAML: _parse_yaml,
}


def _mapping(values: Any, path: Path) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path.name} holds a list, not settings by name.",
            "Give the training settings; a list of datasets or prompts belongs elsewhere.",
        )
    if not values:
        raise ConfigError(f"{path.name} holds no settings.", "Give a file with settings in it.")
    return values


def _meant(text: str, path: Path, faults: Mapping[Syntax, SyntaxFault]) -> Syntax:
    """Which syntax the writer had in mind, when the text is valid in none."""
    by_name = {".toml": Syntax.TOML, ".json": Syntax.JSON, ".yaml": Syntax.YAML, ".yml": Syntax.YAML}
    named = by_name.get(path.suffix.lower())
    if named in faults and named is not None:
        return named
    assigned = len(re.findall(r"^\s*[\w.-]+\s*=", text, re.MULTILINE))
    mapped = len(re.findall(r"^\s*[\w.-]+:\s", text, re.MULTILINE))
    likely = Syntax.YAML if mapped > assigned else next(iter(faults))
    return likely if likely in faults else next(iter(faults))


def _explained(name: str, syntax: Syntax, fault: SyntaxFault, text: str) -> ConfigError:
    lines = text.splitlines()
    line = lines[fault.line - 1].strip() if 0 < fault.line <= len(lines) else ""
    place = f" line {fault.line}" if fault.line else ""
    shown = f" `{line[:100]}`" if line else ""
    return ConfigError(
        f"{name}{place} is no valid {syntax}: {fault.reason.rstrip('.')}{':' if shown else '.'}{shown}",
        _way_out(syntax, fault.reason, line),
    )


def _way_out(syntax: Syntax, reason: str, line: str) -> str:
    if re.search(r'"[^"]*\\', line) and syntax is not Syntax.YAML:
        return _BACKSLASHES[syntax]
    for pattern, subject, advice in _HINTS:
        if re.search(pattern, line if subject == "line" else reason):
            return advice
    return "Correct that line." if line else "Correct the file."


_BACKSLASHES = {
    Syntax.TOML: "A backslash in double quotes starts an escape: use 'single quotes', or write / instead.",
    Syntax.JSON: "A backslash starts an escape: write the path with / or double every backslash.",
}
_HINTS = (
    (r"declare .* twice|redefine|same .* twice", "reason", "Keep one table of that name."),
    (r"overwrite a value|duplicate key", "reason", "Keep one line with that key."),
    (r"=\s*(True|False)\b", "line", "Write true or false in small letters."),
    (r"=\s*(None|null)\b", "line", "Leave the key out: TOML has no empty value."),
    (r"=\s*[A-Za-z./~\\]", "line", "Put text in quotes."),
    (r"=\s*$", "line", "Give the key a value or leave it out."),
    (r"cannot start any token", "reason", "YAML indents with spaces, not tabs."),
    (r"property name|trailing comma", "reason", "Remove the comma before the closing bracket."),
    (r"',' delimiter", "reason", "A comma is missing before that line, or a quote is open."),
    (
        r"could not determine a constructor",
        "reason",
        "Tags of programming languages are not read: write plain values.",
    ),
    (r"Exceeds the limit", "reason", "A number has thousands of digits: correct it."),
)
