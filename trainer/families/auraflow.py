"""AuraFlow: a transformer told of captions by pile-T5-XL. Owns its call. Stateless."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.families.components import Components, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import FlowRule
from trainer.families.transformer import TransformerFamily, zeros
from trainer.families.words import masked_hidden

_LENGTH = 256


@dataclass(frozen=True)
class AuraFlow(TransformerFamily):
    """AuraFlow."""

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """The last hidden states of 256 tokens, with zeros for padding."""
        return Conditioning(masked_hidden(components, captions, _LENGTH))

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
        prediction: Tensor = components.denoiser(
            noisy.to(dtype),
            encoder_hidden_states=conditioning.hidden.to(dtype),
            timestep=levels.to(dtype).expand(len(noisy)),
            return_dict=False,
        )[0]
        return prediction


AURAFLOW = AuraFlow(
    name="auraflow",
    title="AuraFlow",
    variants=("auraflow-0.3",),
    parts={
        "transformer": "AuraFlowTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "UMT5EncoderModel",
    },
    blocks=("joint_transformer_blocks", "single_transformer_blocks"),
    architecture="auraflow-v0.3",
    guidance=3.5,
    rule=FlowRule(shift=1.73),
    vae_needs_float32=True,
)

FAMILIES: dict[str, Family] = {"auraflow": AURAFLOW}
