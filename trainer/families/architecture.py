"""A single file's architecture, read from its tensor shapes: the arguments of the diffusers/transformers
classes.

Owns the inference from names and shapes in the original LDM/SGM layout, and the shipped figures of the
full-size models. What shapes can't tell (heads, activation, scaling factor) comes from the family. Without
torch.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autotune.errors import ModelError
from trainer.families.family import get_family
from trainer.families.header import Shape

Shapes = Mapping[str, Shape]
Config = dict[str, Any]

ASSETS = Path(__file__).parent / "assets"
UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."

_SD1_HEADS = 8  # at every width
_HEAD_WIDTH = 64  # of SDXL's U-Net and of every CLIP text encoder


def family_configs(family: str, variant: str | None = None) -> dict[str, Config]:
    """The full-size configs of a published `variant` of `family` by component, as a diffusers folder names them
    (unet or transformer, vae, text_encoder..., scheduler); the family's first variant by default.

    An asset names a text encoder that families share, and holds what each variant has of its own. Raises
    ModelError for an unknown variant.
    """
    configs = json.loads(_asset_text(family))
    variants = configs.pop("variants", {})
    if variant is not None and variant not in get_family(family).variants:
        known = ", ".join(get_family(family).variants)
        raise ModelError(f"{family} has no variant {variant!r}.", f"Known: {known}.")
    for name, own in variants.get(variant or get_family(family).variants[0], {}).items():
        configs[name] = _figures(configs[name]) | own
    return {name: _figures(config) for name, config in configs.items()}


def unet_config(family: str, shapes: Shapes, pooled_width: int = 0) -> Config:
    """The U-Net's config from `shapes` (names without `model.diffusion_model.`).

    `pooled_width` is the width of SDXL's pooled text, whose share of the added embedding no shape tells.
    Raises KeyError with the name of a tensor that it needs and the file lacks.
    """
    levels = _unet_levels(shapes)
    attended = [level.depth > 0 for level in levels]
    channels = [level.channels for level in levels]
    middle_depth = _depth(shapes, "middle_block.1.")
    depths = [max(level.depth, 1) for level in levels[:-1]] + [middle_depth]
    config = family_configs(family)["unet"] | {
        "in_channels": shapes["input_blocks.0.0.weight"][1],
        "out_channels": shapes["out.2.weight"][0],
        "layers_per_block": levels[0].layers,
        "block_out_channels": channels,
        "down_block_types": ["CrossAttnDownBlock2D" if on else "DownBlock2D" for on in attended],
        "up_block_types": ["CrossAttnUpBlock2D" if on else "UpBlock2D" for on in reversed(attended)],
        "transformer_layers_per_block": depths,
        "cross_attention_dim": shapes["middle_block.1.transformer_blocks.0.attn2.to_k.weight"][1],
        "attention_head_dim": _SD1_HEADS if family == "sd1" else [c // _HEAD_WIDTH for c in channels],
        "use_linear_projection": len(shapes["middle_block.1.proj_in.weight"]) == 2,
    }
    return config | (_addition(shapes, pooled_width) if family == "sdxl" else {})


def vae_config(family: str, shapes: Shapes) -> Config:
    """The VAE's config from `shapes` (names without `first_stage_model.`). Raises KeyError like
    `unet_config`."""
    levels = _count(shapes, r"encoder\.down\.(\d+)\.")
    channels = [shapes[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in range(levels)]
    return family_configs(family)["vae"] | {
        "latent_channels": shapes["decoder.conv_in.weight"][1],
        "layers_per_block": _count(shapes, r"encoder\.down\.0\.block\.(\d+)\."),
        "block_out_channels": channels,
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "norm_num_groups": math.gcd(32, *channels),  # 32 in every published VAE
    }


def clip_config(family: str, shapes: Shapes) -> Config:
    """The config of a text encoder in transformers' names (without `text_model.`), as in SD 1.x and SDXL's
    first."""
    vocabulary, width = shapes["embeddings.token_embedding.weight"]
    return family_configs(family)["text_encoder"] | {
        "vocab_size": vocabulary,
        "max_position_embeddings": shapes["embeddings.position_embedding.weight"][0],
        "intermediate_size": shapes["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": _count(shapes, r"encoder\.layers\.(\d+)\."),
        **_clip_width(width),
        "projection_dim": width,
    }


def open_clip_config(shapes: Shapes) -> Config:
    """The config of SDXL's second text encoder, written in open_clip's names
    (`transformer.resblocks.0...`)."""
    vocabulary, width = shapes["token_embedding.weight"]
    return family_configs("sdxl")["text_encoder_2"] | {
        "vocab_size": vocabulary,
        "max_position_embeddings": shapes["positional_embedding"][0],
        "intermediate_size": shapes["transformer.resblocks.0.mlp.c_fc.weight"][0],
        "num_hidden_layers": _count(shapes, r"transformer\.resblocks\.(\d+)\."),
        **_clip_width(width),
        "projection_dim": shapes["text_projection"][1],
    }


def _figures(config: Config | str) -> Config:
    """`config` itself, or the shared encoder that it names."""
    if isinstance(config, dict):
        return config
    shared: Config = json.loads(_asset_text("encoders"))[config]
    return shared


@cache
def _asset_text(name: str) -> str:
    return (ASSETS / f"{name}.json").read_text("utf-8")


@dataclass(frozen=True)
class _Level:
    """One resolution of the U-Net's way down: width, resnets, and transformer blocks per attention (0:
    none)."""

    channels: int
    layers: int
    depth: int


def _unet_levels(shapes: Shapes) -> list[_Level]:
    levels: list[_Level] = []
    first, layers = 1, 0
    for block in range(1, _count(shapes, r"input_blocks\.(\d+)\.") + 1):
        if f"input_blocks.{block}.0.in_layers.2.weight" in shapes:
            layers += 1
            continue
        width = shapes[f"input_blocks.{first}.0.in_layers.2.weight"][0]
        levels.append(_Level(width, layers, _depth(shapes, f"input_blocks.{first}.1.")))
        first, layers = block + 1, 0
    return levels


def _depth(shapes: Shapes, prefix: str) -> int:
    return _count(shapes, re.escape(prefix) + r"transformer_blocks\.(\d+)\.")


def _addition(shapes: Shapes, pooled_width: int) -> Config:
    """SDXL adds six numbers (sizes and crop), each embedded alike, beside the pooled text."""
    total = shapes["label_emb.0.0.weight"][1]
    return {
        "addition_time_embed_dim": (total - pooled_width) // 6,
        "projection_class_embeddings_input_dim": total,
    }


def _clip_width(width: int) -> Config:
    return {"hidden_size": width, "num_attention_heads": width // _HEAD_WIDTH}


def _count(shapes: Shapes, pattern: str) -> int:
    """One more than the largest number that `pattern` captures at the start of a name; 0 without a match."""
    matches = (re.match(pattern, name) for name in shapes)
    return max((int(match.group(1)) + 1 for match in matches if match), default=0)
