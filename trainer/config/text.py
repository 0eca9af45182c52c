"""A config file's bytes and the text in them. Owns reading and encodings; never looks at what the text means.

Windows editors leave byte-order marks, UTF-16 and local code pages behind. The text remembers how it was
written, so that it can be written back the same way.
"""

import codecs
import difflib
import locale
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import ConfigError

LIMIT_BYTES = 1 << 18  # a larger "config" is a model or a picture passed by mistake

_MARKS = (  # UTF-32 first: its little-endian mark starts with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ufffe\uffff]")


@dataclass(frozen=True)
class ConfigText:
    """Decoded text with the encoding and byte-order mark it was found in (`guessed` when it named none)."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    guessed: bool = False

    def encode(self, text: str) -> bytes:
        """`text` as bytes in the same encoding, mark included. Raises UnicodeEncodeError."""
        return self.mark + text.encode(self.encoding)


def read_text(path: Path) -> ConfigText:
    """The text of the config file at `path`. Raises ConfigError when it can't be read as text."""
    return decode(read_bytes(path), path.name)


def read_bytes(path: Path) -> bytes:
    """The file's bytes, at most `LIMIT_BYTES`. Raises ConfigError for what is no readable regular file."""
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, not a config file.", _configs_in(path))
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a regular file.", "Give a .toml, .json or .yaml file.")
        with path.open("rb") as file:
            content = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist: {nearest_parent(path)}.", _similar_to(path)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} can't be read: {reason}.", "Check the path and its permissions.") from error
    if len(content) > LIMIT_BYTES:
        raise ConfigError(
            f"{path} is larger than {LIMIT_BYTES:,} bytes, too large for a config file.",
            "Give the settings file, not a model or an image.",
        )
    return content


def decode(content: bytes, name: str) -> ConfigText:
    """Bytes as text: by their byte-order mark, as UTF-8, as bare UTF-16, or in the likeliest code page."""
    if not content.strip():
        raise ConfigError(f"{name} is empty.", "Give a file with settings in it.")
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return ConfigText(_checked(content[len(mark) :], encoding, name), encoding, mark)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return ConfigText(_printable(text, name))
    encoding = _utf16_order(content) or _likeliest_page(content, name)
    return ConfigText(_checked(content, encoding, name), encoding, guessed=True)


def nearest_parent(path: Path) -> str:
    """A phrase that names the nearest folder above a missing `path` that does exist."""
    absolute = path.expanduser().absolute()
    for parent in absolute.parents:
        try:
            if parent.is_dir():
                return f"the nearest folder that exists is {parent}"
        except OSError:
            continue
    return "no folder above it exists"


def _configs_in(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in {".toml", ".json", ".yaml", ".yml"})
    return f"It holds {', '.join(names[:5])}." if names else "It holds no .toml, .json or .yaml file."


def _similar_to(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name, names, 1) or [
        name for name in names if Path(name).stem == path.name
    ]
    return f"Did you mean {path.with_name(close[0])}?" if close else "Check the spelling of the path."


def _checked(content: bytes, encoding: str, name: str) -> str:
    try:
        return _printable(content.decode(encoding), name)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name} starts like {encoding} text but byte {error.start:,} breaks it.", "Save it as UTF-8."
        ) from error


def _printable(text: str, name: str) -> str:
    found = _CONTROLS.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(
            f"{name} is not a text file (control character {found.group()!r} in line {line}).",
            "Give a .toml, .json or .yaml settings file.",
        )
    return text


def _utf16_order(content: bytes) -> str | None:
    """UTF-16 without a mark: settings are mostly ASCII, so every second byte is often zero."""
    half = len(content) // 2
    if len(content) % 2 == 0 and half:
        even, odd = content[0::2].count(0), content[1::2].count(0)
        if even == 0 and odd > 0.3 * half:
            return "utf-16-le"
        if odd == 0 and even > 0.3 * half:
            return "utf-16-be"
    return None


def _likeliest_page(content: bytes, name: str) -> str:
    """The code page under which the words outside ASCII look like words of its language."""
    local = codecs.lookup(locale.getpreferredencoding(do_setlocale=False)).name
    pages = sorted(_PLAUSIBLE, key=lambda page: codecs.lookup(page).name != local)
    best = max(pages, key=lambda page: _plausibility(content, page))
    if b"\0" in content or _plausibility(content, best) == 0:
        raise ConfigError(
            f"{name} is neither UTF-8 text nor text in {', '.join(_PLAUSIBLE)}.",
            "Give a settings file, saved as UTF-8.",
        )
    return best


def _plausibility(content: bytes, page: str) -> float:
    try:
        text = content.decode(page)
    except UnicodeDecodeError:
        return 0.0
    words = [word for word in re.findall(r"[^\s\"'/\\=,;:#\[\]{}()<>|._-]+", text) if not word.isascii()]
    return sum(map(_PLAUSIBLE[page], words)) / len(words) if words else 0.0


def _is_russian(word: str) -> bool:
    letters = [letter for letter in word if letter.isalpha()]
    lower_after_first = all(letter.islower() for letter in letters[1:]) or word.isupper()
    return lower_after_first and all(re.match("[А-Яа-яЁё]", letter) for letter in letters)


def _is_chinese(word: str) -> float:
    """1 for the 3,755 everyday characters of GB 2312 (lead bytes B0 to D7) and its punctuation, half for its
    rarer ones (to F7), which words of other code pages look like.
    """
    wide = "".join(letter for letter in word if not letter.isascii()).encode("gbk", "replace")
    leads, trails = wide[::2], wide[1::2]
    if any(trail < 0xA1 for trail in trails) or any(not 0xA1 <= lead <= 0xF7 for lead in leads):
        return 0.0
    return 1.0 if all(0xB0 <= lead <= 0xD7 or lead <= 0xA3 for lead in leads) else 0.5


def _is_western(word: str) -> bool:
    wide = [letter for letter in word if not letter.isascii()]
    return len(wide) <= len(word) - len(wide) and all(re.match("[À-ÖØ-öø-ÿŒœŠšŽž]", letter) for letter in wide)


_PLAUSIBLE: dict[str, Callable[[str], float]] = {
    "cp1251": _is_russian,
    "gbk": _is_chinese,
    "cp1252": _is_western,
}
