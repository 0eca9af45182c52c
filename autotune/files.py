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


def check_new(path: Path) -> None:
    """Prove that a new file can be made at `path`, in a folder that is made if need be. Raises DiskError."""
    if path.exists() or path.is_symlink():
        raise DiskError(f"{path} exists and is never overwritten.", "Give the name of a new file.")
    check_writable(path.absolute().parent)


def write_atomically(path: Path, content: bytes, replace: bool = True) -> None:
    """Put `content` at `path` whole or not at all, flushed to the disk before it has that name.

    Where files without a name exist a killed writer leaves nothing, elsewhere perhaps a temporary file. The
    mode follows the umask (team folders stay readable). What was at `path` stays until then; without `replace`
    it stays for good. Raises DiskError naming the path and the bytes asked for, and, without `replace`,
    FileExistsError when `path` exists, even if it came about while this wrote.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        placed = _write_unnamed(path, temporary, content, replace)
        if placed is None:
            temporary.unlink(missing_ok=True)  # of a killed process that had our number
            with temporary.open("xb") as file:  # never through a link that somebody else put there
                _fill(file, content)
            placed = _rename(temporary, path, replace)
        fsync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskError(
            f"{path} ({len(content):,} bytes) can't be written: {error.strerror or error}.",
            "Free disk space or choose another folder; what was there before is intact.",
        ) from error
    if not placed:
        raise FileExistsError(f"{path} exists")


def _write_unnamed(path: Path, temporary: Path, content: bytes, replace: bool) -> bool | None:
    """Write a file that gets its name when it is whole: whether it is at `path` now (False: the name is taken and
    not to be replaced), or None where there are no such files."""
    with open_unnamed(path.parent) as file:
        if file is None:
            return None
        _fill(file, content)
        try:
            name_file(file, path)
        except FileExistsError:
            if not replace:
                return False
            name_file(file, temporary)
            temporary.replace(path)
    return True


def _rename(temporary: Path, path: Path, replace: bool) -> bool:
    """Whether `temporary` is at `path` now; False when the name is taken and not to be replaced."""
    if replace:
        temporary.replace(path)
        return True
    try:
        os.link(temporary, path)  # unlike a rename, it never takes a name that is taken
    except FileExistsError:
        placed = False
    except OSError:  # no hard links here (FAT, some network mounts)
        placed = not path.exists()
        if placed:
            temporary.replace(path)
    else:
        placed = True
    temporary.unlink(missing_ok=True)
    return placed


def _fill(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
