"""Tiny models are reproducible, healthy in every precision, and shaped like the real ones in memory."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from autotune.device.virtual import VirtualSession
from autotune.testing.tiny import make_tiny
from trainer.families.denoise import predict_noise
from trainer.families.load import Components, load_components
from trainer.families.sd import SDXL
from trainer.families.text import encode_prompts
from trainer.families.vae import decode_latents, encode_latents

both = pytest.mark.parametrize("family", ["sd1", "sdxl"])


@both
def test_equal_seeds_give_equal_files_and_random_state_is_untouched(
    tiny_folders: Mapping[str, Path], tmp_path: Path, family: str
) -> None:
    before = torch.get_rng_state()
    again = make_tiny(tmp_path / "again", family)
    assert torch.equal(torch.get_rng_state(), before)
    files = sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert all((again / file).read_bytes() == (tiny_folders[family] / file).read_bytes() for file in files)


def test_other_seeds_give_other_weights(tiny_folders: Mapping[str, Path], tmp_path: Path) -> None:
    weights = "unet/diffusion_pytorch_model.safetensors"
    other = make_tiny(tmp_path / "other", "sd1", seed=1)
    assert (other / weights).read_bytes() != (tiny_folders["sd1"] / weights).read_bytes()


@torch.no_grad()
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_activations_are_near_one_in_every_precision(
    tiny_folders: Mapping[str, Path], family: str, dtype: torch.dtype
) -> None:
    components = load_components(tiny_folders[family], dtype, vae_dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 4, 16, 16, generator=generator)
    told = encode_prompts(components, ["a photo of a cat"])
    ids = SDXL.size_ids((128, 128), (0, 0), (128, 128))
    predicted = predict_noise(components, latents, torch.tensor([500]), told, ids)
    pixels = torch.rand(1, 3, 128, 128, generator=generator) * 2 - 1
    encoded = encode_latents(components.vae, pixels, [generator])
    for tensor in (told.hidden, predicted, encoded, decode_latents(components.vae, latents)):
        assert tensor.isfinite().all()
        assert 0.3 < tensor.float().std() < 2


@both
def test_the_vae_needs_less_memory_than_a_checkpointed_step_of_the_unet(
    tiny_folders: Mapping[str, Path], family: str
) -> None:
    components = load_components(tiny_folders[family], torch.float32)
    device = VirtualSession(4 << 30)
    size = (256, 256)
    pixels = torch.zeros(1, 3, *size)
    with device.scope():
        device.place(components.vae)
        latents = encode_latents(components.vae, device.place(pixels), [torch.Generator()])
        decode_latents(components.vae, latents)
        vae_peak = device.statistics()["allocated_bytes.all.peak"]
        device.evict(components.vae)
        device.reset_peak()
        device.place(components.denoiser)
        _step(components, latents)
        unet_peak = device.statistics()["allocated_bytes.all.peak"]
    assert vae_peak < 0.6 * unet_peak


def _step(components: Components, latents: torch.Tensor) -> None:
    components.denoiser.train().enable_gradient_checkpointing()
    with torch.no_grad():
        told = encode_prompts(components, ["a photo of a cat"])
    ids = SDXL.size_ids((256, 256), (0, 0), (256, 256))
    predicted = predict_noise(components, latents.requires_grad_(True), torch.tensor([500]), told, ids)
    predicted.square().mean().backward()
