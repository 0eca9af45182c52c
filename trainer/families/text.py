"""Captions to conditioning: the hidden states and pooled vectors that the U-Net attends to.

Owns tokenizing and which layer of which encoder is read. Gradients flow when the caller lets them; nothing
here turns them off, places a module or draws a random number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CLIPTokenizer

from autotune.errors import ConfigError
from trainer.families.load import Components, TextEncoder
from trainer.families.tokenizer import MAX_LENGTH


@dataclass(frozen=True)
class Conditioning:
    """What the U-Net is told: `hidden` (B, 77, D), and for SDXL `pooled` (B, P), else None."""

    hidden: Tensor
    pooled: Tensor | None = None

    @classmethod
    def stack(cls, parts: Sequence["Conditioning"]) -> "Conditioning":
        """One conditioning of all the samples of `parts`, in order."""
        pooled = [part.pooled for part in parts if part.pooled is not None]
        return cls(torch.cat([part.hidden for part in parts]), torch.cat(pooled) if pooled else None)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Conditioning":
        """This conditioning with `change` applied to each tensor (moving it, say)."""
        return Conditioning(change(self.hidden), None if self.pooled is None else change(self.pooled))


def encode_prompts(components: Components, captions: Sequence[str], clip_skip: int | None = None) -> Conditioning:
    """Encode `captions` with the text encoders, on the device where these are.

    SD 1.x: the last hidden state, or with `clip_skip` n the n-th last, through the final layer norm. SDXL:
    the last but one hidden states of both encoders side by side, and the second one's pooled projection;
    `clip_skip` has no meaning there. Captions are cut at 77 tokens. Raises ConfigError for a `clip_skip`
    beyond the layers.
    """
    ids = [_token_ids(tokenizer, captions) for tokenizer in components.tokenizers]
    if components.family == "sd1":
        return Conditioning(_skipped(components.text_encoders[0], ids[0], clip_skip or 1))
    outputs = [_run(encoder, i) for encoder, i in zip(components.text_encoders, ids, strict=True)]
    hidden = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
    return Conditioning(hidden, outputs[1].text_embeds)


def _token_ids(tokenizer: CLIPTokenizer, captions: Sequence[str]) -> Tensor:
    batch = tokenizer(
        list(captions), padding="max_length", max_length=MAX_LENGTH, truncation=True, return_tensors="pt"
    )
    ids: Tensor = batch.input_ids
    return ids


def _skipped(encoder: TextEncoder, ids: Tensor, clip_skip: int) -> Tensor:
    layers = encoder.config.num_hidden_layers
    if not 1 <= clip_skip <= layers:
        raise ConfigError(
            f"clip_skip {clip_skip} is outside 1..{layers}, the text encoder's layers.", "Use 1 or 2."
        )
    output = _run(encoder, ids)
    if clip_skip == 1:
        last: Tensor = output.last_hidden_state
        return last
    normed: Tensor = _final_layer_norm(encoder)(output.hidden_states[-clip_skip])
    return normed


def _run(encoder: TextEncoder, ids: Tensor) -> Any:
    return encoder(ids.to(encoder.device), output_hidden_states=True)


def _final_layer_norm(encoder: TextEncoder) -> nn.Module:
    """CLIPTextModel kept its layers under `text_model` until transformers 5.6."""
    norm: nn.Module = getattr(encoder, "text_model", encoder).final_layer_norm
    return norm
