"""From a module's path to the name every UI knows its LoRA by (kohya's). Owns the mapping, touches no tensor.

SD 1.x keeps the U-Net paths of diffusers; SDXL uses the original (SGM) ones, since the UIs read no others for
all of its layers. Text encoders are named `lora_te` (SD 1.x) or `lora_te1`/`lora_te2` (SDXL), always with
`text_model`, whether the installed transformers nests it or not.
"""

import re

_LAYERS = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)(?:\.(.*))?")
_MIDDLE = re.compile(r"mid_block\.(resnets|attentions)\.(\d+)(?:\.(.*))?")
_RESNET = {
    "conv1": "in_layers.2",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}


def plain_unet_name(path: str) -> str:
    """The LoRA name of the U-Net module at `path` (diffusers' naming): `lora_unet_...`."""
    return "lora_unet_" + path.replace(".", "_")


def sgm_unet_name(path: str, layers_per_block: int = 2) -> str:
    """The LoRA name of the SDXL U-Net module at `path` (diffusers' naming)."""
    return plain_unet_name(sgm_path(path, layers_per_block))


def text_name(prefix: str, path: str) -> str:
    """The LoRA name of the module at `path` in a CLIP text encoder whose names start with `prefix`."""
    return f"{prefix}_text_model_{path.removeprefix('text_model.').replace('.', '_')}"


def sgm_path(path: str, layers_per_block: int = 2) -> str:
    """The SGM path of an SDXL U-Net module given diffusers' path. Raises ValueError for one without a block.

    With SDXL's two layers per block: down_blocks.i.{resnets,attentions}.j is input_blocks.(3i+j+1).{0,1},
    up_blocks likewise output_blocks.(3i+j); a downsampler is input_blocks.(3i+3).0.op, an upsampler
    output_blocks.(3i+2).2.conv; the middle block alternates resnet and attention.
    """
    if match := _LAYERS.fullmatch(path):
        side, block, kind, layer, rest = match.groups()
        first = int(block) * (layers_per_block + 1)
        return _block_path(side, first, kind, int(layer), rest or "", layers_per_block)
    if match := _MIDDLE.fullmatch(path):
        kind, layer, rest = match.groups()
        number = 2 * int(layer) if kind == "resnets" else 2 * int(layer) + 1
        return _join(f"middle_block.{number}", _inner(kind, rest or ""))
    raise ValueError(f"{path!r} lies in no block of an SDXL U-Net")


def _block_path(side: str, first: int, kind: str, layer: int, rest: str, layers_per_block: int) -> str:
    if kind == "downsamplers":
        return f"input_blocks.{first + layers_per_block + 1}.0.op"
    if kind == "upsamplers":
        return f"output_blocks.{first + layers_per_block}.2.{rest}"
    number = first + layer + (side == "down")
    blocks = "input_blocks" if side == "down" else "output_blocks"
    return _join(f"{blocks}.{number}.{0 if kind == 'resnets' else 1}", _inner(kind, rest))


def _inner(kind: str, rest: str) -> str:
    return _RESNET.get(rest, rest) if kind == "resnets" else rest


def _join(head: str, tail: str) -> str:
    return f"{head}.{tail}" if tail else head
