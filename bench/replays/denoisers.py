"""The denoisers that rows name: diffusers class, published figures, and the inputs one training step gives them.

Owns figures and shapes. Everything is built on `meta`: no weights, no files, no network. Must never depend on what
a row measured.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.memory.interval import Interval

Inputs = Callable[["Batch"], dict[str, Any]]
NOTHING = Interval(0, 0)
_LUMINA2_TOKENS = 33  # the trainer's system prompt (23 words), its `<Prompt Start>` and a one-word caption


@dataclass(frozen=True)
class Batch:
    """What a step's inputs depend on. `make` gives a tensor of a shape on the device, in the base precision unless
    told otherwise; `latent` is the side-by-side size (height, width) of the latents."""

    size: int
    height: int
    width: int
    make: Callable[..., Any]


@dataclass(frozen=True)
class DenoiserKind:
    """One architecture: how it is built and called, and what is trained where the row names no targets."""

    class_name: str
    figures: Mapping[str, Any]
    inputs: Inputs
    latent_channels: int
    latent_factor: int = 8
    text_tokens: int = 77
    flow_matching: bool = True
    targets: tuple[str, ...] = ("to_k", "to_q", "to_v", "to_out.0")
    assumption: str = ""
    learned_variance: bool = False
    prepare: Callable[[Any], object] = id
    """Makes a model on the host read what it needs of inputs that have no values on the null GPU."""
    unstated: Interval = NOTHING
    """Memory of residents that the source doesn't state the size of."""


def normal_name(family: str) -> str:
    """`SD 1.x` and `sd1x`, `Z-Image Turbo` and `z_image_turbo` are the same family."""
    return re.sub(r"[^a-z0-9]", "", family.lower())


def build_denoiser(kind: DenoiserKind, dtype: Any) -> Any:
    """The denoiser on `meta` in `dtype`, frozen."""
    import diffusers
    import torch

    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            module = getattr(diffusers, kind.class_name)(**kind.figures)
    finally:
        torch.set_default_dtype(default)
    kind.prepare(module)
    return module.to(dtype).requires_grad_(False)


def _unet_inputs(channels: int, tokens: int, width: int) -> Inputs:
    def inputs(batch: Batch) -> dict[str, Any]:
        return {
            "sample": batch.make(batch.size, channels, batch.height, batch.width),
            "timestep": batch.make(batch.size, integer=True),
            "encoder_hidden_states": batch.make(batch.size, tokens, width),
        }

    return inputs


def _sdxl_inputs(tokens: int, width: int, pooled: int) -> Inputs:
    plain = _unet_inputs(4, tokens, width)

    def inputs(batch: Batch) -> dict[str, Any]:
        extra = {"text_embeds": batch.make(batch.size, pooled), "time_ids": batch.make(batch.size, 6)}
        return plain(batch) | {"added_cond_kwargs": extra}

    return inputs


def _sd3_inputs(batch: Batch) -> dict[str, Any]:
    return {
        "hidden_states": batch.make(batch.size, 16, batch.height, batch.width),
        "encoder_hidden_states": batch.make(batch.size, 77 + 154, 4096),
        "pooled_projections": batch.make(batch.size, 2048),
        "timestep": batch.make(batch.size),
    }


def _flux_inputs(guidance: bool) -> Inputs:
    def inputs(batch: Batch) -> dict[str, Any]:
        tokens = batch.height // 2 * (batch.width // 2)
        values = {
            "hidden_states": batch.make(batch.size, tokens, 64),
            "encoder_hidden_states": batch.make(batch.size, 512, 4096),
            "timestep": batch.make(batch.size),
            "img_ids": batch.make(tokens, 3),
            "txt_ids": batch.make(512, 3),
        }
        if guidance:
            values |= {"pooled_projections": batch.make(batch.size, 768), "guidance": batch.make(batch.size)}
        return values

    return inputs


def _pixart_inputs(batch: Batch) -> dict[str, Any]:
    nothing = {"resolution": None, "aspect_ratio": None}
    return {
        "hidden_states": batch.make(batch.size, 4, batch.height, batch.width),
        "encoder_hidden_states": batch.make(batch.size, 300, 4096),
        "encoder_attention_mask": batch.make(batch.size, 300),
        "timestep": batch.make(batch.size),
        "added_cond_kwargs": nothing,
    }


def _zimage_inputs(batch: Batch) -> dict[str, Any]:
    return {
        "x": [batch.make(16, 1, batch.height, batch.width) for _ in range(batch.size)],
        "t": batch.make(batch.size),
        "cap_feats": [batch.make(32, 2560) for _ in range(batch.size)],
    }


def _lumina2_inputs(batch: Batch) -> dict[str, Any]:
    return {
        "hidden_states": batch.make(batch.size, 16, batch.height, batch.width),
        "timestep": batch.make(batch.size),
        "encoder_hidden_states": batch.make(batch.size, 256, 2304),
        "encoder_attention_mask": batch.make(batch.size, 256, boolean=True),
    }


def _tell_caption_length(model: Any) -> None:
    """Lumina2 reads from its mask how many tokens a caption has: a mask on the host tells it."""

    def with_host_mask(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden_states, mask = arguments
        known = mask.new_zeros(mask.shape, device="cpu")
        known[:, :_LUMINA2_TOKENS] = True
        return hidden_states, known

    model.rope_embedder.register_forward_pre_hook(with_host_mask)


def _sana_inputs(batch: Batch) -> dict[str, Any]:
    return {
        "hidden_states": batch.make(batch.size, 32, batch.height, batch.width),
        "timestep": batch.make(batch.size),
        "encoder_hidden_states": batch.make(batch.size, 300, 2304),
        "encoder_attention_mask": batch.make(batch.size, 300),
    }


def _auraflow_inputs(batch: Batch) -> dict[str, Any]:
    return {
        "hidden_states": batch.make(batch.size, 4, batch.height, batch.width),
        "encoder_hidden_states": batch.make(batch.size, 120, 2048),
        "timestep": batch.make(batch.size),
    }


def _qwen_inputs(batch: Batch) -> dict[str, Any]:
    tokens = batch.height // 2 * (batch.width // 2)
    return {
        "hidden_states": batch.make(batch.size, tokens, 64),
        "encoder_hidden_states": batch.make(batch.size, 256, 3584),
        "encoder_hidden_states_mask": None,
        "timestep": batch.make(batch.size),
        "img_shapes": [[(1, batch.height // 2, batch.width // 2)]] * batch.size,
    }


def _wan_inputs(frames: int) -> Inputs:
    def inputs(batch: Batch) -> dict[str, Any]:
        return {
            "hidden_states": batch.make(batch.size, 16, frames, batch.height, batch.width),
            "timestep": batch.make(batch.size),
            "encoder_hidden_states": batch.make(batch.size, 512, 4096),
        }

    return inputs


_UNET_SD1 = {
    "sample_size": 64,
    "block_out_channels": (320, 640, 1280, 1280),
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
}
_UNET_SDXL = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
_SD35_MEDIUM = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 24,
    "attention_head_dim": 64,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)),
    "qk_norm": "rms_norm",
}
_PIXART_SIGMA = {
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 28,
    "norm_num_groups": 32,
    "cross_attention_dim": 1152,
    "attention_bias": True,
    "sample_size": 128,
    "patch_size": 2,
    "activation_fn": "gelu-approximate",
    "num_embeds_ada_norm": 1000,
    "norm_elementwise_affine": False,
    "norm_eps": 1e-6,
    "caption_channels": 4096,
    "use_additional_conditions": False,
}
_FLUX2_KLEIN = {
    "patch_size": 1,
    "in_channels": 128,
    "num_layers": 5,
    "num_single_layers": 20,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "timestep_guidance_channels": 256,
    "mlp_ratio": 3.0,
    "axes_dims_rope": (32, 32, 32, 32),
    "rope_theta": 2000,
    "eps": 1e-6,
    "guidance_embeds": False,
}


def _flux2_inputs(batch: Batch) -> dict[str, Any]:
    tokens = batch.height * batch.width
    return {
        "hidden_states": batch.make(batch.size, tokens, 128),
        "encoder_hidden_states": batch.make(batch.size, 512, 7680),
        "timestep": batch.make(batch.size),
        "img_ids": batch.make(tokens, 4),
        "txt_ids": batch.make(512, 4),
    }


_SD1 = DenoiserKind("UNet2DConditionModel", _UNET_SD1, _unet_inputs(4, 77, 768), 4, flow_matching=False)
_SDXL = DenoiserKind("UNet2DConditionModel", _UNET_SDXL, _sdxl_inputs(77, 2048, 1280), 4, flow_matching=False)
_KOLORS = DenoiserKind(
    "UNet2DConditionModel",
    _UNET_SDXL
    | {
        "encoder_hid_dim_type": "text_proj",
        "encoder_hid_dim": 4096,
        "projection_class_embeddings_input_dim": 5632,
    },
    _sdxl_inputs(77, 4096, 4096),
    4,
    flow_matching=False,
)
_SD3 = DenoiserKind(
    "SD3Transformer2DModel",
    _SD35_MEDIUM,
    _sd3_inputs,
    16,
    text_tokens=231,
    assumption="SD3.5-medium figures; 77 CLIP and 154 T5 tokens",
)
_FLUX1 = DenoiserKind(
    "FluxTransformer2DModel",
    {"guidance_embeds": True},
    _flux_inputs(True),
    16,
    text_tokens=512,
    targets=("to_k", "to_q", "to_v", "to_out.0", "to_qkv"),
)
_ZIMAGE = DenoiserKind(
    "ZImageTransformer2DModel",
    {},
    _zimage_inputs,
    16,
    text_tokens=32,
    assumption="a one-word caption, padded to 32 tokens",
)
# The trainer loads a frozen adapter (ostris/zimage_turbo_training_adapter) under this distilled model by default.
# Its rank is not stated: 16 and 32 are the usual ones for such adapters. Layers: q, k, v, out, the three of the
# feed-forward part and the modulation of 30 blocks, 2 bytes a parameter.
_ZIMAGE_ADAPTER_BYTES_PER_RANK = 2 * 30 * (4 * 2 * 3840 + 3 * (3840 + 10240) + 256 + 4 * 3840)

DENOISERS: Mapping[str, DenoiserKind] = {
    "flux2klein": DenoiserKind(
        "Flux2Transformer2DModel", _FLUX2_KLEIN, _flux2_inputs, 128, latent_factor=16, text_tokens=512
    ),
    "sd1x": _SD1,
    "sd15": _SD1,
    "sdxl": _SDXL,
    "kolors": _KOLORS,
    "sd3": _SD3,
    "sd35medium": _SD3,
    "flux": _FLUX1,
    "flux1": _FLUX1,
    "flux1dev": _FLUX1,
    "pixart": DenoiserKind(
        "PixArtTransformer2DModel",
        _PIXART_SIGMA,
        _pixart_inputs,
        4,
        text_tokens=300,
        learned_variance=True,
        flow_matching=False,
    ),
    "zimage": _ZIMAGE,
    "zimageturbo": replace(
        _ZIMAGE,
        assumption=_ZIMAGE.assumption + "; a frozen training adapter of rank 16 to 32",
        unstated=Interval(16 * _ZIMAGE_ADAPTER_BYTES_PER_RANK, 32 * _ZIMAGE_ADAPTER_BYTES_PER_RANK),
    ),
    "lumina2": DenoiserKind(
        "Lumina2Transformer2DModel",
        {"sample_size": 128, "cap_feat_dim": 2304, "axes_lens": (300, 512, 512)},
        _lumina2_inputs,
        16,
        text_tokens=256,
        prepare=_tell_caption_length,
        assumption="a caption of 33 tokens with the system prompt, padded to 256",
        targets=("to_k", "to_q", "to_v", "to_out.0", "to_qkv"),
    ),
    "sana": DenoiserKind("SanaTransformer2DModel", {}, _sana_inputs, 32, latent_factor=32, text_tokens=300),
    "auraflow": DenoiserKind(
        "AuraFlowTransformer2DModel",
        {"pos_embed_max_size": 9216},
        _auraflow_inputs,
        4,
        text_tokens=120,
        targets=("to_k", "to_q", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
        assumption="AuraFlow v0.3 figures",
    ),
    "chroma": DenoiserKind(
        "ChromaTransformer2DModel",
        {},
        _flux_inputs(False),
        16,
        text_tokens=512,
        targets=("to_k", "to_q", "to_v", "to_out.0", "to_qkv"),
        assumption="512 T5 tokens, no mask",
    ),
    "qwenimage": DenoiserKind(
        "QwenImageTransformer2DModel", {}, _qwen_inputs, 16, text_tokens=256, assumption="256 text tokens"
    ),
}
