"""Files that are whole or absent. Owns the one way this project puts bytes on a disk."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from autotune.errors import DiskError
from autotune.posix import fsync_directory


def check_writable(folder: Path) -> None:
    """Prove that a file can be made in `folder`, which is made if need be, before hours are spent on its
    content. Raises DiskError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise DiskError(
            f"{folder} can't be written to: {error.strerror or error}.",
            "Free disk space, correct the permissions or choose another folder.",
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` whole or not at all: temporary name beside it, fsync, rename.

    The mode follows the umask (team folders stay readable). What was at `path` stays until the rename.
    Raises DiskError naming the path and the bytes asked for.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskError(
            f"{path} ({len(content):,} bytes) can't be written: {error.strerror or error}.",
            "Free disk space or choose another folder; what was there before is intact.",
        ) from error
