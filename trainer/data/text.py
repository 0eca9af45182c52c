"""Text files people made with other tools: read in whatever encoding they have. Owns the guess of it.

Must never fail on a readable file, and never hide a guess: the encoding is returned for a note.
"""

import codecs
from itertools import pairwise
from pathlib import Path

from autotune.errors import DataError

UNICODE = ("utf-8", "utf-16")  # certain: no note is due

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMMON_HANZI_ROWS = range(0xB0, 0xD8)  # GB 2312 level 1: the 3,755 characters in daily use
_PUNCTUATION_ROWS = range(0xA1, 0xA4)
_SHARE_OF_COMMON = 0.7  # Cyrillic or Latin bytes read as GBK give mostly rare characters


def read_text(path: Path) -> tuple[str, str]:
    """The text of a file without byte order mark, line ends as `\\n`, and the encoding it was read in.

    Tries utf-8 (with or without mark) and utf-16, then guesses gbk, cp1251 or cp1252 from which characters
    would appear. Raises DataError when the file can't be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Check the file's permissions.") from None
    text, encoding = decode_text(data)
    return text.replace("\r\n", "\n").replace("\r", "\n"), encoding


def decode_text(data: bytes) -> tuple[str, str]:
    """`data` as text and the encoding that was used. Never raises: cp1252 takes what nothing else does."""
    if data.startswith(_UTF16_MARKS) or _looks_like_utf16(data):
        return _decode_utf16(data), "utf-16"
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        encoding = _guess(data)
        return data.decode(encoding, errors="replace"), encoding


def _looks_like_utf16(data: bytes) -> bool:
    """No mark, but every second byte of the beginning is zero, as for ASCII in 16 bits."""
    head = data[:64]
    return len(head) >= 4 and len(data) % 2 == 0 and (not any(head[1::2]) or not any(head[::2]))


def _decode_utf16(data: bytes) -> str:
    if data.startswith(_UTF16_MARKS):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-16-le" if not any(data[1:64:2]) else "utf-16-be", errors="replace")


def _guess(data: bytes) -> str:
    if _is_chinese(data):
        return "gbk"
    high = [byte >= 0xC0 for byte in data]
    neighbours = sum(one and other for one, other in pairwise(high))
    # Cyrillic words are runs of high bytes; a Latin accent stands alone among ASCII letters.
    return "cp1251" if 2 * neighbours > sum(high) else "cp1252"


def _is_chinese(data: bytes) -> bool:
    try:
        wide = [char.encode("gbk") for char in data.decode("gbk") if ord(char) > 127]
    except UnicodeDecodeError:
        return False
    common = [code for code in wide if code[0] in _COMMON_HANZI_ROWS or code[0] in _PUNCTUATION_ROWS]
    return len(common) >= _SHARE_OF_COMMON * len(wide)
