"""Chroma: FLUX.1's transformer with fewer modulation layers, told of captions by T5 alone.

Owns its mask: of a caption's padding the transformer sees the first token only. Stateless.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.transformers.transformer_chroma import ChromaSingleTransformerBlock
from torch import Tensor, nn

from trainer.families.components import Components, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import FlowRule
from trainer.families.transformer import TransformerFamily, flux_positions, pack, token_mask, unpack, zeros
from trainer.families.words import word_ids

_LENGTH = 512
_SINGLE_INPUTS = 3  # hidden states, modulation, rotations


@dataclass(frozen=True)
class Chroma(TransformerFamily):
    """Chroma."""

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """T5's last hidden states of 512 tokens, made without the padding."""
        t5 = components.text_encoders[0]
        ids, mask, lengths = word_ids(components.tokenizers[0], captions, _LENGTH)
        hidden = t5(ids.to(t5.device), attention_mask=mask.to(t5.device)).last_hidden_state
        return Conditioning(hidden, lengths=lengths)

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        width = components.denoiser.config.joint_attention_dim
        return Conditioning(zeros(batch, _LENGTH, width, device=device, dtype=dtype), lengths=(_LENGTH,) * batch)

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
        height, width = noisy.shape[2:]
        length = conditioning.hidden.shape[1]
        pictures = torch.ones(len(noisy), (height // 2) * (width // 2), device=noisy.device, dtype=torch.bool)
        mask = torch.cat([token_mask(conditioning, noisy.device, extra=1), pictures], dim=1)
        with _mask_in_checkpoints(components.denoiser, mask):
            tokens: Tensor = components.denoiser(
                hidden_states=pack(noisy.to(dtype)),
                timestep=levels.to(dtype).expand(len(noisy)),
                encoder_hidden_states=conditioning.hidden.to(dtype),
                txt_ids=zeros(length, 3, device=noisy.device, dtype=dtype),
                img_ids=flux_positions(height // 2, width // 2, noisy.device).to(dtype),
                attention_mask=mask,
                return_dict=False,
            )[0]
        return unpack(tokens, height, width)


@contextmanager
def _mask_in_checkpoints(denoiser: Any, mask: Tensor) -> Iterator[None]:
    """diffusers (0.42) leaves the mask out where it checkpoints the single blocks: there it is put in."""
    inner = getattr(denoiser, "_gradient_checkpointing_func", None)

    def checkpoint(block: nn.Module, *inputs: Any) -> Any:
        assert inner is not None
        is_single = isinstance(block, ChromaSingleTransformerBlock) and len(inputs) == _SINGLE_INPUTS
        return inner(block, *inputs, mask) if is_single else inner(block, *inputs)

    denoiser._gradient_checkpointing_func = checkpoint
    try:
        yield
    finally:
        denoiser._gradient_checkpointing_func = inner


CHROMA = Chroma(
    name="chroma",
    title="Chroma",
    variants=("chroma1",),
    parts={
        "transformer": "ChromaTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "T5EncoderModel",
    },
    blocks=("transformer_blocks", "single_transformer_blocks"),
    architecture="chroma",
    guidance=4.0,
    rule=FlowRule(shift=3.0),
)

FAMILIES: dict[str, Family] = {"chroma": CHROMA}
