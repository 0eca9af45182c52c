"""Runs somebody else's program on null cards. Owns the child's environment, its life and its last lines.

The program's output goes where it always goes. Must never change the program, its files or its arguments.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO

from autotune import posix
from autotune.device.null.card import NullCard
from autotune.device.null.control import ControlBlock
from autotune.device.null.environment import null_environment
from autotune.dryrun.interpreter import find_interpreter
from autotune.dryrun.states import ProcessState, read_states
from autotune.errors import ConfigError

HOOK = Path(str(files(__package__))) / "hook"
STATE = "AUTOTUNE_DRYRUN_STATE"
_TAIL_LINES = 12


@dataclass(frozen=True)
class DryRun:
    """How a program ran: its exit status (negative: the signal), its last lines on stderr, what its processes saw,
    and calls of functions that have no model on the null GPU."""

    command: tuple[str, ...]
    cards: tuple[NullCard, ...]
    status: int
    last_lines: tuple[str, ...]
    states: tuple[ProcessState, ...]
    unmodelled: Mapping[str, int]


def run_on_null_cards(command: Sequence[str], cards: Sequence[NullCard], quiet: bool = False) -> DryRun:
    """Run `command` to its end on `cards`. `quiet` keeps its output back. Raises AutotuneError where it can't be
    run at all."""
    python = find_interpreter(command)
    with tempfile.TemporaryDirectory(prefix="autotune-dryrun-") as name:
        folder = Path(name)
        with ControlBlock.create(folder / "control", cards) as control:
            environment = _environment(python, cards, folder)
            status, lines = _run(command, environment, quiet)
            return DryRun(tuple(command), tuple(cards), status, lines, read_states(folder), control.unmodelled())


def _environment(python: str, cards: Sequence[NullCard], folder: Path) -> dict[str, str]:
    environment = null_environment(cards, python=python, control=folder / "control")
    path = [str(HOOK), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return environment | {"PYTHONPATH": os.pathsep.join(path), STATE: str(folder)}


def _run(command: Sequence[str], environment: Mapping[str, str], quiet: bool) -> tuple[int, tuple[str, ...]]:
    try:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} can't be run: {error.strerror or error}.") from None
    tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
    assert process.stderr is not None
    reader = threading.Thread(target=_pass_on, args=(process.stderr, tail, quiet), daemon=True)
    reader.start()
    status = _wait(process)
    reader.join(timeout=2)  # a grandchild may hold the pipe open
    return status, tuple(line.decode("utf-8", "replace").rstrip() for line in tail if line.strip())


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """The exit status. A Ctrl-C goes to the program first, and ends all of it."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(5)
        raise
    finally:
        posix.kill_group(process.pid)


def _pass_on(pipe: IO[bytes], tail: deque[bytes], quiet: bool) -> None:
    for line in pipe:
        tail.append(line)
        if not quiet:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
