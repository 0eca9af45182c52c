"""The check of every picture before anything runs: opened, decoded to the end, and all problems told at once.

Owns the reasons in words. Must never change, move or delete a file.
"""

import os
import re
import struct
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL import Image, UnidentifiedImageError

from autotune.errors import DataError
from trainer.config.schema import Size
from trainer.data.images import has_alpha, is_animated, read_size, to_rgb

Result = TypeVar("Result")

_THREADS = min(4, os.cpu_count() or 1)  # Pillow decodes outside the interpreter lock
_SIGNATURES = {
    b"<": "not an image but a web page or XML (a failed download)",
    b"version https://git-lfs": "not an image but a Git LFS pointer: run git lfs pull",
    b"PK\x03\x04": "not an image but a zip archive",
    b"%PDF": "not an image but a PDF",
}
_HEIF_BRANDS = (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftypheif")
_TRUNCATED = (
    "truncat",
    "unrecognized data stream",
    "broken data stream",
    "broken png",
    "buffer is not large",
    "could not create decoder",  # libwebp's only word for a file that ends early
)


@dataclass(frozen=True)
class _Finding:
    """What one picture has: a problem that stops training, or traits that deserve a note."""

    path: Path
    problem: str = ""
    alpha: bool = False
    animated: bool = False


def check_images(paths: Iterable[Path]) -> tuple[str, ...]:
    """Decode every picture once and return notes on transparency and animation.

    Raises DataError listing every broken picture with its reason: empty, truncated, not an image,
    unsupported, or a decompression bomb with its megapixels.
    """
    findings = _map_quietly(_examine, paths)
    raise_problems([(finding.path, finding.problem) for finding in findings if finding.problem], len(findings))
    see_through = [finding.path for finding in findings if finding.alpha]
    moving = [finding.path for finding in findings if finding.animated]
    return (
        *_note(see_through, "images have transparency: it is filled with white"),
        *_note(moving, "images are animated: only the first frame is used"),
    )


def read_sizes(paths: Sequence[Path]) -> list[Size]:
    """The upright size of each picture, from its header. A broken header leads to the full `check_images`."""
    sizes = _map_quietly(_try_size, paths)
    if None in sizes:
        check_images(paths)
        unreadable = [(p, "its header can't be read") for p, s in zip(paths, sizes, strict=True) if s is None]
        raise_problems(unreadable, len(paths))
    return [size for size in sizes if size]


def raise_problems(problems: Sequence[tuple[Path, str]], total: int) -> None:
    """Raise DataError with every (picture, reason) of `problems`, if any, out of `total` pictures."""
    if not problems:
        return
    folder = Path(os.path.commonpath([path.absolute().parent for path, _ in problems]))
    rows = [f"{path.absolute().relative_to(folder)} ({reason})" for path, reason in problems]
    raise DataError(
        f"{len(problems)} of {total} images can't be used, in {folder}: {'; '.join(rows)}.",
        "Replace, convert or move them away; nothing was changed.",
    )


def _map_quietly(examine: Callable[[Path], Result], paths: Iterable[Path]) -> list[Result]:
    with warnings.catch_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        # Pillow warns from 89 megapixels on; what it refuses (179) is reported, what it takes is fine.
        warnings.simplefilter("ignore")
        return list(pool.map(examine, paths))


def _examine(path: Path) -> _Finding:
    try:
        with Image.open(path) as image:
            traits = _Finding(path, alpha=has_alpha(image), animated=is_animated(image))
            side = min(to_rgb(image).size)
        return traits if side else _Finding(path, "no pixels")
    except Exception as error:  # a decoder may raise anything on a broken file; each must be named
        return _Finding(path, _reason(path, error))


def _try_size(path: Path) -> Size | None:
    try:
        return read_size(path)
    except Exception:  # told by the full check, with its reason
        return None


def _reason(path: Path, error: Exception) -> str:
    text = str(error)
    if isinstance(error, Image.DecompressionBombError):
        return _bomb_reason(text)
    if isinstance(error, FileNotFoundError):
        return "a link to a file that is gone" if path.is_symlink() else "the file is gone"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if path.stat().st_size == 0:
        return "empty: 0 bytes"
    if isinstance(error, UnidentifiedImageError):
        return _unidentified_reason(path)
    if isinstance(error, EOFError | struct.error) or any(mark in text.lower() for mark in _TRUNCATED):
        return f"truncated or damaged: {text}" if text else "truncated or damaged"
    return f"unsupported: {type(error).__name__}: {text}"


def _bomb_reason(text: str) -> str:
    pixels = re.search(r"\d+", text)
    size = f"{int(pixels[0]) / 1e6:.0f} megapixels" if pixels else "huge"
    limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
    return f"{size}, over the limit of {limit:.0f} (a decompression bomb, or scale it down)"


def _unidentified_reason(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(512)
    if head[4:12] in _HEIF_BRANDS:
        return f"a HEIC photograph under the name {path.suffix}: convert it to JPEG or PNG"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    for signature, reason in _SIGNATURES.items():
        if start.startswith(signature):
            return reason
    return f"not an image, or one damaged at its start (bytes {head[:8].hex(' ')})"


def _note(paths: Sequence[Path], what: str) -> tuple[str, ...]:
    shown = ", ".join(path.name for path in paths[:3]) + (", ..." if len(paths) > 3 else "")
    return (f"{len(paths)} {what} ({shown}).",) if paths else ()
