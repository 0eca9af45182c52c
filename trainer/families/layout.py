"""Where each weight of a diffusers/transformers module lies in a single file (the original LDM/SGM layout).

Owns the mapping, one function per component, from a parameter's name to its `Place` in the file. Reading and
writing both go through it. It touches no tensor and needs no torch.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.families.architecture import UNET_PREFIX, VAE_PREFIX


@dataclass(frozen=True)
class Place:
    """A tensor in a single file: its name, which third of it (0 query, 1 key, 2 value) or all of it (None),
    and whether it is stored transposed."""

    name: str
    third: int | None = None
    transposed: bool = False


PlaceOf = Callable[[str], Place]

SD1_TEXT_PREFIX = "cond_stage_model.transformer.text_model."
SDXL_TEXT_PREFIX = "conditioner.embedders.0.transformer.text_model."
SDXL_TEXT_2_PREFIX = "conditioner.embedders.1.model."


def unet_place(name: str, config: Mapping[str, Any]) -> Place:
    """The place of U-Net parameter `name` (diffusers) for a U-Net of `config`."""
    if match := re.fullmatch(r"(down|up)_blocks\.(\d+)\.(\w+)\.(\d+)\.(.+)", name):
        side, block, kind, layer, rest = match.groups()
        return Place(UNET_PREFIX + _unet_block(config, side, int(block), kind, int(layer), rest))
    if match := re.fullmatch(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)", name):
        kind, layer, rest = match.groups()
        number = 2 * int(layer) + (kind == "attentions")
        return Place(f"{UNET_PREFIX}middle_block.{number}.{_unet_inner(kind, rest)}")
    module, _, leaf = name.rpartition(".")
    return Place(f"{UNET_PREFIX}{_UNET_ENDS[module]}.{leaf}")


def vae_place(name: str, levels: int) -> Place:
    """The place of VAE parameter `name` (diffusers) for a VAE of `levels` resolutions."""
    return Place(VAE_PREFIX + vae_name(name, levels))


def vae_name(name: str, levels: int) -> str:
    """`vae_place` without the prefix, as in files that hold a VAE alone."""
    name = re.sub(r"encoder\.down_blocks\.(\d+)\.", r"encoder.down.\1.", name)
    name = re.sub(r"decoder\.up_blocks\.(\d+)\.", lambda m: f"decoder.up.{levels - 1 - int(m[1])}.", name)
    name = re.sub(r"mid_block\.resnets\.(\d+)\.", lambda m: f"mid.block_{int(m[1]) + 1}.", name)
    for ours, theirs in _VAE_PARTS:
        name = name.replace(ours, theirs)
    return name


def clip_place(name: str, prefix: str) -> Place:
    """The place of text-encoder parameter `name` (without `text_model.`): the file uses transformers'
    names."""
    return Place(prefix + name)


def open_clip_place(name: str) -> Place:
    """The place of parameter `name` (without `text_model.`) of SDXL's second text encoder, kept as
    open_clip."""
    if match := re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", name):
        return _open_clip_layer(f"{SDXL_TEXT_2_PREFIX}transformer.resblocks.{match[1]}.", match[2])
    if name == "text_projection.weight":
        return Place(SDXL_TEXT_2_PREFIX + "text_projection", transposed=True)
    return Place(SDXL_TEXT_2_PREFIX + _OPEN_CLIP_ENDS[name])


_UNET_ENDS = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_UNET_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_VAE_PARTS: Sequence[tuple[str, str]] = (
    ("resnets.", "block."),
    ("conv_shortcut", "nin_shortcut"),
    ("downsamplers.0", "downsample"),
    ("upsamplers.0", "upsample"),
    ("mid_block.attentions.0.group_norm", "mid.attn_1.norm"),
    ("mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out"),
    ("mid_block.attentions.0.to_", "mid.attn_1."),
    ("conv_norm_out", "norm_out"),
)
_OPEN_CLIP_ENDS = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}
_OPEN_CLIP_LAYER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def _unet_block(config: Mapping[str, Any], side: str, block: int, kind: str, layer: int, rest: str) -> str:
    """A level has `layers_per_block` resnets and a downsampler on the way down, one resnet more on the way
    up."""
    stride = config["layers_per_block"] + 1
    if kind == "downsamplers":
        return f"input_blocks.{stride * (block + 1)}.0.{rest.replace('conv.', 'op.')}"
    if kind == "upsamplers":
        slot = 2 if config["up_block_types"][block].startswith("CrossAttn") else 1
        return f"output_blocks.{stride * block + stride - 1}.{slot}.{rest}"
    number = stride * block + layer
    head = f"input_blocks.{number + 1}" if side == "down" else f"output_blocks.{number}"
    return f"{head}.{int(kind == 'attentions')}.{_unet_inner(kind, rest)}"


def _unet_inner(kind: str, rest: str) -> str:
    if kind == "attentions":
        return rest
    module, _, leaf = rest.rpartition(".")
    return f"{_UNET_RESNET[module]}.{leaf}"


def _open_clip_layer(head: str, rest: str) -> Place:
    module, _, leaf = rest.rpartition(".")
    if module in _OPEN_CLIP_LAYER:
        return Place(f"{head}{_OPEN_CLIP_LAYER[module]}.{leaf}")
    third = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj").index(module)
    return Place(f"{head}attn.in_proj_{leaf}", third)
