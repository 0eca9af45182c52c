"""Buckets follow kohya's rules, never exceed the target area and never divide by zero."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ConfigError
from trainer.config.schema import TrainConfig
from trainer.data.buckets import (
    assign_bucket,
    assign_buckets,
    bucket_list,
    bucket_notes,
    buckets_for,
    too_small,
    worst_bucket,
)
from trainer.data.samples import Dataset, Sample

SIDES = st.integers(1, 6000)
SIZES = st.tuples(SIDES, SIDES)
RESOLUTIONS = st.sampled_from([(256, 256), (448, 448), (512, 512), (512, 768), (640, 384), (1024, 1024)])


def config_of(**values: Any) -> TrainConfig:
    return TrainConfig(pretrained_model_name_or_path="m", train_data_dir="d", **{"enable_bucket": True, **values})


def dataset_of(*sizes: tuple[int, int]) -> Dataset:
    return Dataset(tuple(Sample(i, Path(f"{i}.png"), "", size, 0) for i, size in enumerate(sizes)), ())


@pytest.mark.parametrize(
    ("side", "longest", "step", "count", "smallest_share"),
    [
        (256, 1024, 64, 1, 1.0),
        (384, 1024, 64, 7, None),
        (448, 1024, 64, 11, 0.81),
        (512, 1024, 64, 17, 0.81),
        (640, 1024, 64, 17, None),
        (768, 1024, 64, 19, 0.44),
        (1024, 1024, 64, 25, 0.25),
        (1024, 2048, 64, 41, 0.5),
        (1024, 2048, 32, 81, None),
    ],
)
def test_the_list_has_as_many_buckets_as_kohyas(
    side: int, longest: int, step: int, count: int, smallest_share: float | None
) -> None:
    buckets = bucket_list((side, side), 256, longest, step)
    assert len(buckets) == len(set(buckets)) == count
    assert max(w * h for w, h in buckets) == side * side
    if smallest_share is not None:
        assert min(w * h for w, h in buckets) / side**2 == pytest.approx(smallest_share, abs=0.007)


@given(SIZES, RESOLUTIONS, st.booleans(), st.sampled_from([32, 64]))
def test_no_bucket_is_larger_than_the_resolution_or_off_the_step(
    size: tuple[int, int], resolution: tuple[int, int], no_upscale: bool, step: int
) -> None:
    config = config_of(bucket_no_upscale=no_upscale, bucket_reso_steps=step)
    if too_small(size, config):
        return
    width, height = assign_bucket(size, resolution, config)
    assert width * height <= resolution[0] * resolution[1]
    assert width % step == height % step == 0
    assert min(width, height) >= step


@given(SIZES, RESOLUTIONS)
def test_without_upscaling_a_bucket_never_exceeds_the_picture(
    size: tuple[int, int], resolution: tuple[int, int]
) -> None:
    config = config_of(bucket_no_upscale=True)
    if too_small(size, config):
        return
    bucket = assign_bucket(size, resolution, config)
    assert bucket[0] <= size[0]
    assert bucket[1] <= size[1]


@given(SIZES, RESOLUTIONS)
def test_the_nearest_aspect_ratio_is_taken(size: tuple[int, int], resolution: tuple[int, int]) -> None:
    config = config_of()
    buckets = buckets_for(resolution, config)
    taken = assign_bucket(size, resolution, config)
    ratio = size[0] / size[1]
    assert abs(taken[0] / taken[1] - ratio) == min(abs(w / h - ratio) for w, h in buckets) or taken == size


def test_a_picture_of_exactly_a_buckets_size_takes_that_bucket() -> None:
    config = config_of(max_bucket_reso=2048)
    for bucket in buckets_for((1024, 1024), config):
        assert assign_bucket(bucket, (1024, 1024), config) == bucket


def test_without_buckets_every_picture_takes_the_resolution() -> None:
    assert assign_bucket((60, 40), (512, 768), config_of(enable_bucket=False)) == (512, 768)


@pytest.mark.parametrize("size", [(60, 40), (1024, 50), (63, 900)])
def test_pictures_smaller_than_a_step_are_named_not_divided_by_zero(size: tuple[int, int]) -> None:
    config = config_of(bucket_no_upscale=True)
    assert too_small(size, config)
    with pytest.raises(ValueError, match="bucket step 64"):
        assign_bucket(size, (512, 512), config)
    assert not too_small(size, config_of())


def test_a_very_long_picture_keeps_one_step_of_height() -> None:
    config = config_of(bucket_no_upscale=True)
    assert assign_bucket((5000, 70), (512, 512), config) == (4096, 64)
    assert assign_bucket((70, 5000), (512, 512), config) == (64, 4096)


def test_without_upscaling_a_small_picture_is_floored_and_a_large_one_shrunk() -> None:
    config = config_of(bucket_no_upscale=True)
    assert assign_bucket((400, 300), (512, 512), config) == (384, 256)
    assert assign_bucket((3000, 2000), (512, 512), config) == (576, 384)
    assert assign_bucket((1999, 900), (512, 512), config) == (704, 320)


def test_a_smaller_resolution_moves_the_shortest_side_down_with_a_note() -> None:
    config = config_of(min_bucket_reso=512)
    assert buckets_for((256, 256), config) == ((256, 256),)
    assert bucket_notes([(256, 256)], config) == ("buckets for 256x256 use sides 256 to 1024, not 512 to 1024.",)
    assert bucket_notes([(512, 512)], config) == ()


def test_a_resolution_above_the_longest_side_moves_it_up_with_a_note() -> None:
    config = config_of(resolution=((1536, 1536),))
    assert (1536, 1536) in buckets_for((1536, 1536), config)
    assert "256 to 1536" in bucket_notes(config.resolution, config)[0]


def test_a_resolution_below_one_step_is_its_own_bucket() -> None:
    config = config_of(bucket_no_upscale=True)
    assert buckets_for((32, 32), config) == ((32, 32),)
    assert assign_bucket((500, 400), (32, 32), config) == (32, 32)


@pytest.mark.parametrize("step", [4, 20])
def test_a_step_the_vae_cannot_take_is_refused(step: int) -> None:
    with pytest.raises(ConfigError, match=f"bucket_reso_steps is {step}"):
        buckets_for((512, 512), config_of(bucket_reso_steps=step))


def test_several_resolutions_take_turns_by_sample() -> None:
    dataset = dataset_of(*[(600, 600)] * 5)
    buckets = assign_buckets(dataset, [(512, 512), (256, 256)], config_of())
    assert list(buckets.values()) == [(512, 512), (256, 256), (512, 512), (256, 256), (512, 512)]


def test_the_worst_bucket_has_the_largest_area_then_the_longest_side() -> None:
    assert worst_bucket([(448, 576), (512, 512), (448, 512)]) == (512, 512)
    assert worst_bucket([(512, 512), (1024, 256), (256, 1024)]) == (1024, 256)
