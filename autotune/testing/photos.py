"""The demo photographs: real pictures with captions, written out in each of the three layouts people use.

Owns the copies it makes, nothing else. Must never write into a folder that already holds something. Origin,
author and licence of each photograph are in `data/photos/LICENSES.md`.
"""

import csv
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from autotune.errors import DiskError

Layout = Literal["kohya", "flat", "csv"]

PHOTOS = Path(__file__).parent / "data" / "photos"
CONCEPT = "photo"


def list_photos() -> list[tuple[Path, str]]:
    """Each photograph with its caption, sorted by name."""
    photos = sorted(PHOTOS.glob("*.jpg"))
    return [(photo, photo.with_suffix(".txt").read_text(encoding="utf-8").strip()) for photo in photos]


def write_demo_dataset(folder: Path, layout: Layout = "kohya", repeats: int = 1) -> Path:
    """Copy the photographs into the new `folder` and return it, ready to be a train_data_dir.

    `kohya`: a subfolder `N_photo` with .txt captions, N being `repeats`. `flat`: pictures and .txt captions.
    `csv`: pictures and a metadata.csv with filename,prompt. Raises DiskError when `folder` is not empty or
    can't be written, and ValueError for another layout.
    """
    writers: dict[str, Callable[[], None]] = {
        "kohya": lambda: _write_captioned(folder / f"{repeats}_{CONCEPT}"),
        "flat": lambda: _write_captioned(folder),
        "csv": lambda: _write_table(folder),
    }
    if layout not in writers:
        raise ValueError(f"layout {layout!r} is none of {', '.join(writers)}")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise DiskError(f"{folder} is not empty.", "Give a new folder for the demo photographs.")
        writers[layout]()
    except OSError as error:
        raise DiskError(f"{folder} can't be written: {error.strerror}.", "Give another folder.") from None
    return folder


def _write_captioned(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for photo, _ in list_photos():
        for file in (photo, photo.with_suffix(".txt")):
            shutil.copyfile(file, folder / file.name)


def _write_table(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO(newline="")
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(("filename", "prompt"))
    for photo, caption in list_photos():
        shutil.copyfile(photo, folder / photo.name)
        rows.writerow((photo.name, caption))
    (folder / "metadata.csv").write_text(table.getvalue(), encoding="utf-8")
