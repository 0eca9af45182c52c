"""The control file of a set of null cards: who holds how much, a neighbour's memory, calls without a model.

Owns the layout of the file, which native/core.h mirrors; every process on the cards maps it. A neighbour takes
memory while programs run by writing here. Must never be needed: without it a process counts alone.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from autotune.device.null.card import NullCard
from autotune.errors import DeviceError

MAGIC = b"ATNULL01"
MAX_CARDS = 16
_HEADER = struct.Struct("<8sii")
_CARD = struct.Struct("<QQQ")
_PROCESS = struct.Struct(f"<iI{MAX_CARDS}Q")
_NAME = struct.Struct("<64sQ")
_PROCESSES, _NAMES, _LAST_BYTES = 256, 1024, 64
_CARDS_AT = _HEADER.size
_PROCESSES_AT = _CARDS_AT + MAX_CARDS * _CARD.size
_LAST_AT = _PROCESSES_AT + _PROCESSES * _PROCESS.size
_NAMES_AT = _LAST_AT + _LAST_BYTES
SIZE_BYTES = _NAMES_AT + _NAMES * _NAME.size
_NEIGHBOUR = 2  # the third figure of a card's row


class ControlBlock:
    """An open control file. Close it, or use it in a `with` block; the file itself stays."""

    def __init__(self, path: Path) -> None:
        """Map the file at `path`. Raises DeviceError when it is none of ours."""
        self.path = path
        try:
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), SIZE_BYTES)
        except (OSError, ValueError) as error:
            raise DeviceError(f"control file {path} can't be opened: {error}.") from None
        magic, _, self.card_count = _HEADER.unpack_from(self._map)
        if magic != MAGIC:
            self._map.close()
            raise DeviceError(f"{path} is no control file of a null GPU.")

    @classmethod
    def create(cls, path: Path, cards: Sequence[NullCard]) -> "ControlBlock":
        """Make the file for `cards` at `path`, replacing one that is there. Raises DeviceError."""
        if not 1 <= len(cards) <= MAX_CARDS:
            raise DeviceError(f"{len(cards)} null cards: between 1 and {MAX_CARDS} are possible.")
        content = bytearray(SIZE_BYTES)
        _HEADER.pack_into(content, 0, MAGIC, 0, len(cards))
        for index, card in enumerate(cards):
            _CARD.pack_into(content, _CARDS_AT + index * _CARD.size, card.total_bytes, card.context_bytes, 0)
        try:
            path.write_bytes(content)
        except OSError as error:
            raise DeviceError(f"control file {path} can't be written: {error}.") from None
        return cls(path)

    def set_neighbour(self, card: int, size_bytes: int) -> None:
        """Somebody else holds `size_bytes` of card `card` from now on; what programs have got stays theirs."""
        struct.pack_into("<Q", self._map, self._card_at(card) + 8 * _NEIGHBOUR, size_bytes)

    def neighbour_bytes(self, card: int) -> int:
        """What the neighbour holds of card `card`."""
        return int(_CARD.unpack_from(self._map, self._card_at(card))[_NEIGHBOUR])

    def used_bytes(self, card: int) -> int:
        """What living processes hold of card `card`, contexts included, the neighbour not."""
        self._card_at(card)
        return sum(row[2 + card] for row in self._processes() if _is_alive(row[0]))

    def unmodelled(self) -> dict[str, int]:
        """Calls of functions that have no model here, by name."""
        rows = (_NAME.unpack_from(self._map, _NAMES_AT + n * _NAME.size) for n in range(_NAMES))
        return {_text(name): calls for name, calls in rows if name[0]}

    def last_unmodelled(self) -> str:
        """The last such function that was called, or nothing: where a crash may come from."""
        return _text(self._map[_LAST_AT : _LAST_AT + _LAST_BYTES])

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()

    def __enter__(self) -> "ControlBlock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _card_at(self, card: int) -> int:
        if not 0 <= card < self.card_count:
            raise IndexError(f"card {card} of {self.card_count}")
        return _CARDS_AT + card * _CARD.size

    def _processes(self) -> list[tuple[int, ...]]:
        rows = (_PROCESS.unpack_from(self._map, _PROCESSES_AT + n * _PROCESS.size) for n in range(_PROCESSES))
        return [row for row in rows if row[0]]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("ascii", "replace")
