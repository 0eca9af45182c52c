"""The shared tables hold what a trial on the null GPU gives, and say that it is a forecast."""

import json
from pathlib import Path

import pytest

from autotune.device.catalogue import find_card
from autotune.ladder.plan import BATCH_SIZE, GRADIENT_CHECKPOINTING
from autotune.store.directory import DirectoryStore
from bench.forecast_tables import BATCHES, CARDS, DATA, FAMILIES, Cell, config_of, largest, markdown
from bench.null_peaks import Peaks, Stack

FOLDER = Path(__file__).parents[3] / "profiles" / "forecast"


@pytest.fixture(scope="module")
def cells():
    table = json.loads((FOLDER / DATA).read_text())
    assert table["evidence"] == "forecast"
    return [Cell(**cell) for cell in table["cells"]]


def test_every_card_and_family_is_there_with_and_without_checkpointing(cells):
    have = {(cell.family, cell.card, cell.gradient_checkpointing) for cell in cells}
    assert have == {(family, card, on) for family in FAMILIES for card in CARDS for on in (False, True)}
    assert len(CARDS) >= 12
    assert {cell.evidence for cell in cells} == {"forecast"}


def test_the_page_is_that_of_the_numbers(cells):
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == markdown(cells)


def test_a_store_of_profiles_passes_the_tables_over():
    assert DirectoryStore(FOLDER.parent).list().notes == ()


def test_more_memory_never_fits_less_and_checkpointing_never_costs_a_batch(cells):
    by_key = {(cell.family, cell.card, cell.gradient_checkpointing): cell for cell in cells}
    for (family, card, on), cell in by_key.items():
        assert cell.largest_batch <= cell.largest_batch_perhaps
        assert on or cell.largest_batch <= by_key[family, card, True].largest_batch
        for other in CARDS:
            if _is_larger(other, card):
                assert by_key[family, other, on].largest_batch >= cell.largest_batch


def test_a_sample_of_the_table_comes_out_the_same_when_it_is_tried_again(cells, null_gpu):
    sample = next(c for c in cells if c.family == "sd1" and c.card == "rtx-3070-8gb" and c.gradient_checkpointing)
    peaks = Peaks(config_of("sd1"), Stack(find_card(sample.card).compute_capability))
    try:
        plan = peaks.job().recipe.plan.replace(GRADIENT_CHECKPOINTING, True)
        again = peaks.need_bytes(plan.replace(BATCH_SIZE, sample.counted_batch))
    finally:
        peaks.close()
    assert again == pytest.approx(sample.counted_reserved_bytes, rel=0.005)  # torch may be a later one


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 12, 63, 64, 100])
def test_bisection_finds_the_largest_batch_of_the_list(limit):
    asked = []

    def fits(batch):
        asked.append(batch)
        return batch <= limit

    assert largest(fits) == max((batch for batch in BATCHES if batch <= limit), default=0)
    assert len(asked) == len(set(asked)) <= 5


def _is_larger(card, other):
    one, two = find_card(card), find_card(other)
    return one.compute_capability == two.compute_capability and one.total_bytes > two.total_bytes
