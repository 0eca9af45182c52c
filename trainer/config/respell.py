"""New values in the spelling of old ones. Owns keeping a number that was text as text, a square "512" as one
number, yes/no as yes/no; never knows the file's syntax.
"""

import re
from typing import cast

from trainer.config.schema import Size

_WORDS = (("true", "false"), ("yes", "no"), ("on", "off"), ("1", "0"))


def respell(key: str, wanted: object, raw: object) -> object:
    """`wanted` (typed, for canonical `key`) in the type and spelling of `raw`, the value it replaces.

    `raw` is None or "" for a value that was not set: then resolutions are text, the rest its own type.
    """
    if key == "resolution":
        return _resolution(cast("tuple[Size, ...]", wanted), raw)
    if isinstance(wanted, bool):
        return _switch(wanted, raw)
    return _number(cast("int | float", wanted), raw)


def _switch(wanted: bool, raw: object) -> object:
    if isinstance(raw, str) and raw:
        word = raw.strip()
        pair = next((pair for pair in _WORDS if word.lower() in pair), _WORDS[0])
        new = pair[0] if wanted else pair[1]
        return new.upper() if word.isupper() else new.capitalize() if word[:1].isupper() else new
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return type(raw)(wanted)
    return wanted


def _number(wanted: int | float, raw: object) -> object:
    whole = float(wanted).is_integer()
    if isinstance(raw, str) and raw.strip():
        pointed = not whole or "." in raw
        return str(float(wanted)) if pointed else str(int(wanted))
    if isinstance(raw, float) or not whole:
        return float(wanted)
    return int(wanted)


def _resolution(sizes: tuple[Size, ...], raw: object) -> object:
    if isinstance(raw, str) and raw.strip():
        return _size_text(sizes, raw)
    if isinstance(raw, int | float) and len(sizes) == 1 and sizes[0][0] == sizes[0][1]:
        return type(raw)(sizes[0][0])
    if isinstance(raw, list | tuple) and raw:
        return _size_list(sizes, list(raw))
    return ";".join(f"{width},{height}" for width, height in sizes)


def _size_text(sizes: tuple[Size, ...], raw: str) -> str:
    """The old text with its numbers exchanged if the new sizes have as many; else in its separator."""
    numbers = re.findall(r"\d+(?:\.\d+)?", raw)
    flat = [side for size in sizes for side in size]
    if len(numbers) == len(sizes) and all(width == height for width, height in sizes):
        flat = [width for width, _ in sizes]
    if len(numbers) == len(flat):
        remaining = iter(flat)
        return re.sub(r"\d+(?:\.\d+)?", lambda _: str(next(remaining)), raw)
    between = re.search(r"\d(\s*[,xX×*]\s*)\d", raw)
    separator = between[1] if between else ","
    return ";".join(f"{width}{separator}{height}" for width, height in sizes)


def _size_list(sizes: tuple[Size, ...], raw: list[object]) -> list[object]:
    first = raw[0]
    if isinstance(first, list | tuple):
        return [[_number(side, first[0]) for side in size] for size in sizes]
    if isinstance(first, str) and len(re.findall(r"\d+", first)) > 1:
        return [_size_text((size,), first) for size in sizes]
    if len(sizes) > 1:
        return [list(size) for size in sizes]
    width, height = sizes[0]
    sides = (width,) if len(raw) == 1 and width == height else (width, height)
    return [_number(side, first) for side in sides]
