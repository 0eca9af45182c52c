"""Stable Diffusion 3 and 3.5: a transformer that is told of captions by CLIP-L, CLIP-bigG and T5.

Owns how the three are put together. Stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.families.clip import clip_ids, clip_linears, run_clip
from trainer.families.components import Components, TextEncoder, Tokenizer, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import TIMESTEPS, FlowRule
from trainer.families.tokenizer import END, MAX_LENGTH, ZERO, clip_tokenizer_of
from trainer.families.transformer import TransformerFamily, zeros
from trainer.families.words import word_ids, words_tokenizer

_T5_LENGTH = 256  # the pipeline's


@dataclass(frozen=True)
class StableDiffusion3(TransformerFamily):
    """SD 3 and 3.5."""

    def tokenizers(self, encoders: Sequence[TextEncoder], folder: Path | None) -> tuple[Tokenizer, ...]:
        """The second one pads with id 0, as SDXL's."""
        clips = clip_tokenizer_of(folder, "tokenizer", END), clip_tokenizer_of(folder, "tokenizer_2", ZERO)
        return (*clips, words_tokenizer(encoders[2], folder, "tokenizer_3"))

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """Both CLIPs' last but one hidden states side by side, filled up with zeros to T5's width, then T5's last;
        and both CLIPs' projections side by side."""
        *clips, t5 = components.text_encoders
        outputs = [
            run_clip(encoder, clip_ids(tokenizer, captions))
            for encoder, tokenizer in zip(clips, components.tokenizers, strict=False)
        ]
        ids, _, _ = word_ids(components.tokenizers[2], captions, _T5_LENGTH)
        told = t5(ids.to(t5.device)).last_hidden_state
        clip = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
        clip = functional.pad(clip, (0, told.shape[-1] - clip.shape[-1]))
        pooled = torch.cat([output.text_embeds for output in outputs], dim=-1)
        return Conditioning(torch.cat([clip, told.to(clip.dtype)], dim=1), pooled)

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        config, length = components.denoiser.config, MAX_LENGTH + _T5_LENGTH
        hidden = zeros(batch, length, config.joint_attention_dim, device=device, dtype=dtype)
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
        dtype = base_dtype(components.denoiser)
        assert conditioning.pooled is not None
        prediction: Tensor = components.denoiser(
            hidden_states=noisy.to(dtype),
            timestep=levels * TIMESTEPS,
            encoder_hidden_states=conditioning.hidden.to(dtype),
            pooled_projections=conditioning.pooled.to(dtype),
            return_dict=False,
        )[0]
        return prediction

    def text_targets(self, encoder: nn.Module) -> list[str]:
        """The CLIPs' attention and MLP linears; T5 is not trained."""
        return clip_linears(encoder) if type(encoder).__name__.startswith("CLIP") else []


SD3 = StableDiffusion3(
    name="sd3",
    title="Stable Diffusion 3",
    variants=("sd35-medium", "sd3-medium", "sd35-large"),
    parts={
        "transformer": "SD3Transformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "CLIPTextModelWithProjection",
        "text_encoder_2": "CLIPTextModelWithProjection",
        "text_encoder_3": "T5EncoderModel",
    },
    blocks=("transformer_blocks",),
    architecture="stable-diffusion-3",
    guidance=7.0,
    rule=FlowRule(shift=3.0),
    trains_text=True,
)

FAMILIES: dict[str, Family] = {"sd3": SD3}
