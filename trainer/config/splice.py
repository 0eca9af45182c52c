"""Values exchanged inside the text of a TOML, JSON or YAML file. Owns finding the characters of one value and
touching no others; never knows what a key means.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import ConfigError

Place = tuple[str, ...]
Change = tuple[int, int, str]  # replace text[start:end]


@dataclass(frozen=True)
class Edit:
    """One value to write, spelled as the file does. `place` is (key,) or (section, key).

    A `new` key goes behind the last plain one of its section, on a line of its own where the others are.
    """

    place: Place
    value: object
    new: bool


def splice_toml(text: str, edits: Sequence[Edit], name: str) -> str:
    """`text` with the edits made; tomlkit keeps the rest. Raises ConfigError when it can't."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    line_end = "\r\n" if "\r\n" in text else "\n"
    try:
        document = tomlkit.parse(text)
        for edit in edits:
            table: Any = document if len(edit.place) == 1 else document[edit.place[0]]
            key = edit.place[-1]
            if edit.new:
                _add_toml(table, key, edit.value, line_end)
            else:
                table[key] = _toml_item(table[key], edit.value)
        return document.as_string()
    except (TOMLKitError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unsplicable(name) from error


def splice_json(text: str, edits: Sequence[Edit], name: str) -> str:
    """`text` with the edits made, indentation and key order kept. Raises ConfigError when it can't."""
    changes: list[Change] = []
    for edit in edits:
        try:
            start = _json_object(text, edit.place[:-1])
            members = list(_json_members(text, start))
            if edit.new:
                changes.append(_json_addition(text, members, edit.place[-1], edit.value))
            else:
                begin, end = next((b, e) for key, _, b, e in reversed(members) if key == edit.place[-1])
                changes += _json_exchange(text, begin, end, edit.value)
        except (StopIteration, ValueError, IndexError) as error:
            raise _unsplicable(name) from error
    return _apply(text, changes)


def splice_yaml(text: str, edits: Sequence[Edit], name: str) -> str:
    """`text` with the edits made, by the marks of ruamel's parser. Raises ConfigError when it can't."""
    from ruamel.yaml import YAML

    changes: list[Change] = []
    for edit in edits:
        try:
            mapping = YAML(typ="rt").compose(text)
            for title in edit.place[:-1]:
                mapping = _yaml_pair(mapping, title)[1]
            if edit.new:
                changes.append(_yaml_addition(text, mapping, edit.place[-1], edit.value))
            else:
                changes += _yaml_exchange(text, *_yaml_pair(mapping, edit.place[-1]), edit.value)
        except (KeyError, ValueError, AttributeError, RecursionError) as error:
            raise _unsplicable(name) from error
    return _apply(text, changes)


def _unsplicable(name: str) -> ConfigError:
    return ConfigError(
        f"{name} is written in a way that can't be changed in place.", "Make the change by hand in a copy."
    )


def _apply(text: str, changes: Sequence[Change]) -> str:
    """From back to front; of additions at one place the first stays first."""
    ordered = sorted(enumerate(changes), key=lambda item: (item[1][0], item[0]), reverse=True)
    for _, (start, end, new) in ordered:
        text = text[:start] + new + text[end:]
    return text


def _toml_item(old: Any, value: object) -> Any:
    """A TOML item for `value` in the quotes of `old`; an array of the same length changes inside."""
    import tomlkit

    if isinstance(value, list) and isinstance(old, list) and len(old) == len(value):
        for index, part in enumerate(value):
            old[index] = _toml_item(old[index], part)
        return old
    if isinstance(value, str) and hasattr(old, "as_string"):
        quotes = old.as_string()
        return tomlkit.string(value, literal=quotes[:1] == "'", multiline=quotes[:3] in ('"""', "'''"))
    return tomlkit.item(value)


def _add_toml(table: Any, key: str, value: object, line_end: str) -> None:
    """tomlkit's own append puts a key behind the blank lines and comments that head the next section."""
    import tomlkit
    from tomlkit.items import AoT, InlineTable, Table

    body = table.body if hasattr(table, "body") else table.value.body
    plain = [item for name, item in body if name is not None and not isinstance(item, AoT | Table)]
    if isinstance(table, InlineTable) or not plain:
        table.append(key, value)
        return
    trivia = plain[-1].trivia
    ended = trivia.trail.endswith("\n")
    line = f"{trivia.indent}{key} = {tomlkit.item(value).as_string()}"
    trivia.trail += f"{line}{line_end}" if ended else f"{line_end}{line}"


_SPACE = re.compile(r"[ \t\r\n]*")
Member = tuple[str, int, int, int]  # key, where it starts, where its value starts and ends


def _json_members(text: str, start: int) -> Iterator[Member]:
    """The members of the object whose brace is at `start`."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        key_start = at
        key, at = _DECODER.raw_decode(text, at)
        value_start = _skip(text, _skip(text, at) + 1)
        _, at = _DECODER.raw_decode(text, value_start)
        yield key, key_start, value_start, at
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at


_DECODER = json.JSONDecoder()


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _json_object(text: str, sections: Place) -> int:
    start = _skip(text, 0)
    for section in sections:
        start = next(begin for key, _, begin, _ in reversed(list(_json_members(text, start))) if key == section)
    return start


def _json_exchange(text: str, start: int, end: int, value: object) -> list[Change]:
    old = json.loads(text[start:end])
    if not (isinstance(value, list) and isinstance(old, list) and len(old) == len(value)):
        return [(start, end, json.dumps(value, ensure_ascii=False))]
    changes: list[Change] = []
    at = start + 1
    for part in value:
        at = _skip(text, at)
        _, part_end = _DECODER.raw_decode(text, at)
        changes += _json_exchange(text, at, part_end, part)
        at = _skip(text, part_end) + 1
    return changes


def _json_addition(text: str, members: Sequence[Member], key: str, value: object) -> Change:
    """After the last member, spaced as that one is."""
    last, key_start, value_start, value_end = members[-1]
    before = re.search(r"[ \t\r\n]*$", text[:key_start])
    colon = text[key_start:value_start][len(json.dumps(last, ensure_ascii=False)) :]
    colon = colon if colon.strip() == ":" else ": "
    member = f"{json.dumps(key)}{colon}{json.dumps(value, ensure_ascii=False)}"
    return value_end, value_end, f",{before[0] if before else ''}{member}"


def _yaml_pair(mapping: Any, key: str) -> tuple[Any, Any]:
    """Key and value node; the last of that name. Raises KeyError, as for a key that a merge brings in."""
    for name, value in reversed(mapping.value):
        if name.value == key:
            return name, value
    raise KeyError(key)


def _yaml_exchange(text: str, key: Any, node: Any, value: object) -> list[Change]:
    start = node.start_mark.index
    if start < key.end_mark.index:  # an alias: the node stands where its anchor is
        alias = re.compile(r"\s*:\s*(\*[^\s,\]}]+)").match(text, key.end_mark.index)
        if alias is None:
            raise KeyError(key.value)
        return [(alias.start(1), alias.end(1), _yaml_text("", value))]
    return _yaml_node(text, node, value)


def _yaml_node(text: str, node: Any, value: object) -> list[Change]:
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node.value, list):
        if isinstance(value, list) and len(node.value) == len(value):
            pairs = zip(node.value, value, strict=True)
            return [change for part, new in pairs for change in _yaml_node(text, part, new)]
        if not node.flow_style:
            raise ValueError("a block sequence of another length")
        return [(start, end, json.dumps(value))]
    marked = re.match(r"(?:[&!]\S*\s+)*", text[start:end])  # an anchor or tag stays
    start += marked.end() if marked else 0
    return [(start, end, _yaml_text(text[start:end], value))]


def _yaml_text(old: str, value: object) -> str:
    """`value` as a scalar in the quotes, or for true and false the letters, of `old`."""
    if isinstance(value, bool):
        word = str(value).lower()
        return word.upper() if old.isupper() else word.capitalize() if old[:1].isupper() else word
    if isinstance(value, str):
        if old[:1] in ("'", '"'):
            return f"{old[0]}{value}{old[0]}"
        return value if old else f'"{value}"'
    return json.dumps(value)


def _yaml_addition(text: str, mapping: Any, key: str, value: object) -> Change:
    pairs = mapping.value
    line = f"{key}: {_yaml_text('', value)}"
    if mapping.flow_style:
        end = pairs[-1][1].end_mark.index
        return end, end, f", {line}"
    anchors = [pair for pair in pairs if not isinstance(pair[1].value, list) and _on_one_line(*pair)]
    if not anchors:
        raise KeyError(key)
    name, node = anchors[-1]
    indent = " " * name.start_mark.column
    line_end = "\r\n" if "\r\n" in text else "\n"
    newline = text.find("\n", max(name.end_mark.index, node.end_mark.index if _is_here(name, node) else 0))
    if newline < 0:
        return len(text), len(text), f"{line_end}{indent}{line}"
    return newline + 1, newline + 1, f"{indent}{line}{line_end}"


def _on_one_line(name: Any, node: Any) -> bool:
    return not _is_here(name, node) or name.end_mark.line == node.start_mark.line == node.end_mark.line


def _is_here(name: Any, node: Any) -> bool:
    """False for an alias, whose node stands elsewhere."""
    return bool(node.start_mark.index >= name.end_mark.index)
