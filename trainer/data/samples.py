"""The samples of a run: which pictures, with which captions, how often. Owns the way from config to Dataset.

Reads only names, captions and picture headers: the full decoding is `trainer.data.checks.check_images`.
Must never write into the user's folders, and must never leave a picture out without a note.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DataError
from trainer.config.schema import Size, TrainConfig
from trainer.data.buckets import bucket_notes, too_small
from trainer.data.captions import CaptionReader
from trainer.data.checks import read_sizes
from trainer.data.folders import Concept, concept_of, find_concepts, list_files, repeats_of, require_folder
from trainer.data.metadata import locate_images, read_metadata

METADATA_NAME = "metadata.csv"

_NAMES_SHOWN = 5
_MOST_SAMPLES = 5_000_000


@dataclass(frozen=True)
class Sample:
    """One picture to train on once an epoch. `size` is (width, height) in pixels, upright (after EXIF).

    A picture with N repeats gives N samples with `repeat` 0 to N-1, each with an `index` of its own.
    """

    index: int
    path: Path
    caption: str
    size: Size
    repeat: int


@dataclass(frozen=True)
class Dataset:
    """All samples, where sample i has index i, and the notes to show before anything runs."""

    samples: tuple[Sample, ...]
    notes: tuple[str, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every picture once, in order."""
        return tuple(dict.fromkeys(sample.path for sample in self.samples))


@dataclass(frozen=True)
class _Entry:
    path: Path
    caption: str
    repeats: int


def load_dataset(config: TrainConfig) -> Dataset:
    """The samples `config` names, sorted by folder and name, or in the order of its metadata.csv.

    Sources, first match: metadata_path, metadata.csv in train_data_dir, `N_concept` subfolders, a flat
    folder. Raises DataError for a wrong path, a folder without images, a table that can't be read, broken
    pictures (all of them at once) and when bucket_no_upscale leaves nothing.
    """
    root = Path(config.train_data_dir).expanduser()
    table = _metadata_path(config, root)
    entries, notes = _read_table(table, root) if table else _read_folders(root, config)
    paths = list(dict.fromkeys(entry.path for entry in entries))
    sizes = dict(zip(paths, read_sizes(paths), strict=True))
    kept, small_notes = _leave_out_small(entries, sizes, config)
    samples = _number(kept, sizes)
    return Dataset(samples, (*notes, *small_notes, *bucket_notes(config.resolution, config)))


def _metadata_path(config: TrainConfig, root: Path) -> Path | None:
    if config.metadata_path:
        return Path(config.metadata_path).expanduser()
    beside = root / METADATA_NAME
    return beside if beside.is_file() else None


def _read_folders(root: Path, config: TrainConfig) -> tuple[list[_Entry], tuple[str, ...]]:
    concepts, notes = find_concepts(root)
    reader = CaptionReader(config.caption_extension)
    entries = [entry for concept in concepts for entry in _concept_entries(concept, reader)]
    return entries, notes + reader.notes()


def _concept_entries(concept: Concept, reader: CaptionReader) -> Iterable[_Entry]:
    siblings = {file.name.lower(): file for file in list_files(concept.folder)}
    for image in concept.images:
        yield _Entry(image, reader.read(image, siblings, concept.class_token), concept.repeats)


def _read_table(table: Path, root: Path) -> tuple[list[_Entry], tuple[str, ...]]:
    require_folder(root)
    rows, notes = read_metadata(table)
    located = locate_images(table, rows, (table.parent, root))
    # An N_concept folder keeps its repeats: that is all its name can mean.
    entries = [_Entry(image, row.caption, max(1, repeats_of(image.parent))) for image, row in located]
    return entries, (*notes, *_table_notes(table, root, [entry.path for entry in entries]))


def _table_notes(table: Path, root: Path, listed: Sequence[Path]) -> Iterable[str]:
    yield f"captions come from {table}."
    double = len(listed) - len(set(listed))
    if double:
        yield f"{table.name}: {double} rows name an image that another row has; each row trains."
    folders = {root, *(path.parent for path in listed)}
    known = {path.resolve() for path in listed}
    unlisted = [image for folder in folders for image in concept_of(folder).images if image.resolve() not in known]
    if unlisted:
        yield f"{len(unlisted)} images have no row in {table.name} and are not used ({_names(unlisted)})."


def _leave_out_small(
    entries: Sequence[_Entry], sizes: dict[Path, Size], config: TrainConfig
) -> tuple[list[_Entry], tuple[str, ...]]:
    small = [path for path, size in sizes.items() if too_small(size, config)]
    if not small:
        return list(entries), ()
    what = f"have a side below bucket_reso_steps ({config.bucket_reso_steps} pixels) with bucket_no_upscale"
    if len(small) == len(sizes):
        raise DataError(f"all {len(small)} images {what}.", "Turn bucket_no_upscale off or use larger images.")
    kept = [entry for entry in entries if entry.path not in set(small)]
    return kept, (f"{len(small)} images {what} and are left out ({_names(small)}).",)


def _number(entries: Sequence[_Entry], sizes: dict[Path, Size]) -> tuple[Sample, ...]:
    _refuse_endless(entries)
    copies = [(entry, repeat) for entry in entries for repeat in range(entry.repeats)]
    return tuple(
        Sample(index, entry.path, entry.caption, sizes[entry.path], repeat)
        for index, (entry, repeat) in enumerate(copies)
    )


def _refuse_endless(entries: Sequence[_Entry]) -> None:
    """A folder called after a date (`20240131_cats`) asks for twenty million repeats."""
    total = sum(entry.repeats for entry in entries)
    if total > _MOST_SAMPLES:
        most = max(entries, key=lambda entry: entry.repeats)
        raise DataError(
            f"an epoch would have {total:,} samples, more than {_MOST_SAMPLES:,}: folder "
            f"{most.path.parent.name} asks for {most.repeats:,} repeats of each picture.",
            "Rename it: the number before the first _ is how often a picture counts in an epoch.",
        )


def _names(paths: Sequence[Path]) -> str:
    shown = ", ".join(path.name for path in paths[:_NAMES_SHOWN])
    return f"{shown}, ..." if len(paths) > _NAMES_SHOWN else shown
