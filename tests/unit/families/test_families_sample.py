"""Sampling is the pipelines' own arithmetic on the modules in training, and leaves no trace."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline
from numpy import asarray
from torch import nn

from autotune.device.session import DeviceSession
from autotune.device.virtual import VirtualSession
from autotune.errors import ConfigError, ModelError
from trainer.families.denoise import predict_noise
from trainer.families.load import Components
from trainer.families.sample import sample_image
from trainer.families.sd import SD1, SDXL
from trainer.families.text import encode_prompts

both = pytest.mark.parametrize("family", ["sd1", "sdxl"])


class RecordingDevice:
    """A device that is the host, and remembers which modules it holds and held together."""

    def __init__(self, *resident: nn.Module) -> None:
        self.held = list(resident)
        self.together: list[tuple[str, ...]] = []
        self.held_when_emptied: list[list[nn.Module]] = []

    def place(self, thing: Any) -> Any:
        if isinstance(thing, nn.Module):
            self.held.append(thing)
            self.together.append(tuple(type(module).__name__ for module in self.held))
        return thing

    def evict(self, thing: Any) -> Any:
        if isinstance(thing, nn.Module) and thing in self.held:
            self.held.remove(thing)
        return thing

    def empty_cache(self) -> None:
        self.held_when_emptied.append(list(self.held))

    @contextmanager
    def host(self) -> Iterator[None]:
        yield


def _sample(components: Components, device: Any = None, **options: Any) -> Any:
    session: DeviceSession = device or RecordingDevice()
    return sample_image(components, "a photo of a cat", (80, 64), 4, 5, session, **options)


@both
def test_picture_equals_the_pipelines_own(tiny_components: Mapping[str, Components], family: str) -> None:
    components = tiny_components[family]
    scheduler = DDIMScheduler.from_config(
        components.scheduler.config, clip_sample=False, set_alpha_to_one=False, steps_offset=1
    )
    shared = {"unet": components.denoiser, "vae": components.vae, "scheduler": scheduler}
    texts = dict(zip(("text_encoder", "text_encoder_2"), components.text_encoders, strict=False))
    texts |= dict(zip(("tokenizer", "tokenizer_2"), components.tokenizers, strict=False))
    if family == "sd1":
        extra = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        pipeline: Any = StableDiffusionPipeline(**shared, **texts, **extra)
    else:
        pipeline = StableDiffusionXLPipeline(
            **shared, **texts, force_zeros_for_empty_prompt=False, add_watermarker=False
        )
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.randn(1, 4, 8, 10, generator=torch.Generator().manual_seed(5))
    expected = pipeline(
        "a photo of a cat", width=80, height=64, num_inference_steps=4, guidance_scale=7.5, latents=noise
    ).images[0]
    picture = _sample(components)
    assert picture.size == (80, 64)
    assert abs(asarray(picture).astype(int) - asarray(expected).astype(int)).max() <= 1


def test_cached_memory_of_training_and_of_sampling_is_never_reserved_at_once(
    tiny_components: Mapping[str, Components],
) -> None:
    components = tiny_components["sd1"]
    device = RecordingDevice(components.denoiser)
    _sample(components, device, resident=[components.denoiser])
    # with training off the device, after each turn, and again before it is back
    assert len(device.held_when_emptied) >= 2
    assert not any(device.held_when_emptied)
    assert device.held == [components.denoiser]


@both
def test_equal_seeds_give_equal_pictures_and_random_state_is_untouched(
    tiny_components: Mapping[str, Components], family: str
) -> None:
    components = tiny_components[family]
    before = torch.get_rng_state()
    one, two = _sample(components), _sample(components)
    assert torch.equal(torch.get_rng_state(), before)
    assert one.tobytes() == two.tobytes()
    other = sample_image(components, "a photo of a cat", (80, 64), 4, 6, RecordingDevice())  # type: ignore[arg-type]
    assert other.tobytes() != one.tobytes()


def test_modules_take_turns_and_end_where_they_were(tiny_components: Mapping[str, Components]) -> None:
    components = tiny_components["sdxl"]
    residents = [components.denoiser, *components.text_encoders]
    device = RecordingDevice(*residents)
    _sample(components, device, resident=residents)
    turns = [("CLIPTextModel",), ("CLIPTextModel", "CLIPTextModelWithProjection")]
    assert device.together[:4] == [*turns, ("UNet2DConditionModel",), ("AutoencoderKL",)]
    assert device.held == residents


def test_modules_end_where_they_were_after_a_failure(tiny_components: Mapping[str, Components]) -> None:
    components = tiny_components["sd1"]
    device = RecordingDevice(components.denoiser)

    def fail(done: int, total: int) -> None:
        raise torch.OutOfMemoryError(f"at {done} of {total}")

    components.denoiser.train()
    with pytest.raises(torch.OutOfMemoryError, match="at 1 of 4"):
        _sample(components, device, resident=[components.denoiser], progress=fail)
    assert device.held == [components.denoiser]
    assert components.denoiser.training
    components.denoiser.eval()


def test_each_part_keeps_its_own_mode(tiny_components: Mapping[str, Components]) -> None:
    components = tiny_components["sd1"]
    components.denoiser.train()
    components.denoiser.mid_block.eval()
    _sample(components)
    assert components.denoiser.training
    assert not components.denoiser.mid_block.training
    assert not components.vae.training
    components.denoiser.eval()


def test_sampling_gives_back_the_device_memory_it_took(tiny_components: Mapping[str, Components]) -> None:
    components = tiny_components["sdxl"]
    device = VirtualSession(1 << 30)
    with device.scope():
        device.place(components.denoiser)
        before = device.statistics()["allocated_bytes.all.current"]
        with torch.autocast("cpu", torch.bfloat16):
            picture = _sample(components, device, resident=[components.denoiser])
        del picture
        assert device.statistics()["allocated_bytes.all.current"] == before
        device.evict(components.denoiser)
        assert device.statistics()["allocated_bytes.all.current"] == 0


@pytest.mark.parametrize(("size", "steps"), [((60, 64), 4), ((64, 32), 4), ((64, 64), 0), ((64, 64), 1000)])
def test_impossible_samples_are_refused(
    tiny_components: Mapping[str, Components], size: tuple[int, int], steps: int
) -> None:
    with pytest.raises(ConfigError):
        sample_image(tiny_components["sd1"], "cat", size, steps, 0, RecordingDevice())  # type: ignore[arg-type]


def test_v_prediction_with_zero_terminal_snr_gives_a_finite_picture(
    tiny_components: Mapping[str, Components],
) -> None:
    base = tiny_components["sdxl"]
    scheduler = SD1.rule.schedule({"prediction_type": "v_prediction", "rescale_betas_zero_snr": True})
    components = Components(base.family, base.denoiser, base.vae, base.text_encoders, base.tokenizers, scheduler)
    assert len(set(_sample(components).tobytes())) > 10  # decoding checks that pixels are finite


def test_time_ids_are_height_first() -> None:
    ids = SDXL.size_ids((640, 480), (16, 32), (512, 384))
    assert ids.tolist() == [[480, 640, 16, 32, 384, 512]]
    assert ids.dtype == torch.float32


def test_target_is_noise_or_velocity() -> None:
    latents, noise, steps = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8), torch.tensor([10, 900])
    assert SD1.rule.target(SD1.rule.schedule({}), latents, noise, steps) is noise
    velocity = SD1.rule.schedule({"prediction_type": "v_prediction"})
    kept = velocity.alphas_cumprod[steps].reshape(2, 1, 1, 1)
    expected = kept.sqrt() * noise - (1 - kept).sqrt() * latents
    torch.testing.assert_close(SD1.rule.target(velocity, latents, noise, steps), expected)
    with pytest.raises(ModelError, match="predicts 'sample'"):
        SD1.rule.target(SD1.rule.schedule({"prediction_type": "sample"}), latents, noise, steps)


@torch.no_grad()
def test_sdxl_prediction_depends_on_pooled_text_and_time_ids(
    tiny_components: Mapping[str, Components],
) -> None:
    components = tiny_components["sdxl"]
    cat, dog = (encode_prompts(components, [caption]) for caption in ("a cat", "a dog"))
    latents, step = torch.randn(1, 4, 8, 8), torch.tensor([500])
    ids = SDXL.size_ids((64, 64), (0, 0), (64, 64))
    plain = predict_noise(components, latents, step, cat, ids)
    mixed = type(cat)(cat.hidden, dog.pooled)
    assert not torch.equal(plain, predict_noise(components, latents, step, mixed, ids))
    assert not torch.equal(plain, predict_noise(components, latents, step, cat, ids * 2))
