"""Optimizer arguments in their kohya spelling. Owns splitting them into our settings; builds no optimizer."""

import re
from collections.abc import Mapping

from trainer.config.values import SpellingFault

_SETTINGS: Mapping[str, str] = {
    "betas": "optimizer_betas",
    "eps": "optimizer_eps",
    "weight_decay": "optimizer_weight_decay",
}
_ARGUMENT = re.compile(r"""["']?(\w+)\s*=\s*(\([^)]*\)|\[[^\]]*\]|[^\s"']+)["']?""")


def split_arguments(raw: object) -> dict[str, str]:
    """`name: value` of ["betas=0.9,0.99", "eps=1e-8"], of one string with spaces between, or of a table.

    Raises SpellingFault for anything else.
    """
    if isinstance(raw, Mapping):
        return {str(name): str(value) for name, value in raw.items()}
    parts = raw if isinstance(raw, list | tuple) else [raw]
    arguments: dict[str, str] = {}
    for part in parts:
        if not isinstance(part, str):
            raise SpellingFault("is no list of name=value.", 'Write ["weight_decay=0.01"].')
        found = _ARGUMENT.findall(part)
        if part.strip() and not found:
            raise SpellingFault("is no list of name=value.", 'Write ["weight_decay=0.01"].')
        arguments.update(found)
    return arguments


def optimizer_settings(
    arguments: Mapping[str, str],
) -> tuple[tuple[tuple[str, object], ...], tuple[str, ...]]:
    """Our settings for the arguments we have, and the names of those we don't."""
    known = tuple((_SETTINGS[name], value) for name, value in arguments.items() if name in _SETTINGS)
    unknown = tuple(f"{name}={value}" for name, value in arguments.items() if name not in _SETTINGS)
    return known, unknown
