"""What every place that keeps profiles can do. Owns the protocol and its records, and no place itself.

A store must never change a profile, lose one that was put, or fail as a whole because one entry is broken.
"""

from dataclasses import dataclass
from typing import Protocol

from autotune.device.session import Evidence
from autotune.profile.schema import Profile


@dataclass(frozen=True)
class Reference:
    """Where a profile lies: its identity, and the file or address for people."""

    digest: str
    location: str


@dataclass(frozen=True)
class Listing:
    """Profiles with their references, in order of location, and one sentence per entry that was skipped."""

    entries: tuple[tuple[Reference, Profile], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles alone."""
        return tuple(profile for _, profile in self.entries)


class ProfileStore(Protocol):
    """A place that keeps profiles."""

    def get(self, digest: str) -> Profile:
        """The profile with this digest (64 hexadecimal digits). Raises ProfileError if it is not here."""

    def find(self, gpu_name: str) -> Listing:
        """All profiles of cards with this name, as the driver spells it."""

    def check(self, evidence: Evidence) -> None:
        """Raise ProfileError if `put` refuses profiles with numbers of this class. Ask it before the trials."""

    def put(self, profile: Profile) -> Reference:
        """Keep `profile`. Putting the same again changes nothing and gives the same reference.

        Raises DiskError when it can't be written (nothing changed then) and ProfileError when it is refused.
        """

    def list(self) -> Listing:
        """All profiles."""
