"""Stable Diffusion 1.x and 2.x and SDXL: a U-Net that is told of captions by CLIP, trained on noise or velocity.

Owns what these three have of their own: which layers of which text encoder are read, SDXL's size numbers, kohya's
LoRA names. Stateless.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn

from trainer.adapters.layout import KOHYA, LoraLayout
from trainer.adapters.names import plain_unet_name, sgm_unet_name, text_name
from trainer.config.schema import TrainConfig
from trainer.families.clip import clip_ids, clip_linears, run_clip, skipped_layer
from trainer.families.components import Components, TextEncoder, Tokenizer, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family, Size
from trainer.families.noising import TIMESTEPS, DdpmRule, NoiseRule
from trainer.families.tokenizer import END, MAX_LENGTH, ZERO, clip_tokenizer_of
from trainer.families.vae import KL, Codec

_SCHEDULE = {
    "num_train_timesteps": TIMESTEPS,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
}
_UNET_PARTS = {"unet": "UNet2DConditionModel", "vae": "AutoencoderKL", "text_encoder": "CLIPTextModel"}


@dataclass(frozen=True)
class StableDiffusion:
    """Stable Diffusion 1.x and 2.x: one CLIP text encoder, whose last hidden states the U-Net attends to."""

    name: str
    title: str
    variants: tuple[str, ...]
    native_side: int
    resolution_floor: int
    lora_metadata: Mapping[str, str]
    pad_token: str = END
    parts: Mapping[str, str] = field(default_factory=lambda: _UNET_PARTS)
    size_step: int = 8
    vae_needs_float32: bool = False
    trains_text: bool = True
    rule: NoiseRule = field(default_factory=lambda: DdpmRule(_SCHEDULE))
    codec: Codec = KL
    guidance: float = 7.5
    lora_layout: LoraLayout = KOHYA

    def tokenizers(self, encoders: Sequence[TextEncoder], folder: Path | None) -> tuple[Tokenizer, ...]:
        """CLIP's tokenizer is shipped."""
        return (clip_tokenizer_of(folder, "tokenizer", self.pad_token),)

    def latent_shape(self, components: Components, size: Size) -> tuple[int, int, int]:
        """See Family."""
        return self.codec.shape(components.vae, *size)

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """The last hidden states; with `clip_skip` n the n-th last, through the final layer norm."""
        ids = clip_ids(components.tokenizers[0], captions)
        return Conditioning(skipped_layer(components.text_encoders[0], ids, clip_skip or 1))

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        width = components.text_encoders[0].config.hidden_size
        return Conditioning(torch.zeros(batch, MAX_LENGTH, width, device=device, dtype=dtype))

    def size_ids(self, original_size: Size, crop_top_left: tuple[int, int], target_size: Size) -> Tensor | None:
        """The U-Net is not told."""
        return None

    def predict(
        self,
        components: Components,
        noisy: Tensor,
        levels: Tensor,
        conditioning: Conditioning,
        size_ids: Tensor | None,
    ) -> Tensor:
        """See Family."""
        return _predict(components, noisy, levels, conditioning, None)

    def denoiser_targets(self, denoiser: nn.Module) -> list[str]:
        """Linears and 1x1 convolutions in the transformer blocks (192 in SD 1.5, 722 in SDXL): kohya's."""
        return [
            f"{outer}.{inner}"
            for outer, block in denoiser.named_modules()
            if isinstance(block, Transformer2DModel)
            for inner, module in block.named_modules()
            if _is_target(module)
        ]

    def denoiser_lora_name(self, denoiser: nn.Module, path: str) -> str:
        """diffusers' paths."""
        return plain_unet_name(path)

    def text_targets(self, encoder: nn.Module) -> list[str]:
        """See Family."""
        return clip_linears(encoder)

    def text_lora_name(self, encoder: int, path: str) -> str:
        """`lora_te_...`."""
        return text_name("lora_te", path)

    def notes(self, config: TrainConfig) -> list[str]:
        """Everything has its effect."""
        return []


@dataclass(frozen=True)
class Sdxl(StableDiffusion):
    """SDXL: two CLIP text encoders side by side, the second's pooled projection, and six numbers of size."""

    def tokenizers(self, encoders: Sequence[TextEncoder], folder: Path | None) -> tuple[Tokenizer, ...]:
        """The second one pads with id 0."""
        return clip_tokenizer_of(folder, "tokenizer", END), clip_tokenizer_of(folder, "tokenizer_2", ZERO)

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """The last but one hidden states of both encoders side by side, and the second one's pooled projection;
        `clip_skip` has no meaning here."""
        ids = [clip_ids(tokenizer, captions) for tokenizer in components.tokenizers]
        outputs = [run_clip(encoder, i) for encoder, i in zip(components.text_encoders, ids, strict=True)]
        hidden = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
        return Conditioning(hidden, outputs[1].text_embeds)

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        width = sum(encoder.config.hidden_size for encoder in components.text_encoders)
        pooled_width = components.text_encoders[1].config.projection_dim
        hidden = torch.zeros(batch, MAX_LENGTH, width, device=device, dtype=dtype)
        return Conditioning(hidden, torch.zeros(batch, pooled_width, device=device, dtype=dtype))

    def size_ids(self, original_size: Size, crop_top_left: tuple[int, int], target_size: Size) -> Tensor | None:
        """SDXL's six numbers: original height and width, crop top and left, target height and width.

        Sizes are (width, height) in pixels, as everywhere else here; SDXL's own order is height first.
        """
        (width, height), (target_width, target_height) = original_size, target_size
        return torch.tensor([[height, width, *crop_top_left, target_height, target_width]], dtype=torch.float32)

    def predict(
        self,
        components: Components,
        noisy: Tensor,
        levels: Tensor,
        conditioning: Conditioning,
        size_ids: Tensor | None,
    ) -> Tensor:
        """See Family."""
        return _predict(components, noisy, levels, conditioning, size_ids)

    def denoiser_lora_name(self, denoiser: nn.Module, path: str) -> str:
        """The original (SGM) paths, since the UIs read no others for all of its layers."""
        config: Any = denoiser.config
        return sgm_unet_name(path, config.layers_per_block)

    def text_lora_name(self, encoder: int, path: str) -> str:
        """`lora_te1_...` and `lora_te2_...`."""
        return text_name(f"lora_te{encoder + 1}", path)

    def notes(self, config: TrainConfig) -> list[str]:
        """See Family."""
        idle = config.clip_skip is not None
        return [f"clip_skip = {config.clip_skip} has no effect: SDXL reads fixed layers of its encoders"] * idle


def _predict(
    components: Components,
    noisy: Tensor,
    levels: Tensor,
    conditioning: Conditioning,
    time_ids: Tensor | None,
) -> Tensor:
    dtype = base_dtype(components.denoiser)
    added = None
    if conditioning.pooled is not None:
        added = {"text_embeds": conditioning.pooled.to(dtype), "time_ids": time_ids}
    prediction: Tensor = components.denoiser(
        noisy.to(dtype),
        levels,
        encoder_hidden_states=conditioning.hidden.to(dtype),
        added_cond_kwargs=added,
        return_dict=False,
    )[0]
    return prediction


def _is_target(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.kernel_size == (1, 1)
    return isinstance(module, nn.Linear)


SD1 = StableDiffusion(
    name="sd1",
    title="Stable Diffusion 1.x",
    variants=("sd15",),
    native_side=512,
    resolution_floor=256,
    lora_metadata={
        "ss_v2": "False",
        "ss_network_module": "networks.lora",
        "ss_base_model_version": "sd_v1",
        "modelspec.architecture": "stable-diffusion-v1/lora",
        "modelspec.implementation": "diffusers",
    },
)
SD2 = StableDiffusion(
    name="sd2",
    title="Stable Diffusion 2.x",
    variants=("sd21", "sd21-base"),
    native_side=768,
    resolution_floor=256,
    pad_token=ZERO,
    lora_metadata={
        "ss_v2": "True",
        "ss_network_module": "networks.lora",
        "ss_base_model_version": "sd_v2",
        "modelspec.architecture": "stable-diffusion-v2-768-v/lora",
        "modelspec.implementation": "diffusers",
    },
)
SDXL = Sdxl(
    name="sdxl",
    title="SDXL",
    variants=("sdxl-base",),
    native_side=1024,
    resolution_floor=512,
    parts={**_UNET_PARTS, "text_encoder_2": "CLIPTextModelWithProjection"},
    vae_needs_float32=True,
    lora_metadata={
        "ss_v2": "False",
        "ss_network_module": "networks.lora",
        "ss_base_model_version": "sdxl_base_v1-0",
        "modelspec.architecture": "stable-diffusion-xl-v1-base/lora",
        "modelspec.implementation": "https://github.com/Stability-AI/generative-models",
    },
)

FAMILIES: dict[str, Family] = {"sd1": SD1, "sd2": SD2, "sdxl": SDXL}
