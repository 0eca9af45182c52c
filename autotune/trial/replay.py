"""From PyTorch's trace of the allocator to an Account: whose each byte was, phase by phase.

Owns the two passes over the trace. A block gets its category when somebody names its address, which may be after
the peak that it was part of; so the first pass finds the blocks and their owners, the second one sums. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from autotune.memory.account import CATEGORIES, OTHER, WORKSPACE, Account, PhaseAccount, Span, Timeline
from autotune.trial.ledger import Block, Change, Event, Ledger

MOST_SAMPLES = 500


@dataclass
class Journal:
    """What the recorder noted. A mark is a point in the trace: events of mark n came after it and before n + 1.

    `claims` gives, by mark, addresses in use then and their category; `phases` the marks between which each phase
    ran; `workspaces` those between which libraries were made to give their workspaces back.
    """

    claims: defaultdict[int, list[tuple[str, list[int]]]] = field(default_factory=lambda: defaultdict(list))
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    workspaces: range = range(0)


def account_of(segments: Iterable[Mapping[str, Any]], events: Sequence[Event], journal: Journal) -> Account:
    """The account of a trial from `segments` before it, the `events` of its trace, and what was noted."""
    ledger = Ledger(segments)
    there = list(ledger.live.values())
    changes = _find_owners(ledger, events, journal)
    walk = _Walk(ledger.reserved_at_start, there)
    accounts, stretches = [], []
    for name, begin, end in journal.phases:
        walk.go_on(changes, begin)
        stretch = walk.measure(changes, end)
        accounts.append(stretch.account(name))
        stretches.append((name, stretch.samples))
    return Account(tuple(accounts), _timeline(stretches))


def _find_owners(ledger: Ledger, events: Iterable[Event], journal: Journal) -> list[tuple[int, Change]]:
    changes, mark = [], 0
    for event in events:
        reached = _mark_of(event, mark)
        for passed in range(mark + 1, reached + 1):
            _claim(ledger, journal.claims.get(passed, ()))
        mark = reached
        change = ledger.apply(event)
        if change.sign < 0 and change.block and mark in journal.workspaces:
            change.block.category = WORKSPACE
        changes.append((mark, change))
    for later in sorted(number for number in journal.claims if number > mark):
        _claim(ledger, journal.claims[later])
    return changes


def _claim(ledger: Ledger, claims: Iterable[tuple[str, list[int]]]) -> None:
    for category, addresses in claims:
        for address in addresses:
            ledger.claim(address, category)


def _mark_of(event: Event, last: int) -> int:
    """The mark is the first word of what the recorder attached; another program's word counts for nothing."""
    word = str(event.get("user_metadata", "")).partition(" ")[0]
    return int(word) if word.isdecimal() else last


class _Stretch:
    """A phase as it is walked through: every state of the counters, and the parts at the allocated peak."""

    def __init__(self, parts: Mapping[str, int], allocated: int, reserved: int) -> None:
        self.samples = [(allocated, reserved)]
        self._peak, self._parts = allocated, dict(parts)

    def see(self, parts: Mapping[str, int], allocated: int, reserved: int) -> None:
        self.samples.append((allocated, reserved))
        if allocated > self._peak:
            self._peak, self._parts = allocated, dict(parts)

    def account(self, name: str) -> PhaseAccount:
        return PhaseAccount(name, self._peak, max(reserved for _, reserved in self.samples), self._parts)


class _Walk:
    """The counters on their way through the changes."""

    def __init__(self, reserved: int, there: Iterable[Block]) -> None:
        self._parts = dict.fromkeys(CATEGORIES, 0)
        self._reserved = reserved
        self._next = 0
        self._allocated = 0
        for block in there:
            self._take(Change(block=block, sign=1))

    def go_on(self, changes: Sequence[tuple[int, Change]], mark: int) -> None:
        """Up to `mark`."""
        for _ in self._steps(changes, mark):
            pass

    def measure(self, changes: Sequence[tuple[int, Change]], mark: int) -> _Stretch:
        """Up to `mark`, and what it was like."""
        stretch = _Stretch(self._parts, self._allocated, self._reserved)
        for _ in self._steps(changes, mark):
            stretch.see(self._parts, self._allocated, self._reserved)
        return stretch

    def _steps(self, changes: Sequence[tuple[int, Change]], mark: int) -> Iterator[None]:
        while self._next < len(changes) and changes[self._next][0] < mark:
            self._take(changes[self._next][1])
            self._next += 1
            yield

    def _take(self, change: Change) -> None:
        self._reserved += change.reserved_bytes
        if change.block:
            block, sign = change.block, change.sign
            self._parts[block.category] += sign * block.requested_bytes
            self._parts[OTHER] += sign * (block.size_bytes - block.requested_bytes)
            self._allocated += sign * block.size_bytes


def _timeline(stretches: Sequence[tuple[str, Sequence[tuple[int, int]]]]) -> Timeline:
    """Each phase gets its share of the samples, and one at least."""
    total = sum(len(samples) for _, samples in stretches)
    room = MOST_SAMPLES - len(stretches)
    spans: list[Span] = []
    drawn: list[tuple[int, int]] = []
    for name, samples in stretches:
        start = len(drawn)
        drawn += _thinned(samples, 1 + room * len(samples) // total)
        spans.append(Span(name, start, len(drawn)))
    return Timeline(tuple(a for a, _ in drawn), tuple(r for _, r in drawn), tuple(spans))


def _thinned(samples: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    count = min(count, len(samples))
    edges = [len(samples) * number // count for number in range(count + 1)]
    groups = [samples[start:end] for start, end in pairwise(edges)]
    return [(max(a for a, _ in group), max(r for _, r in group)) for group in groups]
