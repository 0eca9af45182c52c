"""Whose Python runs a command? Owns finding the interpreter behind a program name, without running it."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.errors import ConfigError

_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
_SHEBANG = re.compile(rb"#!\s*(\S+)(?:[ \t]+(\S+))?")


def find_interpreter(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """The Python that `command` runs on: the program itself, the one in its first line (a console script such as
    `accelerate`), else the first `python` on PATH (a shell script, `make`).

    Raises ConfigError when the program is not found or no Python is.
    """
    path = (os.environ if environment is None else environment).get("PATH")
    program = shutil.which(command[0], path=path)
    if program is None:
        raise ConfigError(f"{command[0]} is not found.", "Check the spelling and PATH.")
    named = program if _PYTHON.fullmatch(Path(program).name) else _from_shebang(Path(program), path)
    python = named or shutil.which("python3", path=path) or shutil.which("python", path=path)
    if python is None:
        raise ConfigError(f"no Python is found that {command[0]} could run on.", "Activate its environment.")
    return python


def _from_shebang(program: Path, path: str | None) -> str | None:
    try:
        with program.open("rb") as file:
            match = _SHEBANG.match(file.readline(512))
    except OSError:
        return None
    if match is None:
        return None
    first, second = (part.decode("utf-8", "replace") if part else "" for part in match.groups())
    wanted = second if Path(first).name == "env" else first
    return shutil.which(wanted, path=path) if _PYTHON.fullmatch(Path(wanted).name) else None
