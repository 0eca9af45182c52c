"""CLIP's text encoders: token ids, the layer that is read, and the modules that are trained.

Gradients flow when the caller lets them; nothing here turns them off, places a module or draws a random number.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from autotune.errors import ConfigError
from trainer.families.components import TextEncoder, Tokenizer
from trainer.families.tokenizer import MAX_LENGTH

_LINEARS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")


def clip_ids(tokenizer: Tokenizer, captions: Sequence[str]) -> Tensor:
    """Ids (B, 77) of `captions`, cut and padded, on the host."""
    batch = tokenizer(
        list(captions), padding="max_length", max_length=MAX_LENGTH, truncation=True, return_tensors="pt"
    )
    return batch.input_ids


def skipped_layer(encoder: TextEncoder, ids: Tensor, clip_skip: int) -> Tensor:
    """The `clip_skip`-th last hidden states (B, 77, D) through the final layer norm. Raises ConfigError for one
    beyond the layers."""
    layers = encoder.config.num_hidden_layers
    if not 1 <= clip_skip <= layers:
        raise ConfigError(
            f"clip_skip {clip_skip} is outside 1..{layers}, the text encoder's layers.", "Use 1 or 2."
        )
    output = run_clip(encoder, ids)
    if clip_skip == 1:
        last: Tensor = output.last_hidden_state
        return last
    normed: Tensor = _final_layer_norm(encoder)(output.hidden_states[-clip_skip])
    return normed


def run_clip(encoder: TextEncoder, ids: Tensor) -> Any:
    """The encoder's outputs with all hidden states, on the device where it is."""
    return encoder(ids.to(encoder.device), output_hidden_states=True)


def clip_linears(encoder: nn.Module) -> list[str]:
    """Paths of the attention and MLP linears of a CLIP text encoder (72 in CLIP-L, 192 in bigG)."""
    return [
        path
        for path, module in encoder.named_modules()
        if isinstance(module, nn.Linear) and path.rpartition(".")[2] in _LINEARS
    ]


def _final_layer_norm(encoder: TextEncoder) -> nn.Module:
    """CLIPTextModel kept its layers under `text_model` until transformers 5.6."""
    norm: nn.Module = getattr(encoder, "text_model", encoder).final_layer_norm
    return norm
