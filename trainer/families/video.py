"""VAEs made for videos (Qwen-Image, Wan), of which a picture is the first frame. Owns their normalisation."""

from typing import Any

import torch
from torch import Tensor


class FrameCodec:
    """Latents of one frame, each channel normalised by the VAE's published statistics."""

    def posterior(self, vae: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """See Codec."""
        posterior = vae.encode(pixels.unsqueeze(2)).latent_dist
        return posterior.mean.squeeze(2).float(), posterior.std.squeeze(2).float()

    def scaled(self, vae: Any, latents: Tensor) -> Tensor:
        """See Codec."""
        return (latents - _row(vae.config.latents_mean, latents)) / _row(vae.config.latents_std, latents)

    def unscaled(self, vae: Any, latents: Tensor) -> Tensor:
        """See Codec."""
        return latents * _row(vae.config.latents_std, latents) + _row(vae.config.latents_mean, latents)

    def pixels(self, vae: Any, latents: Tensor) -> Tensor:
        """See Codec."""
        decoded: Tensor = vae.decode(latents.unsqueeze(2), return_dict=False)[0]
        return decoded.squeeze(2)

    def shape(self, vae: Any, width: int, height: int) -> tuple[int, int, int]:
        """See Codec."""
        factor = 2 ** (len(vae.config.dim_mult) - 1)
        return vae.config.z_dim, height // factor, width // factor


def _row(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype).reshape(1, -1, 1, 1)
