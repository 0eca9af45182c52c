"""Does the program fit the card? The judgement over a dry run. Pure; must never call a failure of another kind a
lack of memory, or the other way round.

The null card took the context's low end from its free memory. So a program that ran out there would run out on any
such card. One that ran through fits where its peak, the context's high end and the scratch of NVIDIA's libraries
(which the null GPU can't see) are within the card; between the two it is too close to call.
"""

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from autotune.device.null.card import NullCard
from autotune.dryrun.run import DryRun
from autotune.dryrun.states import CardUse, OutOfMemory, use_by_card
from autotune.memory.forecast import COUNT_ERROR, FitVerdict
from autotune.memory.interval import Interval

_ABOUT_VALUES = re.compile(r"\b(nan|inf|infinite|finite|zero|division|loss)\b", re.IGNORECASE)


class Result(StrEnum):
    """The word for a dry run."""

    FITS = FitVerdict.FITS.value
    CLOSE = FitVerdict.CLOSE.value
    NO = FitVerdict.NO.value
    FAILED = "failed for another reason"


@dataclass(frozen=True)
class CardVerdict:
    """One card: what was used, and what the program needs there in all."""

    index: int
    card: NullCard
    use: CardUse
    need: Interval

    @property
    def fits(self) -> FitVerdict:
        """Whether a program that ran through fits the card."""
        return FitVerdict.FITS if self.need.high_bytes <= self.card.total_bytes else FitVerdict.CLOSE


@dataclass(frozen=True)
class Judgement:
    """The result, the cards, where memory ran out first (if it did), and what else must be said."""

    result: Result
    cards: tuple[CardVerdict, ...]
    out_of_memory: OutOfMemory | None
    notes: tuple[str, ...]


def judge(run: DryRun) -> Judgement:
    """The judgement over `run`."""
    cards = tuple(_card_verdict(run, index, use) for index, use in use_by_card(run.states).items())
    ooms = [oom for state in run.states for oom in state.ooms]
    ended_by_memory = any(state.ending and state.ending.is_memory for state in run.states)
    result = _result(run, cards, ended_by_memory, bool(ooms))
    return Judgement(result, cards, ooms[0] if ooms else None, tuple(_notes(run, result, cards, bool(ooms))))


def _card_verdict(run: DryRun, index: int, use: CardUse) -> CardVerdict:
    card = run.cards[index] if index < len(run.cards) else run.cards[0]
    low = use.reserved_bytes + use.processes * card.context_low_bytes
    scratch = round(COUNT_ERROR * use.reserved_bytes)
    high = use.reserved_bytes + scratch + use.processes * card.context_high_bytes
    return CardVerdict(index, card, use, Interval(low, high))


def _result(run: DryRun, cards: tuple[CardVerdict, ...], ended_by_memory: bool, ran_out: bool) -> Result:
    if run.status != 0:
        says_so = any("OutOfMemoryError" in line for line in run.last_lines)
        return Result.NO if ended_by_memory or (ran_out and says_so) else Result.FAILED
    if any(card.fits is not FitVerdict.FITS for card in cards):
        return Result.CLOSE
    return Result.FITS


def _notes(run: DryRun, result: Result, cards: tuple[CardVerdict, ...], ran_out: bool) -> list[str]:
    notes = []
    if not cards and result is not Result.FAILED:
        notes.append("the program used no CUDA device, or its Python can't be watched (-I, -S, -E)")
    if ran_out and run.status == 0:
        notes.append("the program ran out of memory, caught it and went on")
    if any(card.use.retries for card in cards):
        notes.append("the allocator had to give its cache back and retry: on a card that costs time")
    if any(card.use.processes > 1 for card in cards):
        notes.append("several processes share a card: their peaks are added up, though they need not coincide")
    if result is Result.FAILED:
        notes += _why(run)
    if run.unmodelled:
        names = ", ".join(sorted(run.unmodelled)[:5])
        notes.append(f"calls that the null GPU has no model of: {names}")
    return notes


def _why(run: DryRun) -> list[str]:
    ending = next((state.ending for state in run.states if state.ending), None)
    by = f"signal {signal.Signals(-run.status).name}" if run.status < 0 else f"exit status {run.status}"
    notes = [f"the program ended with {by}" + (f": {ending.kind}: {_first_line(ending.text)}" if ending else "")]
    if ending and _ABOUT_VALUES.search(ending.text):
        notes.append("every value read from a null card is zero: that may be why")
    return notes


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:200]
