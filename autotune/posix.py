"""Calls that only POSIX systems have, each with what happens elsewhere. The only module that may make them.

Owns nothing; knows nothing of GPUs, plans or profiles. Imports everywhere: what a system lacks is imported
inside the function that needs it.
"""

import contextlib
import ctypes
import errno
import faulthandler
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autotune.errors import DiskError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOCK_POLL_SECONDS = 0.02
_OWN_FILES = Path("/proc/self/fd")
_NOT_SUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EINVAL}


@contextmanager
def lock_file(path: Path, timeout_seconds: float = 10.0) -> Iterator[bool]:
    """Hold an exclusive lock on `path` (a folder, or a file that is made if absent) inside the block.

    Yields True with the lock held, and False where the file system or the system has no such locks (some
    network mounts; Windows for folders): the caller must stay correct without it, only less tidy. The lock
    goes with the process, however it ends. Raises DiskError when another process holds it for longer than
    `timeout_seconds`, and OSError when `path` can't be opened.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(path, flags, 0o644)
    except PermissionError:
        if os.name == "posix":
            raise
        yield False  # Windows can't open folders
        return
    try:
        yield _wait_for_lock(descriptor, path, timeout_seconds)
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Make a rename inside the folder `path` survive a power cut. Does nothing where folders can't be synced.

    Raises OSError when the disk fails.
    """
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def open_unnamed(folder: Path) -> Iterator[BinaryIO | None]:
    """A file for writing in `folder` without a name, which vanishes with this process unless `name_file` gives it
    one. None where the system or the file system has no such files (Linux has, but for network mounts).

    Raises OSError when the folder can't be written to.
    """
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not _OWN_FILES.exists():
        yield None
        return
    try:
        descriptor = os.open(folder, flag | os.O_WRONLY, 0o666)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED | {errno.EISDIR, errno.ENOENT}:
            raise
        yield None
        return
    with os.fdopen(descriptor, "wb") as file:
        yield file


def name_file(file: BinaryIO, path: Path) -> None:
    """Give a file of `open_unnamed` its name. Raises FileExistsError when there is one of that name."""
    own = os.open(_OWN_FILES, os.O_RDONLY)
    try:  # with a folder's descriptor Python calls linkat, which alone follows the link to the open file
        os.link(str(file.fileno()), path, src_dir_fd=own, follow_symlinks=True)
    finally:
        os.close(own)


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel end this process when its parent is gone; whether that could be arranged (Linux only).

    The end comes as SIGALRM one second after the parent's, to leave a live interpreter the time to take its own
    children along: the parent-death signal is SIGHUP, number 1, and its handler is libc's `alarm`, whose argument
    is then 1. It works while the interpreter is stuck in C. The kernel means the parent's *thread*: only ask for
    it when the parent started this process from its main thread.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0) != 0:
        return False
    if os.getppid() != parent_pid:  # it went before we asked
        os._exit(1)
    return True


def kill_group(leader_pid: int) -> None:
    """Kill the process group that `leader_pid` leads, itself included. Quiet if it is gone already, and where
    there are no process groups."""
    if os.name != "posix":
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, signal.SIGKILL)


def leads_its_group() -> bool:
    """Whether this process is the leader of its process group, so that killing the group hits only its own."""
    return os.name == "posix" and os.getpgrp() == os.getpid()


def has_exited(child_pid: int) -> bool:
    """Whether our child is dead. It is not reaped, so its number (and its group's) can't be reused meanwhile.
    Always False where that can't be asked without reaping: then wait for the end of its pipe.
    """
    if os.name != "posix":
        return False
    try:
        return os.waitid(os.P_PID, child_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def count_oom_kills(pid: int | str = "self", root: Path = Path("/")) -> int | None:
    """How many processes the host's OOM killer has ended in the cgroup of `pid`, or None if nobody tells.

    Reads `oom_kill` of cgroup v2's `memory.events` (kernel documentation, admin-guide/cgroup-v2), or of v1's
    `memory.oom_control`.
    """
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for file in _oom_files(lines, root / "sys/fs/cgroup"):
        with contextlib.suppress(OSError):
            counted = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            if counted:
                return int(counted.group(1))
    return None


def dump_stacks_when_asked() -> bool:
    """Have this process write its threads' stacks to stderr on SIGUSR1, also while it is stuck in C; whether it
    will."""
    if os.name != "posix":
        return False
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    return True


def ask_for_stacks(pid: int) -> None:
    """Ask a process that called `dump_stacks_when_asked` to do it. Quiet if it is gone."""
    if os.name != "posix":
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGUSR1)


def read_available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Host memory that can be used without swapping (`MemAvailable`), or None where it is not told."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def _wait_for_lock(descriptor: int, path: Path, timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            return _try_lock(descriptor)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise DiskError(
                    f"{path} has been locked by another process for {timeout_seconds:g} s.",
                    "Wait for that process to end, or end it.",
                ) from None
            time.sleep(_LOCK_POLL_SECONDS)


def _try_lock(descriptor: int) -> bool:
    """Whether the lock is held now; False where there are none. Raises BlockingIOError while it is taken."""
    if os.name != "posix":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return False
    return True


def _oom_files(cgroup_lines: list[str], mount: Path) -> Iterator[Path]:
    for line in cgroup_lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield mount / path.lstrip("/") / "memory.events"
            yield mount / "memory.events"
        elif "memory" in controllers.split(","):
            yield mount / "memory" / path.lstrip("/") / "memory.oom_control"
