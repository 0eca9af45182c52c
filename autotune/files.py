"""Files that are whole or absent. Owns the one way this project puts bytes on a disk."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from autotune.errors import DiskError
from autotune.posix import fsync_directory, name_file, open_unnamed


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
    """Put `content` at `path` whole or not at all, flushed to the disk before it has that name.

    Where files without a name exist a killed writer leaves nothing, elsewhere perhaps a temporary file. The
    mode follows the umask (team folders stay readable). What was at `path` stays until then.
    Raises DiskError naming the path and the bytes asked for.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _write_unnamed(path, temporary, content):
            with temporary.open("wb") as file:
                _fill(file, content)
            temporary.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskError(
            f"{path} ({len(content):,} bytes) can't be written: {error.strerror or error}.",
            "Free disk space or choose another folder; what was there before is intact.",
        ) from error


def _write_unnamed(path: Path, temporary: Path, content: bytes) -> bool:
    """Whether it was done by a file that gets its name when it is whole; what is at `path` gives way to it."""
    with open_unnamed(path.parent) as file:
        if file is None:
            return False
        _fill(file, content)
        try:
            name_file(file, path)
        except FileExistsError:
            name_file(file, temporary)
            temporary.replace(path)
    return True


def _fill(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
