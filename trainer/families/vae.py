"""Pixels to latents and back. Owns scaling, posterior sampling and the watch for broken numbers.

A sample's latents depend on its pixels and its own generator alone, never on the batch it came in. Numbers
that are not finite are an error with a way out; they are never replaced.
"""

import hashlib
from collections.abc import Sequence

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from autotune.errors import ModelError


def encode_latents(
    vae: AutoencoderKL, pixels: Tensor, generators: Sequence[torch.Generator], *, check: bool = True
) -> Tensor:
    """Latents (B, 4, H/8, W/8) in float32 of `pixels` (B, 3, H, W) in [-1, 1], scaled as the U-Net expects.

    One posterior sample per image, drawn on the host from that image's generator. Raises ModelError when a
    latent is not finite, unless `check` is off (a device that computes no values).
    """
    with torch.no_grad(), _own_precision(pixels):
        posterior = vae.encode(pixels.to(_dtype(vae))).latent_dist
        mean, std = posterior.mean.float(), posterior.std.float()
        noise = torch.stack([torch.randn(mean.shape[1:], generator=generator) for generator in generators])
        latents: Tensor = (mean + std * noise.to(mean.device)) * vae.config.scaling_factor
    if check:
        _require_finite(latents, vae, "latents")
    return latents


def decode_latents(vae: AutoencoderKL, latents: Tensor, *, check: bool = True) -> Tensor:
    """Pixels (B, 3, 8h, 8w) in float32, in [-1, 1], of scaled `latents` (B, 4, h, w). Errors as
    `encode_latents`."""
    with torch.no_grad(), _own_precision(latents):
        decoded: Tensor = vae.decode((latents / vae.config.scaling_factor).to(_dtype(vae)), return_dict=False)[0]
    if check:
        _require_finite(decoded, vae, "pixels")
    return decoded.float().clamp(-1, 1)


def vae_identity(vae: AutoencoderKL) -> str:
    """A short digest of the VAE's weights, precision and scaling: latents of equal VAEs may share a cache."""
    digest = hashlib.sha256(str(vae.config.scaling_factor).encode())
    for name, tensor in sorted(vae.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _own_precision(values: Tensor) -> torch.autocast:
    """No autocast: a VAE kept in float32 is so because half precision overflows in it."""
    return torch.autocast(values.device.type, enabled=False)


def _dtype(vae: AutoencoderKL) -> torch.dtype:
    dtype: torch.dtype = vae.encoder.conv_in.weight.dtype
    return dtype


def _require_finite(values: Tensor, vae: AutoencoderKL, what: str) -> None:
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
