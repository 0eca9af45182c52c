"""Folders of pictures: kohya's `N_concept` subfolders, or one flat folder. Owns what is found and ignored.

Must never skip a folder or a picture in silence: whatever is left out is named with its reason.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DataError

IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")  # kohya's, in any case

_OTHER_PICTURES = {
    ".gif",
    ".heic",
    ".heif",
    ".avif",
    ".jxl",
    ".jfif",
    ".tif",
    ".tiff",
    ".psd",
    ".dng",
    ".svg",
}
_KOHYA_NAME = re.compile(r"([0-9]+)_(.*)", re.DOTALL)
_JUNK_FOLDERS = {"__MACOSX"}
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Concept:
    """One folder to train on: its pictures sorted by name, how often each is repeated, its class token."""

    folder: Path
    images: tuple[Path, ...]
    repeats: int
    class_token: str


def find_concepts(root: Path) -> tuple[tuple[Concept, ...], tuple[str, ...]]:
    """The folders to train on under `root`, and notes on what was ignored.

    With `N_concept` subfolders that hold pictures those are used; else the pictures in `root` itself, with
    the repeats of its own name if it is an `N_concept`. Raises DataError saying what is there when neither
    is.
    """
    require_folder(root)
    children = [concept_of(folder) for folder in list_folders(root)]
    named = tuple(concept for concept in children if concept.images and concept.repeats)
    here = concept_of(root)
    if named:
        nested = [concept_of(folder) for concept in named for folder in list_folders(concept.folder)]
        notes = _ignored_notes(children, named) + _nested_note(nested) + _loose_note(here)
        return named, notes + _unused_note(named)
    if here.images:
        return _flat(here, children)
    raise DataError(f"no training images in {root}: {_describe(root, children)}.", _way_out(root, children))


def concept_of(folder: Path) -> Concept:
    """`folder` with its pictures; 0 repeats and no token when its name is not of the form `N_concept`."""
    match = _KOHYA_NAME.fullmatch(folder.name)
    images = tuple(file for file in list_files(folder) if file.suffix.lower() in IMAGE_EXTENSIONS)
    return Concept(folder, images, repeats_of(folder), match[2].strip() if match else "")


def repeats_of(folder: Path) -> int:
    """N of a folder named `N_concept`, 0 for any other name."""
    match = _KOHYA_NAME.fullmatch(folder.name)
    return int(match[1]) if match else 0


def list_files(folder: Path) -> list[Path]:
    """The files in `folder` sorted by name, also broken links, but no hidden or AppleDouble (`._x`) ones."""
    return [entry for entry in _entries(folder) if not entry.is_dir()]


def list_folders(folder: Path) -> list[Path]:
    """The subfolders of `folder` sorted by name, without hidden ones and archive leftovers."""
    return [entry for entry in _entries(folder) if entry.is_dir() and entry.name not in _JUNK_FOLDERS]


def require_folder(path: Path) -> None:
    """Raise DataError, naming the nearest folder that exists and what is in it, unless `path` is a folder."""
    if path.is_dir():
        return
    if path.exists():
        raise DataError(f"train_data_dir {path} is a file.", "Give the folder that holds the images.")
    parent = next(parent for parent in path.absolute().parents if parent.is_dir())
    names = [entry.name for entry in _entries(parent)]
    raise DataError(
        f"train_data_dir {path} does not exist; the nearest folder that does is {parent}, "
        f"with {_shorten(names) if names else 'nothing in it'}.",
        "Correct the path.",
    )


def _entries(folder: Path) -> list[Path]:
    try:
        found = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder} can't be read: {error.strerror}.", "Check its permissions.") from None
    return [entry for entry in found if not entry.name.startswith(".")]


def _flat(here: Concept, children: Sequence[Concept]) -> tuple[tuple[Concept, ...], tuple[str, ...]]:
    ignored = _ignored_notes(children, ()) + _unused_note((here,))
    if here.repeats:
        note = f"{here.folder} is itself an N_concept folder: its {here.repeats} repeats are used."
        return (here,), (note, *ignored)
    note = f"{here.folder} holds the images itself (no N_concept subfolders): each counts once an epoch."
    return (Concept(here.folder, here.images, 1, ""),), (note, *ignored)


def _ignored_notes(children: Iterable[Concept], used: Sequence[Concept]) -> tuple[str, ...]:
    reasons = [f"{child.folder.name} ({_why_ignored(child)})" for child in children if child not in used]
    return (f"ignored folders: {', '.join(reasons)}.",) if reasons else ()


def _nested_note(nested: Iterable[Concept]) -> tuple[str, ...]:
    deep = [f"{child.folder.parent.name}/{child.folder.name}" for child in nested if child.images]
    return (f"images in folders inside concept folders are ignored: {_shorten(deep)}.",) if deep else ()


def _unused_note(concepts: Iterable[Concept]) -> tuple[str, ...]:
    """Pictures of kinds that are not read, which else would be missed by nobody."""
    endings = (file.suffix.lower() for concept in concepts for file in list_files(concept.folder))
    counts = Counter(ending for ending in endings if ending in _OTHER_PICTURES)
    kinds = ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items()))
    return (f"pictures of these kinds are not used: {kinds}. Convert them to PNG or JPEG.",) if kinds else ()


def _why_ignored(child: Concept) -> str:
    images = f"{len(child.images)} images"
    if not child.images:
        return "no images directly in it"
    if _KOHYA_NAME.fullmatch(child.folder.name):
        return f"{images}, but 0 repeats"
    return f"{images}, but no N_ before its name; 10_{child.folder.name} would train each 10 times an epoch"


def _loose_note(here: Concept) -> tuple[str, ...]:
    count = len(here.images)
    return (f"{count} images directly in {here.folder} are ignored beside N_concept folders.",) if count else ()


def _describe(root: Path, children: Sequence[Concept]) -> str:
    """What is there instead of images: files by extension, and each folder with its reason."""
    files = Counter(file.suffix.lower() or "no extension" for file in list_files(root))
    parts = [f"{count} {extension}" for extension, count in sorted(files.items())]
    parts += [f"folder {child.folder.name} ({_why_ignored(child)})" for child in children[:_NAMES_SHOWN]]
    if len(children) > _NAMES_SHOWN:
        parts.append(f"{len(children) - _NAMES_SHOWN} more folders")
    return f"it has {', '.join(parts)}" if parts else "the folder is empty"


def _way_out(root: Path, children: Sequence[Concept]) -> str:
    filled = next((child.folder for child in children if child.images), None)
    if filled:
        return f"Give {filled} as train_data_dir, or rename it 10_{filled.name}."
    kinds = " ".join(IMAGE_EXTENSIONS)
    return f"Put images ({kinds}) into {root} or into folders named like 10_cat inside it."


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
