"""Which profiles a trial on this machine has confirmed. Owns that list; must never trust a profile by itself.

The file names its machine by a hash, because home folders are shared between machines and a confirmation is
not. Losing the file costs one confirming trial per profile; a damaged line counts for nothing.
"""

import hashlib
import platform
import re
from pathlib import Path

from autotune.errors import DiskError
from autotune.files import write_atomically
from autotune.posix import lock_file
from autotune.store.places import state_directory

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Confirmations:
    """The digests of profiles confirmed on this machine, in a text file of one digest per line."""

    def __init__(self, folder: Path | None = None, machine: str | None = None) -> None:
        """Keep the file in `folder` (the user's state folder); `machine` tells machines apart (its name)."""
        name = hashlib.sha256((machine or platform.node()).encode()).hexdigest()[:12]
        self._path = (folder or state_directory()) / f"confirmed-{name}.txt"

    def is_confirmed(self, digest: str) -> bool:
        """Whether a trial on this machine has confirmed the profile. False when the file can't be read."""
        return digest in self._read()

    def confirm(self, digest: str) -> None:
        """Remember that a trial has confirmed the profile. Raises ValueError for what is no digest, DiskError
        when the file can't be written (what was there stays)."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest[:80]!r} is no sha256 digest")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with lock_file(self._path.parent):
                self._add(digest)
        except OSError as error:
            raise DiskError(
                f"{self._path} can't be written: {error.strerror or error}.",
                "Free disk space or correct the permissions; until then each run repeats the trial.",
            ) from error

    def _add(self, digest: str) -> None:
        digests = self._read()
        if digest not in digests:
            write_atomically(self._path, "".join(f"{each}\n" for each in [*digests, digest]).encode())

    def _read(self) -> list[str]:
        try:
            lines = self._path.read_text("utf-8", errors="replace").split()
        except OSError:
            return []
        return [line for line in lines if _DIGEST.fullmatch(line)]
