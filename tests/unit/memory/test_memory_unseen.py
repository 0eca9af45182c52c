"""What the null GPU can't see is added once, where it exists, and never more than its physical bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.device.catalogue import load_catalogue
from autotune.memory.interval import Interval
from autotune.memory.unseen import (
    ATTENTION,
    CACHE_SLACK,
    CONTEXT,
    CONVOLUTION,
    Attention,
    Convolution,
    Metric,
    forecast_interval,
    reserved_part,
    unseen_parts,
)
from autotune.units import MIB

CARD = load_catalogue()[0]
TENSORS = st.integers(1, 1 << 32)
CONVOLUTIONS = st.lists(st.builds(Convolution, TENSORS, TENSORS, TENSORS), max_size=5)
ATTENTIONS = st.lists(
    st.builds(Attention, st.integers(1, 8), st.integers(1, 32), st.integers(1, 8192), st.integers(8, 256)),
    max_size=3,
)
CAPABILITIES = st.sampled_from([(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("max_memory_allocated (inferred), GiB rounded to 0.01", Metric.ALLOCATED),
        ("max_memory_reserved", Metric.RESERVED),
        ("nvidia-smi", Metric.PROCESS),
        ("process in use", Metric.PROCESS),
    ],
)
def test_metrics_are_read_from_the_words_of_published_rows(text: str, metric: Metric) -> None:
    assert Metric.parse(text) is metric


def test_a_metric_nobody_knows_is_refused_with_those_known() -> None:
    with pytest.raises(ValueError, match="max_memory_reserved"):
        Metric.parse("peak RSS")


@given(st.sampled_from(Metric), CAPABILITIES, CONVOLUTIONS, ATTENTIONS)
def test_the_context_counts_for_the_process_only(
    metric: Metric, capability: tuple[int, int], convolutions: list[Convolution], attentions: list[Attention]
) -> None:
    parts = unseen_parts(metric, CARD.context, capability, convolutions, attentions)
    names = [part.name for part in parts]
    assert (CONTEXT in names) == (metric is Metric.PROCESS)
    assert CACHE_SLACK not in names or metric is not Metric.ALLOCATED
    assert len(set(names)) == len(names)
    assert all(part.basis and part.interval.high_bytes > 0 for part in parts)


@given(CAPABILITIES, CONVOLUTIONS, ATTENTIONS)
def test_scratch_of_operators_does_not_add_up(
    capability: tuple[int, int], convolutions: list[Convolution], attentions: list[Attention]
) -> None:
    parts = unseen_parts(Metric.ALLOCATED, CARD.context, capability, convolutions, attentions)
    assert len(parts) <= 1
    largest = max((one.layout_copy_bytes for one in convolutions), default=0)
    if capability[0] in (9, 10):
        largest = max(largest, *(one.gradient_scratch_bytes for one in attentions), 0)
    assert sum(part.interval.high_bytes for part in parts) == largest
    assert all(part.interval.low_bytes == 0 for part in parts)


@pytest.mark.parametrize(
    ("capability", "seen"), [((8, 9), True), ((9, 0), False), ((10, 0), False), ((12, 0), True)]
)
def test_attention_is_unseen_only_where_cudnn_comes_first(capability: tuple[int, int], seen: bool) -> None:
    parts = unseen_parts(Metric.ALLOCATED, CARD.context, capability, (), [Attention(1, 24, 4096, 128)])
    assert (ATTENTION not in {part.name for part in parts}) == seen


@given(TENSORS)
def test_a_model_without_convolutions_or_cudnn_attention_is_seen_whole(counted: int) -> None:
    parts = unseen_parts(Metric.RESERVED, CARD.context, (8, 6))
    assert parts == ()
    assert forecast_interval(counted, parts) == Interval.exactly(counted)


@given(st.integers(0, 1 << 33))
def test_segments_add_at_most_what_the_allocator_rounds_up(scratch: int) -> None:
    most = reserved_part(Interval(0, scratch)).interval.high_bytes
    if scratch == 0:
        assert most == 0
    elif scratch < 10 * MIB:
        assert scratch + most == 20 * MIB
    else:
        assert most == 2 * MIB


def test_a_convolution_may_copy_each_of_its_tensors_once() -> None:
    parts = unseen_parts(Metric.ALLOCATED, CARD.context, (8, 6), [Convolution(10, 20, 30), Convolution(1, 1, 1)])
    assert [(part.name, part.interval) for part in parts] == [(CONVOLUTION, Interval(0, 60))]
