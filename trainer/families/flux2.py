"""FLUX.2-klein: a transformer over 2x2 squares of latents, told of captions by three layers of Qwen3.

Owns its VAE's normalisation, its position numbers and which layers are read. Stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKLFlux2
from torch import Tensor

from trainer.families.chat import chat_layers
from trainer.families.components import Components, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import FlowRule
from trainer.families.transformer import TransformerFamily, zeros

_LENGTH = 512
_LAYERS = (9, 18, 27)


class Flux2Codec:
    """AutoencoderKLFlux2: 2x2 squares of latents become channels, each normalised by the VAE's own statistics."""

    def posterior(self, vae: AutoencoderKLFlux2, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """See Codec."""
        posterior = vae.encode(pixels).latent_dist
        return posterior.mean.float(), posterior.std.float()

    def scaled(self, vae: AutoencoderKLFlux2, latents: Tensor) -> Tensor:
        """See Codec."""
        mean, std = _statistics(vae)
        return (_fold(latents) - mean) / std

    def unscaled(self, vae: AutoencoderKLFlux2, latents: Tensor) -> Tensor:
        """See Codec."""
        mean, std = _statistics(vae)
        return _unfold(latents * std + mean)

    def pixels(self, vae: AutoencoderKLFlux2, latents: Tensor) -> Tensor:
        """See Codec."""
        decoded: Tensor = vae.decode(latents, return_dict=False)[0]
        return decoded

    def shape(self, vae: AutoencoderKLFlux2, width: int, height: int) -> tuple[int, int, int]:
        """See Codec."""
        factor = 2 ** len(vae.config.block_out_channels)
        return 4 * vae.config.latent_channels, height // factor, width // factor


@dataclass(frozen=True)
class Flux2(TransformerFamily):
    """FLUX.2-klein, of which the base (not distilled) model is the one to train."""

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """Three layers of 512 tokens side by side, padding and all."""
        hidden, _ = chat_layers(components, captions, _LAYERS, _LENGTH, thinking=False)
        return Conditioning(torch.cat(hidden, dim=-1))

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        width = components.denoiser.config.joint_attention_dim
        return Conditioning(zeros(batch, _LENGTH, width, device=device, dtype=dtype))

    def predict(
        self,
        components: Components,
        noisy: Tensor,
        levels: Tensor,
        conditioning: Conditioning,
        size_ids: Tensor | None,
    ) -> Tensor:
        """See Family."""
        dtype = base_dtype(components.denoiser)
        batch, _, height, width = noisy.shape
        length = conditioning.hidden.shape[1]
        tokens: Tensor = components.denoiser(
            hidden_states=noisy.to(dtype).flatten(2).transpose(1, 2),
            timestep=levels.to(dtype),
            guidance=None,
            encoder_hidden_states=conditioning.hidden.to(dtype),
            txt_ids=_positions(1, 1, length, noisy.device).expand(batch, -1, -1),
            img_ids=_positions(height, width, 1, noisy.device).expand(batch, -1, -1),
            return_dict=False,
        )[0]
        return tokens.transpose(1, 2).reshape(noisy.shape)


def _statistics(vae: AutoencoderKLFlux2) -> tuple[Tensor, Tensor]:
    mean = vae.bn.running_mean.float().reshape(1, -1, 1, 1)
    variance = vae.bn.running_var.float().reshape(1, -1, 1, 1)
    return mean, torch.sqrt(variance + vae.config.batch_norm_eps)


def _fold(latents: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, 4 C, h/2, w/2)."""
    return torch.nn.functional.pixel_unshuffle(latents, 2)


def _unfold(latents: Tensor) -> Tensor:
    """(B, 4 C, h, w) -> (B, C, 2 h, 2 w)."""
    return torch.nn.functional.pixel_shuffle(latents, 2)


def _positions(height: int, width: int, length: int, device: torch.device) -> Tensor:
    """(1, height * width * length, 4): nothing, row, column, place in the text."""
    axes = [torch.arange(size, device=device) for size in (1, height, width, length)]
    return torch.cartesian_prod(*axes)[None]


FLUX2 = Flux2(
    name="flux2",
    title="FLUX.2-klein",
    variants=("flux2-klein-4b",),
    parts={
        "transformer": "Flux2Transformer2DModel",
        "vae": "AutoencoderKLFlux2",
        "text_encoder": "Qwen3Model",
    },
    blocks=("transformer_blocks", "single_transformer_blocks"),
    architecture="flux-2-klein",
    guidance=4.0,
    rule=FlowRule(shift=3.0),
    codec=Flux2Codec(),
)

FAMILIES: dict[str, Family] = {"flux2": FLUX2}
