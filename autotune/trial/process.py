"""A worker's process as the controller holds it: started, spoken to, watched, ended.

Owns the child process, its pipe, its log and the words for its death. Knows nothing of plans or trials. Must
never leave a process behind: whatever happens, `end` kills the whole group and reaps it.
"""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from autotune import posix
from autotune.errors import DiskError, WorkerError
from autotune.trial import oom
from autotune.trial.protocol import decode, encode

POLL_S = 0.1
CLOSE_WITHIN_S = 5.0
_TAIL_BYTES = 16 * 1024
_TAIL_LINES = 5
_STACKS_WITHIN_S = 2.0
_REAP_WITHIN_S = 10.0
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: .*\n(?:  .*(?:\n|\Z))?", re.MULTILINE)
_TORCH_LOG = re.compile(r"^[IW]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ .*(?:\n|\Z)", re.MULTILINE)
_CPP_DEATH = re.compile(r"^terminate called after throwing .*\n\s*what\(\):\s*(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Launch:
    """How a worker is started and how long it may be silent.

    `environment` replaces the controller's whole environment when given. `log_path` gets everything the worker
    writes to stdout and stderr, appended; without it a temporary file does. `hang_after_s` is the time without
    progress (a phase or step that begins, an event of the run) after which a worker counts as hung: longer than
    the longest single step or phase.
    """

    python: str = sys.executable
    environment: Mapping[str, str] | None = None
    log_path: Path | None = None
    hang_after_s: float = 900.0
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Death:
    """How a worker ended. `kind` is what ran out as far as there is a witness."""

    fact: str
    kind: oom.Kind


class EndedError(Exception):
    """The worker's process is gone, or it no longer speaks our protocol (then the text says so)."""


class WorkerProcess:
    """One `python -m autotune.trial.worker`."""

    def __init__(self, launch: Launch) -> None:
        """Start it. Raises WorkerError if the interpreter can't be started, DiskError if there can be no log."""
        self.log_path, self._log_is_ours = _log_file(launch)
        self._log_start = self._log_size()
        self._oom_kills_before = posix.count_oom_kills()
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process = self._spawn(launch)
        threading.Thread(target=self._read, name=f"worker-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's number, which is also its group's."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one request. Raises EndedError if nobody is there to read it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()
        except OSError:
            raise EndedError("") from None

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None if there is none in time. Raises EndedError at the end of the pipe, when
        the process is dead, and when a message is broken."""
        try:
            line = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            if posix.has_exited(self.pid) and self._inbox.empty():
                raise EndedError("") from None  # a grandchild may still hold the pipe open
            return None
        if line is None:
            raise EndedError("")
        try:
            return decode(line)
        except WorkerError as error:
            raise EndedError(error.fact) from None

    def describe_death(self, broken: str = "") -> Death:
        """End what is left of the worker and say in one line how it went and what it last wrote."""
        oom_kills = posix.count_oom_kills()
        returncode = self._wait_or_kill(broken)
        tail = self.stderr_tail()
        host_killed = returncode == -9 and (oom_kills or 0) > (self._oom_kills_before or 0)
        kind = oom.Kind.HOST_MEMORY if host_killed else oom.recognise_exit(returncode or 0, tail)
        how = f"broke the protocol ({broken})" if broken else _describe_exit(returncode, host_killed)
        return Death(f"the worker {how}{_quote(tail)}", kind)

    def describe_hang(self) -> str:
        """Where the worker's main thread is, read from the stacks it writes to its log when asked; may be
        empty. It works while the interpreter is stuck in C."""
        position = self._log_size()
        posix.ask_for_stacks(self.pid)
        deadline = time.monotonic() + _STACKS_WITHIN_S
        while time.monotonic() < deadline and not posix.has_exited(self.pid):
            place = _innermost_frame(self._read_log(position))
            if place:
                return f", in {place}"
            time.sleep(POLL_S / 2)
        return ""

    def stderr_tail(self) -> str:
        """The last lines the worker wrote to stdout or stderr, but for warnings; of an exception that C++
        died of, what it says instead of the stacks after it."""
        text = self._read_log(max(self._log_start, self._log_size() - _TAIL_BYTES))
        if died := _CPP_DEATH.search(text):
            return died[1].strip()
        text = _TORCH_LOG.sub("", _WARNING.sub("", text.replace("\r", "\n")))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-_TAIL_LINES:])

    def wait_for_end(self, timeout_s: float) -> None:
        """Let the worker leave by itself; returns when it has, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(EndedError):
            while time.monotonic() < deadline:
                self.receive(POLL_S)

    def kill(self) -> None:
        """Kill the whole group and leave the rest to whoever waits for its answer. For any thread."""
        if self._process.returncode is None:
            posix.kill_group(self.pid)
            self._process.kill()

    def end(self) -> None:
        """Kill the whole group and reap. Safe to call again."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._process.returncode is None:
            self.kill()
            self._reap()
        if self._log_is_ours:
            self.log_path.unlink(missing_ok=True)

    def _spawn(self, launch: Launch) -> "subprocess.Popen[bytes]":
        # The kernel's parent-death signal follows the thread that spawns, so only the main one may ask for it.
        lives_on = threading.current_thread() is threading.main_thread()
        arguments = [str(os.getpid())] if lives_on else []
        environment = _worker_environment(os.environ if launch.environment is None else launch.environment)
        with self.log_path.open("ab") as log:
            try:
                return subprocess.Popen(
                    [launch.python, "-P", "-m", "autotune.trial.worker", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise WorkerError(f"no worker could be started with {launch.python}: {error}.") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                self._inbox.put(line)
        self._inbox.put(None)

    def _wait_or_kill(self, broken: str) -> int | None:
        """The exit status of a process whose pipe is closed; one that lives on regardless is killed."""
        deadline = time.monotonic() + (0 if broken else CLOSE_WITHIN_S)
        while time.monotonic() < deadline and not posix.has_exited(self.pid):
            time.sleep(POLL_S / 10)
        posix.kill_group(self.pid)
        return self._reap()

    def _reap(self) -> int | None:
        try:
            return self._process.wait(_REAP_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise WorkerError(
                f"worker {self.pid} can't be ended: the system does not let go of it.",
                "The GPU driver may hang; a restart of the machine frees it.",
            ) from None

    def _log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def _read_log(self, position: int) -> str:
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(position)
            return log.read(4 * _TAIL_BYTES).decode("utf-8", "replace")
        return ""


def _worker_environment(given: Mapping[str, str]) -> dict[str, str]:
    """`given` with a fault handler, and with threads that sleep at a barrier unless `given` says otherwise.

    OpenMP's threads spin there by default. Where other programs share the cores, each spins until the scheduler
    lets the one it waits for run: a step made of small operations was seen to take 10 to 50 times as long.
    """
    return {"OMP_WAIT_POLICY": "passive"} | dict(given) | {"PYTHONFAULTHANDLER": "1"}


def _log_file(launch: Launch) -> tuple[Path, bool]:
    """The log's path, and whether it is a temporary one of ours."""
    try:
        if launch.log_path is not None:
            launch.log_path.parent.mkdir(parents=True, exist_ok=True)
            launch.log_path.open("ab").close()
            return launch.log_path, False
        fd, name = tempfile.mkstemp(prefix="autotune-worker-", suffix=".log")
    except OSError as error:
        raise DiskError(f"the worker's log can't be written: {error}.", "Choose another folder.") from None
    os.close(fd)
    return Path(name), True


def _describe_exit(returncode: int | None, host_killed: bool) -> str:
    if returncode is None or returncode >= 0:
        return f"ended with exit status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    if host_killed:
        return f"was killed by {name}: the host ran out of memory (the kernel counted an out-of-memory kill)"
    if name == "SIGKILL":
        return f"was killed by {name} (the host may be out of memory)"
    return f"was ended by {name}"


def _quote(tail: str) -> str:
    return f"; its last lines: {' | '.join(tail.splitlines())}" if tail else ", having written nothing"


def _innermost_frame(stacks: str) -> str:
    """`file.py:12 (function)` where the main thread is, once faulthandler has written all of it: its stack comes
    last and ends at `_run_module_as_main`. Frames of the standard library say little and are passed over."""
    if "in _run_module_as_main" not in stacks:
        return ""
    last = re.split(r"^(?:Current t|T)hread .*:$", stacks, flags=re.MULTILINE)[-1]
    frames = re.findall(r"^  File \"(.+)\", line (\d+) in (.+)$", last, re.MULTILINE)
    path, line, function = next((frame for frame in frames if not _is_standard(frame[0])), frames[0])
    return f"{PurePath(path).name}:{line} ({function})"


def _is_standard(path: str) -> bool:
    return path.startswith("<frozen") or bool(
        re.search(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)", path)
    )
