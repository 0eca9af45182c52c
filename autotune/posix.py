"""Calls that only POSIX systems have, each with what happens elsewhere. The only module that may make them.

Owns nothing; knows nothing of GPUs, plans or profiles. Imports everywhere: what a system lacks is imported
inside the function that needs it.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.errors import DiskError

_LOCK_POLL_SECONDS = 0.02
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
