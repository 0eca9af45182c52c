"""Profiles in a folder: `<gpu>/<workload>-<8 hex digits of the digest>.json`, for one user or one repository.

Owns the layout, the locking and the reading. A file is whole or absent; one that can't be read is named in a
note and skipped. Must never delete or overwrite a file, but for leftovers of its own interrupted writes.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from autotune.device.session import Evidence
from autotune.errors import DiskError, ProfileError
from autotune.files import write_atomically
from autotune.posix import lock_file
from autotune.profile.schema import MAX_PROFILE_BYTES, Profile, clean_gpu_name, parse_profile
from autotune.store.store import Listing, Reference

_SHORT_DIGEST = 8


class DirectoryStore:
    """A ProfileStore in the folder `root`, which is made when the first profile is put.

    With `allow_simulated=False`, as for the folder of a repository, profiles with numbers of the virtual GPU
    are refused: they say nothing of a real card.
    """

    def __init__(self, root: Path, allow_simulated: bool = True) -> None:
        """Nothing is read or made yet."""
        self._root = root
        self._allow_simulated = allow_simulated

    def get(self, digest: str) -> Profile:
        """The profile with this digest. Raises ProfileError if it is not here."""
        for entry in self._candidates(digest):
            profile = _read_quietly(entry)
            if profile and profile.digest == digest:
                return profile
        raise ProfileError(
            f"no profile {digest[:64]} in {self._root}.", "Probe again, or fetch it from where it was made."
        )

    def find(self, gpu_name: str) -> Listing:
        """All profiles of cards with this name, whatever folder they lie in."""
        listing, name = self.list(), clean_gpu_name(gpu_name)
        return Listing(tuple(e for e in listing.entries if e[1].gpu.name == name), listing.notes)

    def list(self) -> Listing:
        """All profiles. A file that is broken or of another schema version becomes a note."""
        entries, notes = [], []
        for path in self._files():
            try:
                profile = _read(path)
            except (ProfileError, DiskError) as error:
                notes.append(f"skipped: {error}")
            else:
                entries.append((Reference(profile.digest, str(path)), profile))
        return Listing(tuple(entries), tuple(notes))

    def check(self, evidence: Evidence) -> None:
        """Raise ProfileError for simulated numbers where only those of real cards may lie."""
        if evidence is Evidence.SIMULATED and not self._allow_simulated:
            raise ProfileError(
                f"{self._root} holds profiles of real cards only, no simulated numbers (virtual GPU).",
                "Name another folder with --profiles, or leave it out to use your own.",
            )

    def put(self, profile: Profile) -> Reference:
        """Keep `profile`; see ProfileStore."""
        for evidence in (profile.evidence, *(trial.evidence for trial in profile.trials)):
            self.check(evidence)
        folder = self._root / slug(profile.gpu.name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with lock_file(folder) as locked:
                if locked:
                    _sweep(folder)
                return Reference(profile.digest, str(self._place(folder, profile)))
        except OSError as error:
            raise DiskError(
                f"the profile can't be kept in {folder}: {error.strerror or error}.",
                "Free disk space or correct the permissions, or name another folder in AUTOTUNE_PROFILES.",
            ) from error

    def _place(self, folder: Path, profile: Profile) -> Path:
        """The file that holds `profile`, written if there is none yet.

        A file of that name with other content is somebody's: a longer part of the digest is taken then.
        """
        content = profile.canonical_bytes
        for digits in range(_SHORT_DIGEST, len(profile.digest) + 1, _SHORT_DIGEST):
            path = folder / f"{profile.workload.label}-{profile.digest[:digits]}.json"
            if not path.exists():
                write_atomically(path, content)
                return path
            held = _read_quietly(path)
            if held and held.digest == profile.digest:
                return path
        raise ProfileError(
            f"every file name for profile {profile.digest} in {folder} is taken by another file.",
            "Move those files away; they are no profiles of that name.",
        )

    def _candidates(self, digest: str) -> Iterator[Path]:
        """Files that may hold `digest`: those named after it first, then all (people rename files)."""
        yield from sorted(self._files(), key=lambda path: f"-{digest[:_SHORT_DIGEST]}" not in path.name)

    def _files(self) -> tuple[Path, ...]:
        """Every `<folder>/<file>.json` below the root; what lies at the top (a schema, say) is no profile."""
        return tuple(sorted(p for p in self._root.glob("*/*.json") if not p.name.startswith(".")))


def slug(gpu_name: str) -> str:
    """A folder name for a card: `NVIDIA GeForce RTX 3060` gives `nvidia-geforce-rtx-3060`."""
    return re.sub(r"[^a-z0-9]+", "-", clean_gpu_name(gpu_name).lower()).strip("-") or "unnamed"


def _read(path: Path) -> Profile:
    """The profile in the file `path`. Raises ProfileError, or DiskError when the file can't be read."""
    if not path.is_file():
        raise ProfileError(f"{path}: no regular file.", "Move it out of the profiles folder.")
    try:
        with path.open("rb") as file:
            return parse_profile(file.read(MAX_PROFILE_BYTES + 1), str(path))
    except OSError as error:
        raise DiskError(f"{path} can't be read: {error.strerror or error}.", "Check its permissions.") from error


def _read_quietly(path: Path) -> Profile | None:
    try:
        return _read(path)
    except (ProfileError, DiskError):
        return None


def _sweep(folder: Path) -> None:
    """Remove what killed writers left. Holding the lock, we know that none of them is at work."""
    for leftover in folder.glob(".*.json.*.tmp"):
        leftover.unlink(missing_ok=True)
