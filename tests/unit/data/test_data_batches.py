"""Logical batches keep every sample once, in an order the plan can't change; microbatches lose none."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.batches import batches_per_epoch, logical_batches, microbatches
from trainer.data.samples import Sample

SHAPES = st.sampled_from([(512, 512), (448, 576), (576, 448), (256, 1024)])


def samples_of(count: int) -> list[Sample]:
    return [Sample(index, Path(f"{index}.png"), "", (512, 512), 0) for index in range(count)]


@given(st.lists(SHAPES, max_size=60), st.integers(1, 9), st.integers(0, 2**40), st.integers(0, 5))
def test_every_sample_comes_once_and_only_the_last_batch_is_short(
    buckets: list[tuple[int, int]], effective_batch: int, seed: int, epoch: int
) -> None:
    batches = logical_batches(samples_of(len(buckets)), buckets, effective_batch, seed, epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(buckets)))
    assert all(len(batch) == effective_batch for batch in batches[:-1])
    assert len(batches) == batches_per_epoch(len(buckets), effective_batch)


@given(st.lists(SHAPES, min_size=1, max_size=60), st.integers(1, 9))
def test_as_few_batches_as_possible_mix_shapes(buckets: list[tuple[int, int]], effective_batch: int) -> None:
    batches = logical_batches(samples_of(len(buckets)), buckets, effective_batch, 1, 0)
    pure = [batch for batch in batches if len({buckets[index] for index in batch}) == 1]
    assert len(pure) >= sum(count // effective_batch for count in Counter(buckets).values())


def test_the_order_is_the_same_on_every_machine_and_differs_by_epoch_and_seed() -> None:
    buckets = [(512, 512)] * 6 + [(448, 576)] * 3
    first = logical_batches(samples_of(9), buckets, 2, 42, 1)
    assert first == [(4, 1), (7, 8), (2, 5), (3, 0), (6,)]
    assert first == logical_batches(samples_of(9), buckets, 2, 42, 1)
    assert first != logical_batches(samples_of(9), buckets, 2, 42, 2)
    assert first != logical_batches(samples_of(9), buckets, 2, 43, 1)


@given(st.lists(SHAPES, max_size=30), st.integers(1, 9))
def test_microbatches_hold_one_shape_and_lose_no_sample(shapes: list[tuple[int, int]], batch_size: int) -> None:
    parts = microbatches(range(len(shapes)), shapes.__getitem__, batch_size)
    assert sorted(index for part in parts for index in part) == list(range(len(shapes)))
    assert all(0 < len(part) <= batch_size for part in parts)
    assert all(len({shapes[index] for index in part}) == 1 for part in parts)


@given(st.lists(SHAPES, min_size=1, max_size=30))
def test_a_microbatch_of_the_whole_batch_makes_one_part_for_each_shape(
    shapes: list[tuple[int, int]],
) -> None:
    assert len(microbatches(range(len(shapes)), shapes.__getitem__, len(shapes))) == len(set(shapes))


@pytest.mark.parametrize("size", [0, -1])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="effective_batch is"):
        logical_batches(samples_of(1), [(512, 512)], size, 1, 0)
    with pytest.raises(ValueError, match="batch_size is"):
        microbatches([0], lambda _: (512, 512), size)


def test_a_missing_bucket_is_refused() -> None:
    with pytest.raises(ValueError):
        logical_batches(samples_of(2), [(512, 512)], 1, 1, 0)
