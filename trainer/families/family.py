"""What the trainer asks of a model family, and where each family lies.

Owns the `Family` protocol: everything that differs between families is behind it, in the family's own file, so
that nobody else asks which family it is. Without torch until a family is asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from autotune.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor, nn

    from trainer.adapters.layout import LoraLayout
    from trainer.config.schema import TrainConfig
    from trainer.families.components import Components, TextEncoder, Tokenizer
    from trainer.families.conditioning import Conditioning
    from trainer.families.noising import NoiseRule
    from trainer.families.vae import Codec

Size = tuple[int, int]


class Family(Protocol):
    """One model family. Stateless: what it needs to know of a model is in its components."""

    @property
    def name(self) -> str:
        """The short name: `sd1`."""
        ...

    @property
    def title(self) -> str:
        """The name that people use: `Stable Diffusion 1.x`."""
        ...

    @property
    def variants(self) -> tuple[str, ...]:
        """The published architectures whose figures are shipped; the first is the default."""
        ...

    @property
    def native_side(self) -> int:
        """The side in pixels that the model was made for."""
        ...

    @property
    def resolution_floor(self) -> int:
        """The side in pixels below which the model gives no usable pictures."""
        ...

    @property
    def size_step(self) -> int:
        """Widths and heights must be multiples of this many pixels."""
        ...

    @property
    def parts(self) -> Mapping[str, str]:
        """The class of each component by its name in a diffusers folder: denoiser, VAE, text encoders."""
        ...

    @property
    def vae_needs_float32(self) -> bool:
        """Whether the published VAE overflows in half precision."""
        ...

    @property
    def trains_text(self) -> bool:
        """Whether any text encoder of the family can be trained."""
        ...

    @property
    def rule(self) -> "NoiseRule":
        """How latents are made noisy and what the denoiser should answer."""
        ...

    @property
    def codec(self) -> "Codec":
        """What lies between the VAE's numbers and the denoiser's."""
        ...

    @property
    def guidance(self) -> float:
        """The usual strength of classifier-free guidance; 1 where sampling goes without."""
        ...

    @property
    def lora_layout(self) -> "LoraLayout":
        """The tensor names of the LoRA file."""
        ...

    @property
    def lora_metadata(self) -> Mapping[str, str]:
        """What UIs read in a LoRA file to tell the family."""
        ...

    def tokenizers(self, encoders: "Sequence[TextEncoder]", folder: "Path | None") -> "tuple[Tokenizer, ...]":
        """Tokenizers for `encoders`: from the model's `folder`; without one the shipped ones, or, where none is
        shipped, one that only gives the right number of ids. Raises ModelError for a broken one."""
        ...

    def latent_shape(self, components: "Components", size: Size) -> tuple[int, int, int]:
        """Channels, height and width of the latents of a picture of `size` (width, height in pixels)."""
        ...

    def encode_prompts(
        self, components: "Components", captions: Sequence[str], clip_skip: int | None
    ) -> "Conditioning":
        """`captions` through the text encoders, on the device where these are. Raises ConfigError for a
        `clip_skip` that the encoder can't do."""
        ...

    def blank_conditioning(
        self, components: "Components", batch: int, device: "torch.device", dtype: "torch.dtype"
    ) -> "Conditioning":
        """Zeros of the shapes that `encode_prompts` gives for `batch` captions, without any encoder."""
        ...

    def size_ids(self, original_size: Size, crop_top_left: tuple[int, int], target_size: Size) -> "Tensor | None":
        """What the denoiser is told of a picture's size and crop, as (1, N) float32; None where it is not told."""
        ...

    def predict(
        self,
        components: "Components",
        noisy: "Tensor",
        levels: "Tensor",
        conditioning: "Conditioning",
        size_ids: "Tensor | None",
    ) -> "Tensor":
        """The denoiser's answer, shaped like `noisy` (B, C, h, w), at the noise `levels` (B,) of the rule.

        Inputs are taken in the denoiser's own precision; what autocast makes of them is the caller's choice.
        """
        ...

    def denoiser_targets(self, denoiser: "nn.Module") -> list[str]:
        """Paths of the denoiser's modules that get LoRA layers."""
        ...

    def denoiser_lora_name(self, denoiser: "nn.Module", path: str) -> str:
        """The name in a LoRA file of the denoiser's module at `path`."""
        ...

    def text_targets(self, encoder: "nn.Module") -> list[str]:
        """Paths of a text encoder's modules that get LoRA layers; none where it isn't trained."""
        ...

    def text_lora_name(self, encoder: int, path: str) -> str:
        """The name in a LoRA file of the module at `path` of text encoder number `encoder` (from 0)."""
        ...

    def notes(self, config: "TrainConfig") -> list[str]:
        """What of `config` has no effect for this family, in sentences."""
        ...


_HOMES = {
    "sd1": "sd",
    "sd2": "sd",
    "sdxl": "sd",
    "sd3": "sd3",
    "flux1": "flux1",
    "flux2": "flux2",
    "pixart": "pixart",
    "zimage": "zimage",
    "qwenimage": "qwenimage",
    "chroma": "chroma",
    "auraflow": "auraflow",
    "wan": "wan",
}


# The families that are known by the class of their denoiser alone.
_DENOISERS = {
    "SD3Transformer2DModel": "sd3",
    "FluxTransformer2DModel": "flux1",
    "Flux2Transformer2DModel": "flux2",
    "PixArtTransformer2DModel": "pixart",
    "ZImageTransformer2DModel": "zimage",
    "QwenImageTransformer2DModel": "qwenimage",
    "ChromaTransformer2DModel": "chroma",
    "AuraFlowTransformer2DModel": "auraflow",
    "WanTransformer3DModel": "wan",
}


def family_of_denoiser(kind: str) -> str | None:
    """The family whose denoiser is a transformer of the class called `kind`; None if there is none."""
    return _DENOISERS.get(kind)


def family_names() -> tuple[str, ...]:
    """The short names of all families."""
    return tuple(_HOMES)


def get_family(name: str) -> Family:
    """The family called `name`. Raises ModelError with the known names for another."""
    if name not in _HOMES:
        raise ModelError(f"{name!r} is no model family.", f"Known: {', '.join(_HOMES)}.")
    families: dict[str, Family] = import_module(f"trainer.families.{_HOMES[name]}").FAMILIES
    return families[name]


def trainable_config(family: Family, config: "TrainConfig") -> "TrainConfig":
    """`config` without what `family` can't do: where no text encoder can be trained, none is.

    Raises ConfigError when nothing is left to train.
    """
    if family.trains_text or not config.trains_text_encoder:
        return config
    if not config.trains_unet:
        raise ConfigError(
            f"nothing is left to train: {family.title}'s text encoder can't be.",
            "Set network_train_text_encoder_only = false.",
        )
    return config.model_copy(update={"network_train_unet_only": True})


def check_sizes(family: Family, sizes: Iterable[Size]) -> None:
    """Raise ConfigError for a size (width, height in pixels) that `family`'s latents don't divide evenly."""
    for width, height in sizes:
        if width % family.size_step or height % family.size_step:
            raise ConfigError(
                f"pictures of {width}x{height} pixels don't suit {family.title}.",
                f"Use multiples of {family.size_step} in resolution and bucket_reso_steps.",
            )
