"""Latents and text are encoded once, in batches of one shape, and no batching shows in their values."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import trainer.sources
from autotune.device.virtual import VirtualSession
from autotune.testing.photos import list_photos
from autotune.testing.tiny import make_tiny
from autotune.units import GIB, KIB
from trainer.config.schema import TrainConfig
from trainer.data.cache import LatentCache
from trainer.data.images import load_pixels, read_size
from trainer.data.samples import Sample
from trainer.families.load import Components, load_components
from trainer.families.text import encode_prompts
from trainer.families.vae import encode_latents
from trainer.precision import Precision
from trainer.sources import LatentSource, TextSource, noise_for, timesteps_for

SQUARE, WIDE = (64, 64), (128, 64)
BUCKETS = {0: SQUARE, 1: WIDE, 2: SQUARE, 3: SQUARE, 4: WIDE}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # float32 sums in another order


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Components]:
    folder = tmp_path_factory.mktemp("tiny")
    return {f: load_components(make_tiny(folder / f, f), torch.float32) for f in ("sd1", "sdxl")}


@pytest.fixture
def device() -> Iterator[VirtualSession]:
    session = VirtualSession(GIB)
    with session.scope():
        yield session


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    pictures = list_photos()[: len(BUCKETS)]
    return [Sample(i, path, caption, read_size(path), 0) for i, (path, caption) in enumerate(pictures)]


def config_with(**settings: Any) -> TrainConfig:
    return TrainConfig(pretrained_model_name_or_path="base", train_data_dir="photos", **settings)


def latents_of(components: Components, device: VirtualSession, **settings: Any) -> LatentSource:
    return LatentSource(config_with(**settings), components, device, BUCKETS.__getitem__, LatentCache())


def text_of(components: Components, device: VirtualSession, **settings: Any) -> TextSource:
    return TextSource(config_with(**settings), components, device, Precision("no"))


def nothing(done: int, total: int) -> None:
    """No progress is shown."""


def allocated_bytes(device: VirtualSession) -> int:
    return device.statistics()["allocated_bytes.all.current"]


@pytest.mark.parametrize(
    ("vae_batch_size", "batches"),
    [(1, [(1, 64, 64)] * 3 + [(1, 64, 128)] * 2), (2, [(2, 64, 64), (1, 64, 64), (2, 64, 128)])],
)
def test_pictures_are_encoded_in_batches_of_one_bucket_and_at_most_vae_batch_size(
    components: dict[str, Components],
    device: VirtualSession,
    samples: list[Sample],
    monkeypatch: pytest.MonkeyPatch,
    vae_batch_size: int,
    batches: list[tuple[int, int, int]],
) -> None:
    seen: list[tuple[int, ...]] = []

    def spy(vae: Any, pixels: Tensor, generators: Any, **options: Any) -> Tensor:
        seen.append((pixels.shape[0], *pixels.shape[2:]))
        return encode_latents(vae, pixels, generators, **options)

    monkeypatch.setattr(trainer.sources, "encode_latents", spy)
    source = latents_of(components["sd1"], device, vae_batch_size=vae_batch_size)
    told: list[tuple[int, int]] = []
    source.fill(samples, lambda done, total: told.append((done, total)))
    assert seen == batches
    assert told[-1] == (5, 5)
    source.fill(samples, nothing)
    assert seen == batches, "what is there is not encoded again"


def test_the_vae_batch_does_not_show_in_the_latents(
    components: dict[str, Components], device: VirtualSession, samples: list[Sample]
) -> None:
    one, three = (latents_of(components["sd1"], device, vae_batch_size=size) for size in (1, 3))
    for source in (one, three):
        source.fill(samples, nothing)
    squares = [sample for sample in samples if BUCKETS[sample.index] == SQUARE]
    torch.testing.assert_close(one.latents(squares, 0), three.latents(squares, 0), **CLOSE)
    assert one.latents(squares, 0).shape == (3, 4, 8, 8)
    assert one.latents([samples[1]], 0).shape == (1, 4, 8, 16)


def test_the_vae_is_on_the_device_only_while_it_encodes(
    components: dict[str, Components], device: VirtualSession, samples: list[Sample]
) -> None:
    source = latents_of(components["sd1"], device)
    during: list[int] = []
    source.fill(samples, lambda done, total: during.append(allocated_bytes(device)))
    assert min(during) > 0
    assert allocated_bytes(device) == 0
    latents = source.latents([samples[0]], 0)
    assert allocated_bytes(device) == latents.numel() * 4


def test_a_vae_that_finds_no_room_leaves_the_device_as_it_was(
    components: dict[str, Components], device: VirtualSession, samples: list[Sample]
) -> None:
    weights_bytes = sum(-(-p.numel() * 4 // 512) * 512 for p in components["sd1"].vae.parameters())
    device.limit(weights_bytes + 64 * KIB)
    source = latents_of(components["sd1"], device)
    with pytest.raises(torch.OutOfMemoryError):
        source.fill(samples, nothing)
    assert allocated_bytes(device) == 0


def test_with_flip_aug_both_sides_are_cached_and_the_step_says_which_is_used(
    components: dict[str, Components], device: VirtualSession, samples: list[Sample]
) -> None:
    source = latents_of(components["sd1"], device, flip_aug=True)
    told: list[int] = []
    source.fill(samples[:1], lambda done, total: told.append(total))
    assert told[-1] == 2
    flips = {step: source.flip(samples[0], step) for step in range(20)}
    assert set(flips.values()) == {False, True}
    plain, mirrored = (next(step for step in flips if flips[step] is side) for side in (False, True))
    with device.host():
        pixels = load_pixels(samples[0], SQUARE, flip=True)[None]
    mean = components["sd1"].vae.encode(pixels).latent_dist.mean * components["sd1"].vae.config.scaling_factor
    off = {
        step: float((source.latents(samples[:1], step) - mean).detach().abs().mean()) for step in (plain, mirrored)
    }
    assert off[mirrored] < 0.2 * off[plain], "the mirrored picture's latent, but for the posterior's noise"


def test_without_a_cache_each_step_encodes_anew_and_the_split_does_not_show(
    components: dict[str, Components], device: VirtualSession, samples: list[Sample]
) -> None:
    source = latents_of(components["sd1"], device, cache_latents=False)
    squares = [sample for sample in samples if BUCKETS[sample.index] == SQUARE]
    together = source.latents(squares, 7)
    alone = torch.cat([source.latents([sample], 7) for sample in squares])
    torch.testing.assert_close(together, alone, **CLOSE)
    assert not torch.equal(together, source.latents(squares, 8)), "the posterior is drawn anew"
    assert len(source.cache) == 0


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_cached_text_equals_live_text_and_its_encoders_leave(
    components: dict[str, Components], device: VirtualSession, samples: list[Sample], family: str
) -> None:
    source = text_of(components[family], device, cache_text_encoder_outputs=True, network_train_unet_only=True)
    assert source.cached
    twice = [*samples[:2], samples[0]]
    told: list[tuple[int, int]] = []
    source.fill(twice, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)], "each caption once"
    assert allocated_bytes(device) == 0
    kept = source.conditioning(twice, 0)
    with torch.no_grad():
        live = encode_prompts(components[family], [sample.caption for sample in twice])
    torch.testing.assert_close(kept.hidden, live.hidden, **CLOSE)
    assert (kept.pooled is None) == (family == "sd1")
    if kept.pooled is not None:
        torch.testing.assert_close(kept.pooled, live.pooled, **CLOSE)


def test_text_is_never_cached_while_an_encoder_trains(
    components: dict[str, Components], device: VirtualSession
) -> None:
    assert not text_of(components["sd1"], device, cache_text_encoder_outputs=True).cached
    assert not text_of(components["sd1"], device, network_train_unet_only=True).cached


def test_dropped_captions_are_the_empty_caption(
    components: dict[str, Components], device: VirtualSession, samples: list[Sample]
) -> None:
    source = text_of(components["sd1"], device, caption_dropout_rate=1.0)
    with torch.no_grad():
        expected = encode_prompts(components["sd1"], [""]).hidden
    assert torch.equal(source.conditioning(samples[:1], 0).hidden.detach(), expected)


def test_noise_and_timesteps_depend_on_seed_step_and_sample_alone(samples: list[Sample]) -> None:
    config, like = config_with(seed=3), torch.empty(5, 4, 8, 8)
    noise = noise_for(config, samples, 9, like)
    assert torch.equal(noise[1:3], noise_for(config, samples[1:3], 9, like[1:3]))
    steps = timesteps_for(config, samples, 9, 1000)
    assert torch.equal(steps[1:3], timesteps_for(config, samples[1:3], 9, 1000))
    for other in (noise_for(config, samples, 10, like), noise_for(config_with(seed=4), samples, 9, like)):
        assert not torch.equal(noise, other)
    many = torch.cat([timesteps_for(config, samples, step, 1000) for step in range(400)])
    assert 0 <= int(many.min()) < 20
    assert 980 <= int(many.max()) < 1000


def test_noise_offset_moves_whole_channels(samples: list[Sample]) -> None:
    like = torch.empty(5, 4, 16, 16)
    plain, moved = (noise_for(config_with(noise_offset=offset), samples, 0, like) for offset in (0.0, 0.5))
    shift = moved - plain
    torch.testing.assert_close(shift, shift[:, :, :1, :1].expand_as(shift))
    assert float(shift.abs().mean()) > 0.1
