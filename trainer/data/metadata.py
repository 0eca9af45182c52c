"""metadata.csv: one row per picture with its file name and caption, as people's tools really write it.

Owns the reading of the table and the search for its pictures. Accepts what has one meaning only, with a note;
anything else is a DataError with the line and the fix. Must never guess which words belong to a caption.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import DataError
from trainer.data.folders import IMAGE_EXTENSIONS
from trainer.data.text import UNICODE, read_text

FILE_COLUMNS = ("filename", "file_name", "image", "file")
CAPTION_COLUMNS = ("prompt", "caption", "text")

_DELIMITERS = (",", "，", ";", "\t")  # the second is the full-width comma of Chinese keyboards
_DELIMITER_NAMES = {"，": "full-width commas", ";": "semicolons", "\t": "tabs"}
_EXAMPLE = 'Write the first line as filename,prompt and rows like cat.png,"a cat, sitting".'
_ROWS_SHOWN = 3


@dataclass(frozen=True)
class Row:
    """One picture: the line it starts on, its file name as written (later its path) and its caption."""

    line: int
    file: str
    caption: str


@dataclass(frozen=True)
class _Record:
    """The fields of one row as the csv module splits them, and the line the row starts on."""

    line: int
    fields: tuple[str, ...]


@dataclass(frozen=True)
class _Layout:
    """Where the file name and the caption stand, out of how many columns, and what to tell about it."""

    file_column: int
    caption_column: int
    width: int
    has_header: bool
    note: str = ""


def read_metadata(path: Path) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows of a metadata.csv and notes on what was accepted as it is.

    Accepts any header of FILE_COLUMNS and CAPTION_COLUMNS in either order, no header, byte order marks,
    UTF-16, full-width commas, semicolons or tabs, blank lines, and unquoted commas where two columns leave
    no doubt. Raises DataError with line number and fix for anything else.
    """
    if not path.is_file():
        raise DataError(f"metadata_path {path} is not a file.", "Give the path of a metadata.csv.")
    text, encoding = read_text(path)
    notes = [] if encoding in UNICODE else [f"{path.name}: not UTF-8, read as {encoding}. Save it as UTF-8."]
    delimiter = _delimiter_of(text)
    if delimiter in _DELIMITER_NAMES:
        notes.append(f"{path.name}: the columns are separated by {_DELIMITER_NAMES[delimiter]}.")
    records = tuple(_records(path, text, delimiter))
    if not records:
        raise DataError(f"{path} is empty.", _EXAMPLE)
    layout = _layout_of(path, records)
    body = records[1:] if layout.has_header else records
    rows = [_row_of(path, record, layout, delimiter) for record in body]
    if not rows:
        raise DataError(f"{path} has a header and no rows.", _EXAMPLE)
    rows, swapped = _unswap(rows)
    joined = [record.line for record in body if len(record.fields) > layout.width]
    return tuple(rows), (*notes, *_row_notes(path, layout, joined, rows, swapped))


def locate_images(path: Path, rows: Sequence[Row], folders: Sequence[Path]) -> tuple[tuple[Path, Row], ...]:
    """Each row with its picture, looked for in `folders` in order.

    Backslashes and a missing extension are put right. Raises DataError listing every row without a picture.
    """
    found = [(_locate(row.file, folders), row) for row in rows]
    lost = [f"{row.file} (line {row.line})" for image, row in found if image is None]
    if lost:
        places = " or ".join(str(folder) for folder in dict.fromkeys(folders))
        raise DataError(
            f"{path}: {len(lost)} of {len(rows)} images are not in {places}: {', '.join(lost)}.",
            "Correct the names or remove the rows.",
        )
    return tuple((image, row) for image, row in found if image)


def _delimiter_of(text: str) -> str:
    """The separator of the first line with text: the one after the first column, outside quotes."""
    first = next((line for line in text.split("\n") if line.strip()), "").strip()
    rest = first[first.find('"', 1) :] if first.startswith('"') else first
    places = {mark: rest.find(mark) for mark in _DELIMITERS if mark in rest}
    return min(places, key=places.__getitem__) if places else ","


def _records(path: Path, text: str, delimiter: str) -> Iterator[_Record]:
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True, strict=True)
    line = 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield _Record(line, tuple(field.replace("\n", " ").strip() for field in fields))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {line}: the quotes (\") don't pair up: {error}.",
            'Put the whole caption in quotes and double each quote inside: "a 12"" record".',
        ) from None


def _layout_of(path: Path, records: Sequence[_Record]) -> _Layout:
    first = records[0]
    names = [field.lower() for field in first.fields]
    file_column = next((names.index(name) for name in FILE_COLUMNS if name in names), None)
    caption_column = next((names.index(name) for name in CAPTION_COLUMNS if name in names), None)
    if file_column is not None and caption_column is not None:
        return _Layout(file_column, caption_column, len(names), True)
    if file_column is None and caption_column is None and _is_image_name(first.fields[0]):
        return _Layout(0, 1, 2, False, "there is no header: the columns are taken as filename,prompt")
    if file_column is None and caption_column is None and _is_image_name(first.fields[-1]):
        return _Layout(-1, 0, 2, False, "there is no header: the columns are taken as prompt,filename")
    raise DataError(
        f"{path}, line {first.line}: the header {','.join(first.fields)!r} names no "
        f"{'file column' if file_column is None else 'caption column'}.",
        f"{_EXAMPLE} Other names: {', '.join(FILE_COLUMNS[1:])} and {', '.join(CAPTION_COLUMNS[1:])}.",
    )


def _row_of(path: Path, record: _Record, layout: _Layout, delimiter: str) -> Row:
    fields = record.fields
    if len(fields) < layout.width:
        missing = f"{len(fields)} of {layout.width} columns"
        raise DataError(f"{path}, line {record.line}: {','.join(fields)!r} has {missing}.", _EXAMPLE)
    if len(fields) > layout.width:
        fields = _join_caption(path, record, layout, delimiter)
    if not fields[layout.file_column]:
        raise DataError(f"{path}, line {record.line}: there is no file name.", _EXAMPLE)
    return Row(record.line, fields[layout.file_column], fields[layout.caption_column])


def _join_caption(path: Path, record: _Record, layout: _Layout, delimiter: str) -> tuple[str, ...]:
    """The two columns of a row with unquoted separators: sure when just one end is an image's name."""
    fields = record.fields
    glue = delimiter if delimiter == "，" else f"{delimiter} "
    named = [_is_image_name(fields[0]), _is_image_name(fields[-1])]
    if layout.width == 2 and sum(named) == 1:
        name, caption = (fields[0], fields[1:]) if named[0] else (fields[-1], fields[:-1])
        columns = {layout.file_column % 2: name, layout.caption_column % 2: glue.join(caption)}
        return columns[0], columns[1]
    raise DataError(
        f"{path}, line {record.line}: {len(fields)} columns where the header has {layout.width}.",
        "Put the caption in double quotes.",
    )


def _unswap(rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """The rows, with the columns exchanged when the header has them the wrong way round in every row."""
    swapped = all(_is_image_name(row.caption) and not _is_image_name(row.file) for row in rows)
    if not swapped:
        return list(rows), False
    return [replace(row, file=row.caption, caption=row.file) for row in rows], True


def _row_notes(
    path: Path, layout: _Layout, joined: Sequence[int], rows: Sequence[Row], swapped: bool
) -> Iterator[str]:
    empty = [row.line for row in rows if not row.caption]
    if layout.note:
        yield f"{path.name}: {layout.note}."
    if swapped:
        yield f"{path.name}: the header has its columns swapped; the images' names decide."
    if joined:
        yield f"{path.name}: unquoted commas in {_lines(joined)} are taken as part of the caption."
    if empty:
        yield f"{path.name}: {len(empty)} captions are empty ({_lines(empty)})."


def _locate(name: str, folders: Sequence[Path]) -> Path | None:
    for written in dict.fromkeys((name, name.replace("\\", "/"))):
        for ending in ("", *IMAGE_EXTENSIONS):
            for folder in folders:
                candidate = folder / f"{written}{ending}"
                if _is_there(candidate):
                    return candidate
    return None


def _is_there(candidate: Path) -> bool:
    try:
        return candidate.is_file() or (candidate.is_symlink() and not candidate.is_dir())
    except OSError:  # no name a file can have: a whole caption, say
        return False


def _is_image_name(text: str) -> bool:
    return text.lower().endswith(IMAGE_EXTENSIONS)


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_ROWS_SHOWN])
    more = f" and {len(numbers) - _ROWS_SHOWN} more" if len(numbers) > _ROWS_SHOWN else ""
    return f"line {shown}" if len(numbers) == 1 else f"lines {shown}{more}"
