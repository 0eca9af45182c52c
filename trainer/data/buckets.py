"""Aspect buckets: the shapes pictures are trained at, by kohya's rules. Owns arithmetic on sizes only.

Pure: sizes in, sizes out. All sizes are (width, height) in pixels. Must never make a bucket whose area
exceeds the resolution's, because the memory of a step follows the area. Must never change a size in silence
where kohya would refuse it: `bucket_notes` says what was moved.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.errors import ConfigError
from trainer.config.schema import Size, TrainConfig

if TYPE_CHECKING:
    from trainer.data.samples import Dataset

_VAE_FACTOR = 8  # image pixels per latent pixel in every Stable Diffusion VAE


def bucket_list(resolution: Size, min_side: int, max_side: int, step: int) -> tuple[Size, ...]:
    """Every bucket for `resolution`, sorted: kohya sd-scripts' `make_bucket_resolutions`.

    For each width, a multiple of `step` in [min_side, max_side], the tallest height that keeps the area
    within the resolution's joins, with its transpose, and the largest square. 512x512 with 256, 1024 and 64
    gives 17.
    """
    area = _area(resolution)
    square = _floor(math.isqrt(area), step)
    found = {(square, square)}
    for width in range(min_side, max_side + 1, step):
        height = min(max_side, _floor(area // width, step))
        if height >= min_side:
            found |= {(width, height), (height, width)}
    return tuple(sorted(found))


def buckets_for(resolution: Size, config: TrainConfig) -> tuple[Size, ...]:
    """The bucket list of `resolution` under `config`'s limits, moved where the resolution asks for it.

    A resolution smaller than one step squared is its own and only bucket. Raises ConfigError when
    bucket_reso_steps is no positive multiple of 8.
    """
    step = _step(config)
    if _area(resolution) < step * step:
        return (resolution,)
    low, high = _limits(resolution, config)
    return _cached_list(resolution, low, high, step)


def assign_bucket(size: Size, resolution: Size, config: TrainConfig) -> Size:
    """The bucket a picture of `size` trains at for `resolution`.

    Without enable_bucket: the resolution. With it: a bucket of exactly its size if there is one, else the
    nearest aspect ratio. With bucket_no_upscale: the picture's own size, shrunk to the area when larger, and
    each side floored to the step. Raises ValueError for a picture that `too_small` names.
    """
    if not config.enable_bucket:
        return resolution
    if config.bucket_no_upscale and _area(resolution) >= _step(config) ** 2:
        return _own_bucket(size, _area(resolution), _step(config))
    buckets = buckets_for(resolution, config)
    if size in buckets:
        return size
    ratio = size[0] / size[1]
    return min(buckets, key=lambda bucket: abs(bucket[0] / bucket[1] - ratio))


def too_small(size: Size, config: TrainConfig) -> bool:
    """Whether bucket_no_upscale leaves no bucket for `size`: a side is shorter than one step."""
    return config.enable_bucket and config.bucket_no_upscale and min(size) < _step(config)


def assign_buckets(dataset: "Dataset", resolutions: Sequence[Size], config: TrainConfig) -> dict[int, Size]:
    """Each sample's bucket by sample index. Of several resolutions sample i trains at number i % count."""
    count = len(resolutions)
    return {
        sample.index: assign_bucket(sample.size, resolutions[sample.index % count], config)
        for sample in dataset.samples
    }


def worst_bucket(buckets: Iterable[Size]) -> Size:
    """The bucket that takes the most memory: the largest area, then the longest side, then the widest.

    Raises ValueError without buckets.
    """
    return max(buckets, key=lambda bucket: (_area(bucket), max(bucket), bucket[0]))


def bucket_notes(resolutions: Sequence[Size], config: TrainConfig) -> tuple[str, ...]:
    """One sentence for each limit that `buckets_for` moved, where kohya would round it or stop."""
    if not config.enable_bucket or config.bucket_no_upscale:
        return ()
    written = (config.min_bucket_reso, config.max_bucket_reso)
    notes = []
    for resolution in dict.fromkeys(resolutions):
        moved = _limits(resolution, config)
        if moved != written:
            shape = f"{resolution[0]}x{resolution[1]}"
            notes.append(
                f"buckets for {shape} use sides {moved[0]} to {moved[1]}, not {written[0]} to {written[1]}."
            )
    return tuple(notes)


def _limits(resolution: Size, config: TrainConfig) -> Size:
    """The shortest and longest side: outward to multiples of the step, and around the resolution itself."""
    step = _step(config)
    square = math.isqrt(_area(resolution))
    low = _floor(min(config.min_bucket_reso, *resolution, square), step)
    high = -(-max(config.max_bucket_reso, *resolution) // step) * step
    return max(low, step), high


@lru_cache(maxsize=256)
def _cached_list(resolution: Size, low: int, high: int, step: int) -> tuple[Size, ...]:
    return bucket_list(resolution, low, high, step)


def _own_bucket(size: Size, area: int, step: int) -> Size:
    """The picture's own shape within `area`. Of two ways to put a side on the step the truer ratio wins."""
    width, height = size
    if min(size) < step:
        raise ValueError(f"a {width}x{height} picture has a side below the bucket step {step}")
    if _area(size) <= area:
        return _floor(width, step), _floor(height, step)
    ratio = width / height
    by_width = _snap(math.sqrt(area * ratio), step)
    by_height = _snap(math.sqrt(area / ratio), step)
    candidates = [
        _within((_snap(by_height * ratio, step), by_height), area, step),
        _within((by_width, _snap(by_width / ratio, step)), area, step),
    ]
    return min(candidates, key=lambda bucket: abs(bucket[0] / bucket[1] - ratio))


def _within(bucket: Size, area: int, step: int) -> Size:
    """`bucket` with no side under one step, the other cut to the area: very long pictures stay usable."""
    width, height = (max(side, step) for side in bucket)
    if width * height <= area:
        return width, height
    if width >= height:
        return max(step, _floor(area // height, step)), height
    return width, max(step, _floor(area // width, step))


def _step(config: TrainConfig) -> int:
    step = config.bucket_reso_steps
    if step < _VAE_FACTOR or step % _VAE_FACTOR:
        raise ConfigError(f"bucket_reso_steps is {step}.", "Use a multiple of 8: 64, or 32 for SDXL.")
    return step


def _snap(side: float, step: int) -> int:
    """`side` to the nearest pixel, halves up, then down to the step: kohya's rounding."""
    return _floor(int(side + 0.5), step)


def _floor(value: int, step: int) -> int:
    return value // step * step


def _area(size: Size) -> int:
    return size[0] * size[1]
