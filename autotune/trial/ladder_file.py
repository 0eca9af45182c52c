"""Ladder files: finds a ladder by its built-in name or reads it from a TOML file.

Owns the reading only; what the file may say is `autotune.ladder.ladders.parse_ladder`'s. Never writes.
"""

import tomllib
from pathlib import Path

from autotune.errors import ConfigError
from autotune.ladder.ladders import LADDERS, Ladder, parse_ladder


def load_ladder(name_or_path: str | Path) -> Ladder:
    """The built-in ladder of that name, else the ladder in the TOML file at that path.

    Raises ConfigError when there is neither, or naming the line, key and value that can't be used.
    """
    if str(name_or_path) in LADDERS:
        return LADDERS[str(name_or_path)]
    path = Path(name_or_path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return parse_ladder(tomllib.loads(text), source=str(path))
    except FileNotFoundError:
        raise ConfigError(
            f"ladder {str(name_or_path)!r} is neither built in nor a file.",
            f"Built in: {', '.join(LADDERS)}. Or give the path of a TOML file.",
        ) from None
    except OSError as error:
        raise ConfigError(f"ladder file {path} can't be read: {error.strerror}.", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"ladder file {path}: byte {error.start} is not UTF-8.", "Save the file as UTF-8."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"ladder file {path} is no TOML: {error}.", "Correct that place.") from None
