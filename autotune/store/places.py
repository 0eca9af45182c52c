"""Where this user's files belong on this system. Owns the folder names; makes and reads nothing.

`AUTOTUNE_PROFILES` names the profiles folder; else XDG's rules hold (on Windows `%LOCALAPPDATA%`).
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def profiles_directory(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The folder of the user's own profiles: data worth keeping."""
    named = environ.get("AUTOTUNE_PROFILES")
    if named:
        return Path(named).expanduser().absolute()
    return _base(environ, platform, "XDG_DATA_HOME", ".local/share") / "autotune" / "profiles"


def state_directory(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The folder of what this machine remembers and may lose without harm."""
    return _base(environ, platform, "XDG_STATE_HOME", ".local/state") / "autotune"


def _base(environ: Mapping[str, str], platform: str, variable: str, fallback: str) -> Path:
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    named = Path(environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / fallback  # XDG: relative values are invalid
