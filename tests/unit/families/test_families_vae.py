"""Latents depend on their own image and generator; broken numbers are an error, never zeros."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autotune.errors import ModelError
from trainer.families.load import Components, load_components
from trainer.families.vae import decode_latents, encode_latents, vae_identity


def _pixels(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.rand(count, 3, 64, 48, generator=generator) * 2 - 1


def _generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_latents_do_not_depend_on_the_batch_they_came_in(tiny_components: Mapping[str, Components]) -> None:
    vae, pixels = tiny_components["sd1"].vae, _pixels(3)
    together = encode_latents(vae, pixels, _generators(1, 2, 3))
    apart = [encode_latents(vae, pixels[i : i + 1], _generators(i + 1)) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(apart), rtol=1e-4, atol=1e-4)
    assert together.shape == (3, 4, 8, 6)
    assert together.dtype == torch.float32


def test_latents_are_a_scaled_posterior_sample(tiny_components: Mapping[str, Components]) -> None:
    vae, pixels = tiny_components["sdxl"].vae, _pixels(1)
    posterior = vae.encode(pixels).latent_dist
    noise = torch.randn(4, 8, 6, generator=torch.Generator().manual_seed(1))
    expected = (posterior.mean + posterior.std * noise) * vae.config.scaling_factor
    torch.testing.assert_close(encode_latents(vae, pixels, _generators(1)), expected.detach())
    assert vae.config.scaling_factor == 0.13025


def test_another_seed_gives_another_sample(tiny_components: Mapping[str, Components]) -> None:
    vae = tiny_components["sd1"].vae
    one, two = (encode_latents(vae, _pixels(1), _generators(seed)) for seed in (1, 2))
    assert not torch.equal(one, two)


def test_decoding_undoes_the_scaling(tiny_components: Mapping[str, Components]) -> None:
    vae = tiny_components["sd1"].vae
    latents = torch.randn(1, 4, 8, 6)
    expected = vae.decode(latents / 0.18215).sample.clamp(-1, 1)
    torch.testing.assert_close(decode_latents(vae, latents), expected.detach())


@pytest.mark.parametrize(
    ("dtype", "way_out"), [(torch.float16, "no_half_vae = true"), (torch.float32, "VAE file is broken")]
)
def test_broken_numbers_are_an_error_with_a_way_out(
    tiny_folders: Mapping[str, Path], dtype: torch.dtype, way_out: str
) -> None:
    vae = load_components(tiny_folders["sd1"], dtype).vae
    vae.encoder.conv_out.weight.mul_(float("inf"))
    vae.decoder.conv_out.weight.mul_(float("inf"))
    with pytest.raises(ModelError, match="latents that are not finite") as caught:
        encode_latents(vae, _pixels(2), _generators(1, 2))
    assert way_out in caught.value.way_out
    with pytest.raises(ModelError, match="pixels that are not finite"):
        decode_latents(vae, torch.randn(1, 4, 8, 6))
    assert not encode_latents(vae, _pixels(1), _generators(1), check=False).isfinite().all()


def test_a_float32_vae_stays_so_under_autocast(tiny_components: Mapping[str, Components]) -> None:
    vae, latents = tiny_components["sdxl"].vae, torch.randn(1, 4, 8, 6)
    plain = encode_latents(vae, _pixels(1), _generators(1)), decode_latents(vae, latents)
    with torch.autocast("cpu", torch.bfloat16):
        cast = encode_latents(vae, _pixels(1), _generators(1)), decode_latents(vae, latents)
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


def test_identity_tells_vaes_apart_by_weights_and_precision(tiny_folders: Mapping[str, Path]) -> None:
    folder = tiny_folders["sd1"]
    vaes = [load_components(folder, dtype).vae for dtype in (torch.float32, torch.float32, torch.bfloat16)]
    first, again, other = (vae_identity(vae) for vae in vaes)
    assert first == again != other
    vaes[0].decoder.conv_out.bias.add_(1)
    assert vae_identity(vaes[0]) != first
