"""Pixels to latents and back. Owns scaling, posterior sampling and the watch for broken numbers.

A sample's latents depend on its pixels and its own generator alone, never on the batch it came in. Numbers
that are not finite are an error with a way out; they are never replaced.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from autotune.errors import ModelError


class Codec(Protocol):
    """What lies between a VAE's numbers and the denoiser's."""

    def posterior(self, vae: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the latents of `pixels` (B, 3, H, W), in float32, as the VAE has them."""
        ...

    def scaled(self, vae: Any, latents: Tensor) -> Tensor:
        """The denoiser's latents (B, C, h, w) of the VAE's."""
        ...

    def unscaled(self, vae: Any, latents: Tensor) -> Tensor:
        """The VAE's latents of the denoiser's."""
        ...

    def pixels(self, vae: Any, latents: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) of the VAE's own latents."""
        ...

    def shape(self, vae: Any, width: int, height: int) -> tuple[int, int, int]:
        """Channels, height and width of the denoiser's latents of a picture of that size in pixels."""
        ...


class KlCodec:
    """AutoencoderKL: one scaling factor, and a shift where the VAE has one."""

    def posterior(self, vae: AutoencoderKL, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """See Codec."""
        posterior = vae.encode(pixels).latent_dist
        return posterior.mean.float(), posterior.std.float()

    def scaled(self, vae: AutoencoderKL, latents: Tensor) -> Tensor:
        """See Codec."""
        shift = vae.config.get("shift_factor")
        scaled: Tensor = (latents - shift if shift else latents) * vae.config.scaling_factor
        return scaled

    def unscaled(self, vae: AutoencoderKL, latents: Tensor) -> Tensor:
        """See Codec."""
        shift = vae.config.get("shift_factor")
        unscaled: Tensor = latents / vae.config.scaling_factor
        return unscaled + shift if shift else unscaled

    def pixels(self, vae: AutoencoderKL, latents: Tensor) -> Tensor:
        """See Codec."""
        decoded: Tensor = vae.decode(latents, return_dict=False)[0]
        return decoded

    def shape(self, vae: AutoencoderKL, width: int, height: int) -> tuple[int, int, int]:
        """See Codec."""
        factor = 2 ** (len(vae.config.block_out_channels) - 1)
        return vae.config.latent_channels, height // factor, width // factor


KL = KlCodec()


def encode_latents(
    vae: Any,
    pixels: Tensor,
    generators: Sequence[torch.Generator],
    *,
    codec: Codec = KL,
    check: bool = True,
) -> Tensor:
    """Latents (B, C, h, w) in float32 of `pixels` (B, 3, H, W) in [-1, 1], scaled as the denoiser expects.

    One posterior sample per image, drawn on the host from that image's generator. Raises ModelError when a
    latent is not finite, unless `check` is off (a device that computes no values).
    """
    with torch.no_grad(), _own_precision(pixels):
        mean, std = codec.posterior(vae, pixels.to(_dtype(vae)))
        noise = torch.stack([torch.randn(mean.shape[1:], generator=generator) for generator in generators])
        latents = codec.scaled(vae, mean + std * noise.to(mean.device))
    if check:
        _require_finite(latents, vae, "latents")
    return latents


def decode_latents(vae: Any, latents: Tensor, *, codec: Codec = KL, check: bool = True) -> Tensor:
    """Pixels (B, 3, H, W) in float32, in [-1, 1], of scaled `latents` (B, C, h, w). Errors as
    `encode_latents`."""
    with torch.no_grad(), _own_precision(latents):
        decoded = codec.pixels(vae, codec.unscaled(vae, latents).to(_dtype(vae)))
    if check:
        _require_finite(decoded, vae, "pixels")
    return decoded.float().clamp(-1, 1)


def vae_identity(vae: Any) -> str:
    """A short digest of the VAE's weights, precision and scaling: latents of equal VAEs may share a cache."""
    digest = hashlib.sha256(_scaling(vae).encode())
    for name, tensor in sorted(vae.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if not tensor.is_meta:  # a blank VAE is its shapes
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _scaling(vae: Any) -> str:
    shift = vae.config.get("shift_factor")
    return f"{vae.config.get('scaling_factor')}" + (f" {shift}" if shift else "")


def _own_precision(values: Tensor) -> torch.autocast:
    """No autocast: a VAE kept in float32 is so because half precision overflows in it."""
    return torch.autocast(values.device.type, enabled=False)


def _dtype(vae: Any) -> torch.dtype:
    dtype: torch.dtype = next(vae.parameters()).dtype
    return dtype


def _require_finite(values: Tensor, vae: Any, what: str) -> None:
    broken = [i for i, value in enumerate(values) if not bool(torch.isfinite(value).all())]
    if not broken:
        return
    dtype = _dtype(vae)
    way_out = "The VAE file is broken: give another with `vae`."
    if dtype != torch.float32:
        way_out = "Set no_half_vae = true to run it in float32, or give another VAE file with `vae`."
    raise ModelError(
        f"the VAE made {what} that are not finite (image {broken[0] + 1} of {len(values)}, "
        f"{str(dtype).removeprefix('torch.')}).",
        way_out,
    )
