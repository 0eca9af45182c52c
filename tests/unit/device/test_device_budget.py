"""The budget: what is there, less others, less a reserve; and PyTorch's share of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.device.budget import (
    DISPLAY_RESERVE_BYTES,
    HEADLESS_RESERVE_BYTES,
    SMALLEST_CONTEXT_BYTES,
    WDDM_RESERVE_BYTES,
    Budget,
    Reserve,
    choose_reserve,
    make_budget,
    memory_fraction,
    plain_budget,
    reserved_cap,
)
from autotune.device.nvml import MemoryUse, ProcessUse
from autotune.errors import DeviceError
from autotune.units import GIB, MIB

CARD = MemoryUse(12 * GIB, 10 * GIB, 12 * GIB - 10 * GIB - 400 * MIB, 400 * MIB, "nvml")
OTHERS = 2 * GIB - 400 * MIB
KEPT = Reserve(512 * MIB, "a display is active")


def test_the_budget_is_total_less_driver_less_others_less_reserve() -> None:
    budget = make_budget("cuda:0", CARD, KEPT)
    assert budget.bytes == 10 * GIB - 512 * MIB
    assert budget.bytes == sum((12 * GIB, -400 * MIB, -OTHERS, -512 * MIB))
    assert (budget.driver_bytes, budget.others_bytes, budget.reserve_bytes) == (400 * MIB, OTHERS, 512 * MIB)


def test_one_line_explains_it() -> None:
    assert make_budget("cuda:0", CARD, KEPT).explain() == (
        "budget 9,728 MiB = 12,288 MiB total - 400 MiB kept by the driver - 1,648 MiB used by others"
        " - 512 MiB in reserve (a display is active)"
    )
    assert make_budget("cuda:0", CARD, KEPT, limit_bytes=6 * GIB).explain().endswith("limited to 6,144 MiB")


def test_our_own_processes_are_not_others() -> None:
    uses = (ProcessUse(7, GIB), ProcessUse(8, None), ProcessUse(9, 100 * MIB))
    budget = make_budget("cuda:0", CARD, KEPT, uses, frozenset({7, 8}))
    assert budget.others_bytes == OTHERS - GIB


def test_without_per_process_numbers_everything_used_counts_as_others() -> None:
    uses = (ProcessUse(7, None), ProcessUse(8, None))
    assert make_budget("cuda:0", CARD, KEPT, uses).others_bytes == OTHERS


def test_a_limit_replaces_the_reserve() -> None:
    budget = make_budget("cuda:0", CARD, KEPT, limit_bytes=10 * GIB)
    assert (budget.bytes, budget.reserve_bytes, budget.notes) == (10 * GIB, 0, ())


def test_a_limit_never_raises_the_budget_above_what_is_there_and_says_so() -> None:
    budget = make_budget("cuda:0", CARD, KEPT, limit_bytes=11 * GIB)
    assert budget.bytes == 10 * GIB
    assert budget.notes == ("The limit of 11,264 MiB is above the 10,240 MiB there are.",)
    assert plain_budget(2 * GIB, 3 * GIB).bytes == 2 * GIB
    assert plain_budget(2 * GIB, 3 * GIB).notes


def test_a_card_that_is_taken_is_an_error_with_its_numbers() -> None:
    full = MemoryUse(8 * GIB, 100 * MIB, 8 * GIB - 100 * MIB, None, "nvml")
    with pytest.raises(DeviceError, match="8,192 MiB total, 8,092 MiB in use, 512 MiB in reserve"):
        make_budget("cuda:0", full, KEPT)


def test_unknown_memory_needs_a_limit() -> None:
    with pytest.raises(DeviceError, match="--vram-limit"):
        make_budget("cuda:0", MemoryUse(), KEPT)
    budget = make_budget("cuda:0", MemoryUse(), KEPT, limit_bytes=GIB)
    assert budget.bytes == GIB
    assert "taken as it is" in budget.notes[0]


def test_memory_read_through_cuda_does_not_charge_the_readers_context() -> None:
    read = MemoryUse(12 * GIB, 11 * GIB, GIB, None, "cuda")
    budget = make_budget("cuda:0", read, KEPT)
    assert budget.others_bytes == GIB - SMALLEST_CONTEXT_BYTES
    assert "process with a CUDA context" in budget.notes[0]


def test_the_reserve_grows_with_a_display_and_most_where_memory_is_paged() -> None:
    assert choose_reserve(False, False).bytes == choose_reserve(None, False).bytes == HEADLESS_RESERVE_BYTES
    assert choose_reserve(True, False).bytes == DISPLAY_RESERVE_BYTES > HEADLESS_RESERVE_BYTES
    assert choose_reserve(True, True).bytes == WDDM_RESERVE_BYTES > DISPLAY_RESERVE_BYTES


def test_a_device_of_ones_own_is_all_budget() -> None:
    assert plain_budget(2 * GIB) == Budget(2 * GIB, 2 * GIB)
    assert plain_budget(2 * GIB).explain() == "budget 2,048 MiB = 2,048 MiB total"


def test_the_context_is_taken_off_before_pytorch_is_capped() -> None:
    assert reserved_cap(6 * GIB, 300 * MIB) == 6 * GIB - 300 * MIB
    with pytest.raises(DeviceError, match="used up by the CUDA context"):
        reserved_cap(300 * MIB, 300 * MIB)


@given(st.integers(1 * GIB, 200 * GIB), st.floats(0.0001, 1.5))
def test_the_fraction_never_allows_more_than_the_cap_nor_wastes_a_block(total: int, share: float) -> None:
    cap = int(total * share)
    fraction = memory_fraction(cap, total)
    allowed = math.floor(fraction * total)  # what PyTorch makes of it
    assert 0 <= fraction < 1  # 1.0 would mean no limit
    assert allowed <= cap
    assert min(cap, total) - allowed <= 512
