"""The replay of an allocator's trace counts as the allocator does, and knows whose each byte was."""

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.memory.account import ACTIVATIONS, ADAPTERS, CATEGORIES, OTHER, WEIGHTS, WORKSPACE, Account, Span
from autotune.trial.ledger import Ledger
from autotune.trial.replay import MOST_SAMPLES, Journal, account_of
from autotune.units import KIB, MIB

SMALL, LARGE = 2 * MIB, 20 * MIB
BASE = 1 << 40


def event(action: str, address: int, size: int, mark: int = 1) -> dict[str, Any]:
    return {"action": action, "addr": BASE + address, "size": size, "user_metadata": f"{mark} phase"}


def freed(address: int, size: int, mark: int = 1) -> list[dict[str, Any]]:
    return [event("free_requested", address, size, mark), event("free_completed", address, size, mark)]


def ledger_after(*events: Mapping[str, Any]) -> Ledger:
    ledger = Ledger([])
    for one in events:
        ledger.apply(one)
    return ledger


def sizes(ledger: Ledger) -> dict[int, int]:
    return {address - BASE: block.size_bytes for address, block in ledger.live.items()}


def test_requests_are_rounded_to_512_bytes() -> None:
    ledger = ledger_after(event("segment_alloc", 0, SMALL), event("alloc", 0, 1), event("alloc", 512, 513))
    assert sizes(ledger) == {0: 512, 512: 1024}


@pytest.mark.parametrize(("rest", "taken"), [(MIB, LARGE), (MIB + 512, LARGE - MIB - 512)])
def test_a_large_block_keeps_a_rest_of_up_to_one_mebibyte(rest: int, taken: int) -> None:
    ledger = ledger_after(event("segment_alloc", 0, LARGE), event("alloc", 0, LARGE - rest))
    assert sizes(ledger) == {0: taken}


def test_a_small_block_keeps_no_rest() -> None:
    ledger = ledger_after(event("segment_alloc", 0, SMALL), event("alloc", 0, MIB))
    assert sizes(ledger) == {0: MIB}


def test_expandable_memory_is_split_to_the_byte_and_given_back_from_the_middle() -> None:
    ledger = ledger_after(
        event("segment_map", 0, LARGE),
        event("segment_map", LARGE, LARGE),
        event("alloc", 0, 2 * LARGE - KIB),
        *freed(0, 2 * LARGE - KIB),
        event("segment_unmap", LARGE, LARGE),
        event("alloc", 0, LARGE - KIB),
    )
    assert sizes(ledger) == {0: LARGE - KIB}


def test_what_is_freed_joins_its_free_neighbours_but_never_another_segment() -> None:
    half = LARGE // 2
    joined = ledger_after(
        event("segment_alloc", 0, LARGE),
        event("segment_alloc", LARGE, LARGE),
        event("alloc", 0, half),
        event("alloc", half, half),
        *freed(half, half),
        *freed(0, half),
        event("alloc", 0, LARGE),
    )
    assert sizes(joined) == {0: LARGE}


def test_memory_counts_as_free_when_it_is_asked_back_and_can_be_had_again_when_that_is_done() -> None:
    ledger = ledger_after(event("segment_alloc", 0, LARGE), event("alloc", 0, LARGE))
    asked = ledger.apply(event("free_requested", 0, LARGE))
    done = ledger.apply(event("free_completed", 0, LARGE))
    assert (asked.sign, done.sign) == (-1, 0)


def test_an_out_of_memory_changes_nothing() -> None:
    ledger = ledger_after(event("segment_alloc", 0, LARGE), {"action": "oom", "device_free": 5, "size": LARGE})
    assert ledger.apply(event("alloc", 0, LARGE)).sign == 1


def account_with(events: list[dict[str, Any]], journal: Journal, segments: Any = ()) -> Account:
    return account_of(segments, events, journal)


def test_the_parts_of_a_peak_are_whose_they_turned_out_to_be_later_and_sum_to_it() -> None:
    journal = Journal(phases=[("load", 1, 3), ("step", 3, 5)], workspaces=range(5, 6))
    journal.claims[2] += [(WEIGHTS, [BASE, BASE + 4 * MIB]), (ADAPTERS, [BASE + 4 * MIB])]
    events = [
        event("segment_alloc", 0, LARGE, 1),
        event("alloc", 0, 4 * MIB - 100, 1),
        event("alloc", 4 * MIB, 2 * MIB, 1),
        event("alloc", 6 * MIB, 3 * MIB, 3),
        event("alloc", 9 * MIB, 5 * MIB, 3),
        *freed(9 * MIB, 5 * MIB, 3),
        *freed(6 * MIB, 3 * MIB, 5),
    ]
    load, step = account_with(events, journal).phases
    nothing = dict.fromkeys(CATEGORIES, 0)
    held = {WEIGHTS: 4 * MIB - 100, ADAPTERS: 2 * MIB, OTHER: 100}
    assert load.parts == {**nothing, **held}
    assert step.parts == {**nothing, **held, WORKSPACE: 3 * MIB, ACTIVATIONS: 5 * MIB}
    assert step.peak_allocated_bytes == sum(step.parts.values()) == 14 * MIB
    assert (step.peak_reserved_bytes, step.cache_slack_bytes) == (LARGE, 6 * MIB)


def test_what_was_there_before_is_other_and_is_followed_too() -> None:
    blocks = [
        {"address": BASE, "size": 4 * MIB, "requested_size": 3 * MIB, "state": "active_allocated"},
        {"address": BASE + 4 * MIB, "size": 16 * MIB, "requested_size": 0, "state": "inactive"},
    ]
    segment = {"address": BASE, "total_size": LARGE, "segment_type": "large", "blocks": blocks}
    events = [event("alloc", 4 * MIB, 2 * MIB, 1), *freed(0, 4 * MIB, 2)]
    account = account_with(events, Journal(phases=[("first", 1, 2), ("second", 2, 3), ("third", 3, 4)]), [segment])
    assert [phase.peak_allocated_bytes for phase in account.phases] == [6 * MIB, 6 * MIB, 2 * MIB]
    assert account.phases[0].parts[OTHER] == 4 * MIB
    assert account.phases[2].peak_reserved_bytes == LARGE


def test_the_timeline_is_short_and_loses_no_peak() -> None:
    events = [event("segment_alloc", 0, LARGE, 1)]
    for number in range(3000):
        size = 10 * MIB if number == 1234 else MIB + 512
        events += [event("alloc", 0, size, 3), *freed(0, size, 3)]
    account = account_with(events, Journal(phases=[("load", 1, 2), ("wait", 2, 3), ("step", 3, 4)]))
    timeline = account.timeline
    assert len(timeline.allocated_bytes) == len(timeline.reserved_bytes) <= MOST_SAMPLES
    assert max(timeline.allocated_bytes) == 10 * MIB == account.peak.peak_allocated_bytes
    assert account.peak.phase == "step"
    assert timeline.spans[1:] == (Span("wait", timeline.spans[0].end, timeline.spans[2].start), timeline.spans[2])
    assert timeline.spans[-1].end == len(timeline.allocated_bytes)


def test_an_account_survives_json() -> None:
    events = [event("segment_alloc", 0, LARGE, 1), event("alloc", 0, 4 * MIB, 1)]
    account = account_with(events, Journal(phases=[("load", 1, 2)]))
    assert Account.from_json(account.to_json()) == account
