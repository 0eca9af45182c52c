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


def unet_name(family: str, path: str) -> str:
    """The LoRA name of the U-Net module at `path` (diffusers' naming): `lora_unet_...`."""
    original = sgm_path(path) if family == "sdxl" else path
    return "lora_unet_" + original.replace(".", "_")


def text_name(family: str, encoder: int, path: str) -> str:
    """The LoRA name of the module at `path` in text encoder number `encoder` (0 or 1)."""
    prefix = f"lora_te{encoder + 1}" if family == "sdxl" else "lora_te"
    return f"{prefix}_text_model_{path.removeprefix('text_model.').replace('.', '_')}"


def sgm_path(path: str) -> str:
    """The SGM path of an SDXL U-Net module given diffusers' path. Raises ValueError for one without a block.

    down_blocks.i.{resnets,attentions}.j is input_blocks.(3i+j+1).{0,1}, up_blocks likewise output_blocks.(3i+j);
    a downsampler is input_blocks.(3i+3).0.op, an upsampler output_blocks.(3i+2).2.conv; the middle block
    alternates resnet and attention.
    """
    if match := _LAYERS.fullmatch(path):
        side, block, kind, layer, rest = match.groups()
        return _block_path(side, int(block), kind, int(layer), rest or "")
    if match := _MIDDLE.fullmatch(path):
        kind, layer, rest = match.groups()
        number = 2 * int(layer) if kind == "resnets" else 2 * int(layer) + 1
        return _join(f"middle_block.{number}", _inner(kind, rest or ""))
    raise ValueError(f"{path!r} lies in no block of an SDXL U-Net")


def _block_path(side: str, block: int, kind: str, layer: int, rest: str) -> str:
    if kind == "downsamplers":
        return f"input_blocks.{3 * block + 3}.0.op"
    if kind == "upsamplers":
        return f"output_blocks.{3 * block + 2}.2.{rest}"
    number = 3 * block + layer + 1 if side == "down" else 3 * block + layer
    blocks = "input_blocks" if side == "down" else "output_blocks"
    return _join(f"{blocks}.{number}.{0 if kind == 'resnets' else 1}", _inner(kind, rest))


def _inner(kind: str, rest: str) -> str:
    return _RESNET.get(rest, rest) if kind == "resnets" else rest


def _join(head: str, tail: str) -> str:
    return f"{head}.{tail}" if tail else head
