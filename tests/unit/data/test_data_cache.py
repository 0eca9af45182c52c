"""A latent is found again only for the same bytes, bucket, flip, VAE and type."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autotune.errors import DataError
from trainer.data.cache import LatentCache
from trainer.data.samples import Sample

Draw = Callable[..., Path]


@pytest.fixture
def sample(draw: Draw) -> Sample:
    return Sample(0, draw("a.png"), "", (64, 48), 0)


def age(path: Path, seconds: int) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_latent_comes_back_under_its_key(sample: Sample) -> None:
    cache, latent = LatentCache(), torch.ones(4, 8, 8)
    key = cache.key(sample, (64, 64), False, "vae")
    assert key not in cache
    cache.put(key, latent)
    assert cache.get(cache.key(sample, (64, 64), False, "vae")) is latent
    assert (len(cache), cache.size_bytes) == (1, 4 * 8 * 8 * 4)


def test_everything_that_decides_a_latent_is_in_its_key(sample: Sample) -> None:
    cache = LatentCache()
    keys = {
        cache.key(sample, (64, 64), False, "vae"),
        cache.key(sample, (64, 128), False, "vae"),
        cache.key(sample, (64, 64), True, "vae"),
        cache.key(sample, (64, 64), False, "other vae"),
        cache.key(sample, (64, 64), False, "vae", "float16"),
    }
    assert len(keys) == 5


def test_an_edited_picture_is_never_served_its_old_latent(sample: Sample) -> None:
    cache = LatentCache()
    before = cache.key(sample, (64, 64), False, "vae")
    cache.put(before, torch.ones(1))
    data = bytearray(sample.path.read_bytes())
    stat = sample.path.stat()
    data[-20] ^= 1
    sample.path.write_bytes(data)
    os.utime(sample.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = cache.key(sample, (64, 64), False, "vae")
    assert after != before
    with pytest.raises(DataError, match="was changed after its latent was cached"):
        cache.get(after)


def test_two_copies_of_a_picture_share_one_latent(sample: Sample, tmp_path: Path) -> None:
    copy = tmp_path / "copy.png"
    copy.write_bytes(sample.path.read_bytes())
    cache = LatentCache()
    other = Sample(1, copy, "", (64, 48), 0)
    assert cache.key(sample, (64, 64), False, "v") == cache.key(other, (64, 64), False, "v")


def test_a_picture_moved_away_while_training_keeps_its_latent(sample: Sample) -> None:
    cache = LatentCache()
    key = cache.key(sample, (64, 64), False, "v")
    sample.path.rename(sample.path.with_name("moved.png"))
    assert cache.key(sample, (64, 64), False, "v") == key


def test_a_picture_that_was_never_read_and_is_gone_is_named(sample: Sample) -> None:
    sample.path.unlink()
    with pytest.raises(DataError, match=r"a\.png can't be read"):
        LatentCache().key(sample, (64, 64), False, "v")


def test_a_file_left_alone_is_read_once(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[Path] = []
    monkeypatch.setattr("trainer.data.cache.image_digest", lambda path: readings.append(path) or "digest")
    monkeypatch.setattr("trainer.data.cache.time.time_ns", lambda: sample.path.stat().st_ctime_ns + 3 * 10**9)
    cache = LatentCache()
    for _ in range(3):
        cache.key(sample, (64, 64), False, "v")
    assert len(readings) == 1
