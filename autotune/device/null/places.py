"""Where the null GPU keeps what it builds and installs: the user's cache folder. All of it can be made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/autotune/null`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "autotune" / "null"
