"""Logical batches and their microbatches: which samples make one optimizer step, and how they are split.

Owns the order of an epoch and the split by shape. Pure. Must never let the batch size of a plan change which
samples a logical batch holds: only the recipe (its buckets and effective batch), the seed and the epoch may.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

from trainer.config.schema import Size
from trainer.data.samples import Sample
from trainer.data.seeds import sample_seed

LogicalBatch = tuple[int, ...]
Key = TypeVar("Key", bound=Hashable)


def logical_batches(
    samples: Sequence[Sample], buckets_of_recipe: Sequence[Size], effective_batch: int, seed: int, epoch: int
) -> list[LogicalBatch]:
    """The logical batches of one epoch as tuples of sample indices, in training order.

    `buckets_of_recipe` holds each sample's bucket at the resolution the user wrote, in the order of
    `samples`. Batches of one bucket are cut first; what is left over in all buckets is joined, so that
    every batch has exactly `effective_batch` samples but the last, which may be smaller. Every sample comes
    once. Equal arguments give equal batches. Raises ValueError when `effective_batch` is below 1 or there
    is not one bucket for each sample.
    """
    _require_positive("effective_batch", effective_batch)
    bucket_of = {sample.index: size for sample, size in zip(samples, buckets_of_recipe, strict=True)}
    groups = _group(_shuffle(bucket_of, seed, epoch, "sample order"), bucket_of.__getitem__)
    full, left_over = _cut(list(groups.values()), effective_batch)
    mixed = _chunks(left_over, effective_batch)
    short = [mixed.pop()] if mixed and len(mixed[-1]) < effective_batch else []
    return [*_shuffle_batches(full + mixed, seed, epoch), *short]


def batches_per_epoch(sample_count: int, effective_batch: int) -> int:
    """How many logical batches an epoch has: optimizer steps, whatever the plan."""
    return -(-sample_count // effective_batch)


def microbatches(
    logical_batch: Sequence[int], bucket_of: Callable[[int], Size], batch_size: int
) -> list[tuple[int, ...]]:
    """`logical_batch` split into microbatches of one shape and at most `batch_size` samples each.

    `bucket_of` gives a sample's bucket at the plan's resolution. Sizes may differ; no sample is lost or
    repeated. Raises ValueError when `batch_size` is below 1.
    """
    _require_positive("batch_size", batch_size)
    groups = _group(logical_batch, bucket_of)
    return [chunk for members in groups.values() for chunk in _chunks(members, batch_size)]


def _cut(groups: Sequence[Sequence[int]], size: int) -> tuple[list[LogicalBatch], list[int]]:
    """Full chunks of `size` within each group, and what is left over, still in order of groups."""
    whole = [len(members) // size * size for members in groups]
    full = [_chunks(members[:count], size) for members, count in zip(groups, whole, strict=True)]
    rest = [members[count:] for members, count in zip(groups, whole, strict=True)]
    return list(chain.from_iterable(full)), list(chain.from_iterable(rest))


def _group(indices: Sequence[int], key_of: Callable[[int], Key]) -> dict[Key, list[int]]:
    groups: defaultdict[Key, list[int]] = defaultdict(list)
    for index in indices:
        groups[key_of(index)].append(index)
    return groups


def _chunks(indices: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(indices[start : start + size]) for start in range(0, len(indices), size)]


def _shuffle(indices: Iterable[int], seed: int, epoch: int, purpose: str) -> list[int]:
    """`indices` in the order of their seeds: unlike random.shuffle, the same in every Python version."""
    return sorted(indices, key=lambda index: (sample_seed(seed, epoch, index, purpose), index))


def _shuffle_batches(batches: Sequence[LogicalBatch], seed: int, epoch: int) -> list[LogicalBatch]:
    return [batches[place] for place in _shuffle(range(len(batches)), seed, epoch, "batch order")]


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}: it must be at least 1")
