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


def parse_size(text: str) -> int:
    """Bytes in `text`: `2GiB`, `700 MiB`, `12GB` (decimal), `6g` (binary), or plain bytes.

    Raises ValueError with the accepted spellings when `text` is none of these or not positive.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    size = int(float(match.group(1)) * factor) if match and factor else 0
    if size <= 0:
        raise ValueError(f"size {text!r} is not understood: write for example 2GiB, 700MiB or 12GB")
    return size


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
