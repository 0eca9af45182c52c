"""The fit frontier: the largest batch that fits each card, with and without checkpointing, from few trials.

Owns the search. What a plan needs rises with its batch, nearly in a straight line, so that two trials say where to
look and the next ones make sure. Must never call a batch fitting that was not tried and is not below one that was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MOST = 64
"""The largest batch looked at."""


@dataclass
class BatchSearch:
    """The largest batches of one plan's kind. `need_bytes(batch)` runs a trial; each batch is asked once."""

    ask: Callable[[int], int]
    most: int = MOST
    known: dict[int, int] = field(default_factory=dict)

    def largest(self, room_bytes: int) -> int:
        """The largest batch up to `most` whose need is at most `room_bytes`; 0 if not even one sample fits."""
        fits, fails = self._bounds(room_bytes)
        while fails - fits > 1:
            middle = self._guess(fits, fails, room_bytes)
            if self.need_bytes(middle) <= room_bytes:
                fits = middle
            else:
                fails = middle
        return fits

    def need_bytes(self, batch: int) -> int:
        """What a batch needs, tried once."""
        if batch not in self.known:
            self.known[batch] = self.ask(batch)
        return self.known[batch]

    def _bounds(self, room_bytes: int) -> tuple[int, int]:
        """The largest batch known to fit (0: none tried does) and the smallest known to fail (most + 1: none)."""
        fits = max((batch for batch, need in self.known.items() if need <= room_bytes), default=0)
        fails = min((b for b, need in self.known.items() if need > room_bytes), default=self.most + 1)
        return fits, fails

    def _guess(self, fits: int, fails: int, room_bytes: int) -> int:
        """Between the two, where a straight line through the nearest known batches reaches the room."""
        if fits == 0:
            return 1
        below = max((batch for batch in self.known if batch < fits), default=0)
        above = min((batch for batch in self.known if batch >= fails), default=0)
        start, end = (fits, above) if above else (below, fits)
        if start == 0:
            return min(2 * fits, fails - 1)
        slope = (self.known[end] - self.known[start]) / (end - start)
        straight = fits + int((room_bytes - self.known[fits]) / slope) if slope > 0 else fails - 1
        return min(max(straight, fits + 1), fails - 1)


def shares(rooms: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The smaller and the larger half of `rooms`, for two threads: they have few batches in common."""
    names = sorted(rooms, key=lambda name: rooms[name])
    half = (len(names) + 1) // 2
    return {name: rooms[name] for name in names[:half]}, {name: rooms[name] for name in names[half:]}


def largest_batches(search: BatchSearch, rooms: Mapping[str, int]) -> dict[str, int]:
    """The largest batch for every room in bytes. The largest room is looked at first: it brackets the others."""
    names: Sequence[str] = sorted(rooms, key=lambda name: rooms[name], reverse=True)
    return {name: search.largest(rooms[name]) for name in names}
