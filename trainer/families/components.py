"""`Components`: a base model's parts in memory, whatever its family. Owns no loading and no device."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
from diffusers import ModelMixin
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.families.vae import vae_identity

TextEncoder: TypeAlias = PreTrainedModel
Denoiser: TypeAlias = ModelMixin


class Tokens(Protocol):
    """What a tokenizer returns: ids (B, L), and which of them are no padding."""

    input_ids: Tensor
    attention_mask: Tensor


class Tokenizer(Protocol):
    """Captions to ids of one length, as the tokenizers of transformers are called here."""

    def __call__(
        self, text: list[str], *, padding: str, max_length: int, truncation: bool, return_tensors: str
    ) -> Tokens:
        """Ids and mask of `text`, each (B, max_length) on the host."""
        ...


@dataclass(frozen=True)
class Components:
    """A base model's parts: the denoiser (U-Net or transformer), the VAE, and text encoders with their tokenizers.

    Modules are frozen, in eval mode and on the host, or on `meta` where nothing was loaded. `scheduler` holds the
    figures of training's noise schedule, of the kind that the family's noise rule reads.
    """

    family: str
    denoiser: Denoiser
    vae: Any
    text_encoders: tuple[TextEncoder, ...]
    tokenizers: tuple[Tokenizer, ...]
    scheduler: Any

    @property
    def predicts_velocity(self) -> bool:
        """Whether a denoiser of noise predicts velocity, by its own files or because the config says so."""
        return bool(self.scheduler.config.get("prediction_type") == "v_prediction")

    @cached_property
    def vae_identity(self) -> str:
        """What latents of this VAE are kept under. Worked out once: it reads every weight, and none changes."""
        return vae_identity(self.vae)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """Every module with weights: denoiser, VAE, text encoders."""
        return (self.denoiser, self.vae, *self.text_encoders)


def base_dtype(module: nn.Module) -> torch.dtype:
    """The precision that a module's inputs are taken in: that of its first floating-point weight, which is never
    an adapter's, for adapters lie deeper."""
    return next(parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
