"""Where the null GPU keeps what it builds and installs: the user's cache folder. All of it can be made again."""

import os
from pathlib import Path

from autotune.errors import DiskError


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/autotune/null`, by default under `~/.cache`. Raises DiskError where there is no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".cache"  # XDG: relative values are invalid
    except RuntimeError:
        raise DiskError("this user has no home folder for the cache.", "Set XDG_CACHE_HOME to a folder.") from None
    return base / "autotune" / "null"
