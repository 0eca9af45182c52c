"""Wan 2.1 (text to video), trained on pictures: videos of one frame, told of captions by UMT5-XXL.

Owns its call. Stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.families.components import Components, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import TIMESTEPS, FlowRule
from trainer.families.transformer import TransformerFamily, zeros
from trainer.families.video import FrameCodec
from trainer.families.words import masked_hidden

_LENGTH = 512


@dataclass(frozen=True)
class Wan(TransformerFamily):
    """Wan 2.1."""

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """The last hidden states of 512 tokens, with zeros for padding."""
        return Conditioning(masked_hidden(components, captions, _LENGTH))

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        width = components.denoiser.config.text_dim
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
        prediction: Tensor = components.denoiser(
            hidden_states=noisy.to(dtype).unsqueeze(2),
            timestep=levels.expand(len(noisy)) * TIMESTEPS,
            encoder_hidden_states=conditioning.hidden.to(dtype),
            return_dict=False,
        )[0]
        return prediction.squeeze(2)


WAN = Wan(
    name="wan",
    title="Wan 2.1",
    variants=("wan21-1.3b", "wan21-14b"),
    parts={
        "transformer": "WanTransformer3DModel",
        "vae": "AutoencoderKLWan",
        "text_encoder": "UMT5EncoderModel",
    },
    blocks=("blocks",),
    architecture="wan-2.1",
    guidance=5.0,
    rule=FlowRule(shift=3.0),
    codec=FrameCodec(),
    native_side=480,
    resolution_floor=256,
)

FAMILIES: dict[str, Family] = {"wan": WAN}
