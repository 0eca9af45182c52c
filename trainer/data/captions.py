"""Captions in files beside the pictures. Owns the search for them and the notes on what was odd or missing.

Must never invent a caption: what has no file gets its folder's class token, and the note counts it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer.data.text import UNICODE, read_text

_KNOWN_EXTENSIONS = (".txt", ".caption")


@dataclass
class CaptionReader:
    """Reads the caption of one picture after another and gathers what to tell the user about them all."""

    extension: str
    _missing: list[Path] = field(default_factory=list)
    _others: Counter[str] = field(default_factory=Counter)
    _empty: list[Path] = field(default_factory=list)
    _longer: list[Path] = field(default_factory=list)
    _guessed: list[tuple[Path, str]] = field(default_factory=list)
    _without_text: int = 0

    def __post_init__(self) -> None:
        if self.extension and not self.extension.startswith("."):
            self.extension = f".{self.extension}"

    def read(self, image: Path, siblings: Mapping[str, Path], class_token: str) -> str:
        """The caption of `image`: the first line with text in its caption file, else `class_token`.

        `siblings` maps the lower-case names in the picture's folder to their paths.
        """
        file = siblings.get(f"{image.stem}{self.extension}".lower()) if self.extension else None
        if file is None:
            self._note_missing(image, siblings, class_token)
            return class_token
        return self._first_line(file)

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of thing the user should know."""
        lines = [
            self._missing_note(),
            _note(self._empty, "caption files are empty and train with an empty caption"),
            _note(self._longer, "caption files have more lines than one: only the first is used"),
            *(f"{file}: not UTF-8, read as {encoding}. Save it as UTF-8." for file, encoding in self._guessed),
        ]
        return tuple(line for line in lines if line)

    def _first_line(self, file: Path) -> str:
        text, encoding = read_text(file)
        if encoding not in UNICODE:
            self._guessed.append((file, encoding))
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if not lines:
            self._empty.append(file)
        elif len(lines) > 1:
            self._longer.append(file)
        return lines[0] if lines else ""

    def _note_missing(self, image: Path, siblings: Mapping[str, Path], class_token: str) -> None:
        self._missing.append(image)
        self._without_text += not class_token
        others = {other for other in _KNOWN_EXTENSIONS if f"{image.stem}{other}".lower() in siblings}
        self._others.update(others - {self.extension})

    def _missing_note(self) -> str:
        if not self._missing:
            return ""
        tokens = len(self._missing) - self._without_text
        parts = [f"{tokens} train with their folder's class token"] if tokens else []
        parts += [f"{self._without_text} train with an empty caption"] if self._without_text else []
        hints = [f" {count} have a {other} file instead." for other, count in sorted(self._others.items())]
        what = f"{_count(self._missing, 'images have')} no {self.extension} caption file"
        return f"{what}: {', '.join(parts)}.{''.join(hints)}"


def _note(files: Iterable[Path], what: str) -> str:
    """`3 caption files are empty ... (a.txt, b.txt, c.txt)`, or nothing without files."""
    names = [file.name for file in files]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} {what} ({shown})." if names else ""


def _count(items: list[Path], what: str) -> str:
    return f"{len(items)} {what}"
