"""The speed bench asks about every size of one architecture, and says where a limit was not kept."""

import os
from dataclasses import replace

import pytest

from autotune.device.catalogue import find_card, load_catalogue
from autotune.units import GIB
from bench.forecast_speed import CAPABILITY, Timing, cards_of_one_architecture, kept, resident_bytes

GOOD = Timing("sdxl", cold_s=59.0, cold_cpu_s=80.0, cached_s=0.9, host_bytes=5 * GIB, cards=25)


def test_every_size_of_the_architecture_is_asked_once() -> None:
    sizes = [find_card(slug).total_bytes for slug in cards_of_one_architecture()]
    assert sorted(sizes) == sorted({c.total_bytes for c in load_catalogue() if c.compute_capability == CAPABILITY})


@pytest.mark.parametrize(
    "change", [{"cold_s": 61.0}, {"cached_s": 1.1}, {"host_bytes": 7 * GIB}, {"family": "sd1", "cold_s": 31.0}]
)
def test_each_limit_counts(change: dict[str, object]) -> None:
    assert kept(GOOD)
    assert not kept(replace(GOOD, **change))  # type: ignore[arg-type]


def test_what_this_process_holds_is_counted_and_a_process_that_is_gone_holds_nothing() -> None:
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**22 + 1) == 0  # above every pid
