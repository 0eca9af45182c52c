"""Sizes in bytes, read from and written for people. Owns no state and knows nothing of GPUs."""

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {
    "": 1, "b": 1, "k": KIB, "kib": KIB, "kb": 1000, "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_LEAST_PLAIN = MIB
_MOST = 1 << 50


def parse_size(text: str) -> int:
    """Bytes in `text`: `2GiB`, `700 MiB`, `12GB` (decimal), `6g` (binary), or plain bytes from a mebibyte on.

    Raises ValueError with the accepted spellings when `text` is none of these, not positive, a small number that
    lacks its unit (`12`), or more than any device has.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    size = min(float(match.group(1)) * factor, 2.0 * _MOST) if match and factor else 0
    if match and 0 < size < _LEAST_PLAIN and not match.group(2):
        raise ValueError(f"size {text!r} has no unit: write for example {text.strip()}GiB")
    if size > _MOST:
        raise ValueError(f"size {text!r} is more than any device has")
    if int(size) <= 0:
        raise ValueError(f"size {text!r} is not understood: write for example 2GiB, 700MiB or 12GB")
    return int(size)


def spell_size(size_bytes: int) -> str:
    """The shortest exact spelling that `parse_size` reads back: `12GiB`, `12GB`."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB"):
        if size_bytes % _FACTORS[unit.lower()] == 0:
            return f"{size_bytes // _FACTORS[unit.lower()]}{unit}"
    return f"{size_bytes}B"


def format_mib(size_bytes: int) -> str:
    """`size_bytes` in whole MiB, rounded up: `2,898 MiB`. Rounding up keeps "needs N MiB" true."""
    return f"{-(-size_bytes // MIB):,} MiB"


def format_size(size_bytes: int) -> str:
    """`size_bytes` as PyTorch's allocator prints sizes (c10/core/impl, `format_size`)."""
    if size_bytes <= KIB:
        return f"{size_bytes} bytes"
    if size_bytes <= MIB:
        return f"{size_bytes / KIB:.2f} KiB"
    if size_bytes <= GIB:
        return f"{size_bytes / MIB:.2f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"
