"""FLUX.1 (dev, schnell): a transformer over 2x2 squares of latents, told of captions by T5 and CLIP-L.

Owns its packing, position numbers, guidance number and which output of which encoder is read. Stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.families.clip import clip_ids, clip_linears
from trainer.families.components import Components, TextEncoder, Tokenizer, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import FlowRule
from trainer.families.tokenizer import clip_tokenizer_of
from trainer.families.transformer import TransformerFamily, flux_positions, pack, unpack, zeros
from trainer.families.words import word_ids, words_tokenizer

_T5_LENGTH = 512
_TRAINING_GUIDANCE = 1.0  # what trainers of the distilled model tell it: no guidance is in the target
_SAMPLING_GUIDANCE = 3.5  # the pipeline's


@dataclass(frozen=True)
class Flux1(TransformerFamily):
    """FLUX.1; the distilled models are told of guidance by number and sample without a second pass."""

    def tokenizers(self, encoders: Sequence[TextEncoder], folder: Path | None) -> tuple[Tokenizer, ...]:
        """See Family."""
        return clip_tokenizer_of(folder, "tokenizer"), words_tokenizer(encoders[1], folder, "tokenizer_2")

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """T5's last hidden states of 512 tokens, padding and all, and CLIP-L's pooled ones."""
        clip, t5 = components.text_encoders
        pooled = clip(clip_ids(components.tokenizers[0], captions).to(clip.device)).pooler_output
        ids, _, _ = word_ids(components.tokenizers[1], captions, _T5_LENGTH)
        return Conditioning(t5(ids.to(t5.device)).last_hidden_state, pooled)

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        config = components.denoiser.config
        hidden = zeros(batch, _T5_LENGTH, config.joint_attention_dim, device=device, dtype=dtype)
        return Conditioning(hidden, zeros(batch, config.pooled_projection_dim, device=device, dtype=dtype))

    def predict(
        self,
        components: Components,
        noisy: Tensor,
        levels: Tensor,
        conditioning: Conditioning,
        size_ids: Tensor | None,
    ) -> Tensor:
        """See Family."""
        denoiser, dtype = components.denoiser, base_dtype(components.denoiser)
        height, width = noisy.shape[2:]
        assert conditioning.pooled is not None
        tokens: Tensor = denoiser(
            hidden_states=pack(noisy.to(dtype)),
            timestep=levels.to(dtype),
            guidance=_guidance(denoiser, levels),
            pooled_projections=conditioning.pooled.to(dtype),
            encoder_hidden_states=conditioning.hidden.to(dtype),
            txt_ids=zeros(conditioning.hidden.shape[1], 3, device=noisy.device, dtype=dtype),
            img_ids=flux_positions(height // 2, width // 2, noisy.device).to(dtype),
            return_dict=False,
        )[0]
        return unpack(tokens, height, width)

    def text_targets(self, encoder: nn.Module) -> list[str]:
        """CLIP-L's attention and MLP linears; T5 is not trained."""
        return clip_linears(encoder) if type(encoder).__name__.startswith("CLIP") else []


def _guidance(denoiser: nn.Module, levels: Tensor) -> Tensor | None:
    if not denoiser.config.guidance_embeds:  # type: ignore[union-attr]
        return None
    value = _TRAINING_GUIDANCE if torch.is_grad_enabled() else _SAMPLING_GUIDANCE  # sampling takes no gradients
    return torch.full_like(levels, value, dtype=torch.float32)


FLUX1 = Flux1(
    name="flux1",
    title="FLUX.1",
    variants=("flux1-dev", "flux1-schnell"),
    parts={
        "transformer": "FluxTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "CLIPTextModel",
        "text_encoder_2": "T5EncoderModel",
    },
    blocks=("transformer_blocks", "single_transformer_blocks"),
    architecture="flux-1-dev",
    guidance=1.0,
    rule=FlowRule(shift=3.0),
    trains_text=True,
)

FAMILIES: dict[str, Family] = {"flux1": FLUX1}
