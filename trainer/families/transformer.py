"""What families with a transformer for a denoiser share: flow matching, PEFT's names, targets in the blocks.

Owns the defaults; each family's own file says what it does otherwise. Stateless.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.adapters.layout import PEFT, LoraLayout
from trainer.config.schema import TrainConfig
from trainer.families.components import Components, TextEncoder, Tokenizer
from trainer.families.conditioning import Conditioning
from trainer.families.family import Size
from trainer.families.noising import FlowRule, NoiseRule
from trainer.families.vae import KL, Codec
from trainer.families.words import words_tokenizer

# Layers that make scales and shifts of the timestep: no caption or picture passes through them.
_MODULATION = re.compile(r"(^|\.)(norm\w*|adaLN_modulation|modulation\w*|(img|txt)_mod)\.")


@dataclass(frozen=True)
class TransformerFamily:
    """The defaults. `blocks` names the denoiser's lists of blocks whose linears get LoRA layers."""

    name: str
    title: str
    variants: tuple[str, ...]
    parts: Mapping[str, str]
    blocks: tuple[str, ...]
    architecture: str  # what modelspec calls it
    guidance: float
    rule: NoiseRule = field(default_factory=FlowRule)
    codec: Codec = KL
    native_side: int = 1024
    resolution_floor: int = 512
    size_step: int = 16
    vae_needs_float32: bool = False
    trains_text: bool = False
    lora_layout: LoraLayout = PEFT

    @property
    def lora_metadata(self) -> Mapping[str, str]:
        """See Family."""
        return {
            "ss_v2": "False",
            "ss_base_model_version": self.name,
            "modelspec.architecture": f"{self.architecture}/lora",
            "modelspec.implementation": "diffusers",
        }

    def tokenizers(self, encoders: Sequence[TextEncoder], folder: Path | None) -> tuple[Tokenizer, ...]:
        """One that only counts, or the folder's own."""
        return (words_tokenizer(encoders[0], folder, "tokenizer"),)

    def latent_shape(self, components: Components, size: Size) -> tuple[int, int, int]:
        """See Family."""
        return self.codec.shape(components.vae, *size)

    def size_ids(self, original_size: Size, crop_top_left: tuple[int, int], target_size: Size) -> Tensor | None:
        """The transformer is not told."""
        return None

    def denoiser_targets(self, denoiser: nn.Module) -> list[str]:
        """The attention's and MLP's linears in the blocks."""
        heads = tuple(f"{name}." for name in self.blocks)
        return [
            path
            for path, module in denoiser.named_modules()
            if isinstance(module, nn.Linear) and path.startswith(heads) and not _MODULATION.search(path)
        ]

    def denoiser_lora_name(self, denoiser: nn.Module, path: str) -> str:
        """As diffusers and ComfyUI read it."""
        return f"{next(iter(self.parts))}.{path}"

    def text_targets(self, encoder: nn.Module) -> list[str]:
        """Text encoders of this size are not trained."""
        return []

    def text_lora_name(self, encoder: int, path: str) -> str:
        """By the component's name, always with `text_model`, whether transformers nests it or not."""
        return f"{list(self.parts)[2 + encoder]}.text_model.{path.removeprefix('text_model.')}"

    def notes(self, config: TrainConfig) -> list[str]:
        """See Family."""
        skip, snr = config.clip_skip, config.min_snr_gamma
        notes = [f"clip_skip = {skip} has no effect: {self.title} reads fixed layers"] * (skip is not None)
        if config.trains_text_encoder and not self.trains_text:
            notes.append(f"the text encoder is not trained: {self.title}'s is only read")
        return notes + [f"min_snr_gamma = {snr} has no effect: {self.title} learns velocity by flow matching"] * (
            snr is not None and self.rule.prediction_type is not None
        )


def zeros(*shape: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros of `shape`."""
    return torch.zeros(shape, device=device, dtype=dtype)


def pack(latents: Tensor) -> Tensor:
    """Squares of 2x2 latents as tokens: (B, C, h, w) -> (B, h/2 * w/2, 4 C)."""
    batch, channels, height, width = latents.shape
    squares = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(batch, (height // 2) * (width // 2), channels * 4)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """What `pack` had: (B, h/2 * w/2, 4 C) -> (B, C, h, w)."""
    batch, _, channels = tokens.shape
    squares = tokens.view(batch, height // 2, width // 2, channels // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(batch, channels // 4, height, width)


def flux_positions(height: int, width: int, device: torch.device) -> Tensor:
    """FLUX.1's positions of picture tokens, (height * width, 3): nothing, row, column."""
    rows = torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    places = torch.zeros(height, width, 3, device=device)
    places[..., 1] += rows[:, None]
    places[..., 2] += columns[None, :]
    return places.reshape(height * width, 3)


def token_mask(conditioning: Conditioning, device: torch.device, extra: int = 0) -> Tensor:
    """(B, L): which tokens of the captions are no padding, or among the first `extra` of it."""
    assert conditioning.lengths is not None
    lengths = torch.tensor(conditioning.lengths, device=device) + extra
    return torch.arange(conditioning.hidden.shape[1], device=device)[None] < lengths[:, None]
