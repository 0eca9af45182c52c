"""Latents kept in host memory, keyed by what they were computed from.

Owns the key and the store. Must never serve the latent of a picture that has changed: the key holds the
sha256 of the file's bytes, not its name, next to everything else that decides the latent's value and shape.
"""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import DataError
from trainer.config.schema import Size
from trainer.data.samples import Sample

if TYPE_CHECKING:
    from torch import Tensor

_SETTLED_NS = 2_000_000_000  # coarser than the time stamps of the file systems in use (FAT: 2 s)


@dataclass(frozen=True)
class LatentKey:
    """What a latent depends on. `vae` names the VAE's weights; `dtype` the latent's type (`float32`)."""

    image_sha256: str
    bucket: Size
    flip: bool
    vae: str
    dtype: str = "float32"


class LatentCache:
    """A dictionary of latents, tensors of (channels, height / 8, width / 8) on the host. Not thread-safe."""

    def __init__(self, identify: Callable[[Path], str] | None = None) -> None:
        """`identify` tells pictures apart that are no files; of files the bytes do."""
        self._identify = identify
        self._latents: dict[LatentKey, Tensor] = {}
        self._digests: dict[Path, tuple[_Stamp, str]] = {}

    def key(self, sample: Sample, bucket: Size, flip: bool, vae: str, dtype: str = "float32") -> LatentKey:
        """The key of `sample` as its file is now.

        Reads the file unless its size, times and inode are those of an earlier reading. A file that has gone
        since keeps its last key. Raises DataError when the file was never read and can't be.
        """
        return LatentKey(self._digest(sample.path), bucket, flip, vae, dtype)

    def put(self, key: LatentKey, latent: "Tensor") -> None:
        """Keep `latent` under `key`, replacing what was there."""
        self._latents[key] = latent

    def get(self, key: LatentKey) -> "Tensor":
        """The latent of `key`. Raises DataError when there is none: the picture changed after caching."""
        try:
            return self._latents[key]
        except KeyError:
            shape = f"{key.bucket[0]}x{key.bucket[1]}"
            raise DataError(
                f"no cached latent for the picture with sha256 {key.image_sha256[:12]} at {shape}: "
                "a training picture was changed after its latent was cached.",
                "Leave the pictures alone while training and start again.",
            ) from None

    @property
    def size_bytes(self) -> int:
        """Host memory of all the latents."""
        return sum(latent.numel() * latent.element_size() for latent in self._latents.values())

    def __contains__(self, key: LatentKey) -> bool:
        return key in self._latents

    def __len__(self) -> int:
        return len(self._latents)

    def _digest(self, path: Path) -> str:
        return self._identify(path) if self._identify else self._digest_of_file(path)

    def _digest_of_file(self, path: Path) -> str:
        known = self._digests.get(path)
        try:
            stamp = _Stamp.of(path)
            if known and known[0] == stamp and stamp.settled:
                return known[1]
            digest = image_digest(path)
        except OSError as error:
            if known:
                return known[1]
            raise DataError(
                f"{path} can't be read: {error.strerror}.", "Check the file and start again."
            ) from None
        self._digests[path] = (stamp, digest)
        return digest


def image_digest(path: Path) -> str:
    """The sha256 of the file's bytes, in hexadecimal. Raises OSError when it can't be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class _Stamp:
    """A file's identity as the file system tells it, and whether it had been left alone when it was taken.

    A file touched in the last moments may change again within one tick of its time stamp, unseen. Such a
    stamp never equals a later, settled one, so the file is read again.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    settled: bool

    @classmethod
    def of(cls, path: Path) -> "_Stamp":
        stat: os.stat_result = path.stat()
        newest = max(stat.st_mtime_ns, stat.st_ctime_ns)
        settled = time.time_ns() - newest > _SETTLED_NS
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, settled)
