"""Which model family lies at a path, and whether it can be trained: from headers alone, in a moment.

Owns the recognition of base models (a diffusers folder, or a single .safetensors or .ckpt file) and the
refusal of everything else with a way out. Imports no torch, reads no weights, executes nothing, downloads
nothing.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.errors import ModelError
from trainer.families.architecture import UNET_PREFIX, VAE_PREFIX, Shapes
from trainer.families.family import family_of_denoiser
from trainer.families.header import Header, Kind, read_header

Layout = Literal["diffusers", "single-file"]

COMPONENTS = {
    "sd1": ("unet", "vae", "text_encoder"),
    "sd2": ("unet", "vae", "text_encoder"),
    "sdxl": ("unet", "vae", "text_encoder", "text_encoder_2"),
}
_IN_ONE_FILE = " in one file"
_TRAINED = (
    "This version trains Stable Diffusion 1.x and SDXL, and from diffusers folders also Stable Diffusion 2.x "
    "and 3.x, FLUX.1, FLUX.2-klein, PixArt-Sigma, Z-Image, Qwen-Image, Chroma, AuraFlow and Wan 2.1."
)


@dataclass(frozen=True)
class Detected:
    """A base model as found: `detail` says in words what it is, and `obstacle` why it can't be trained, if
    so."""

    family: str  # `unknown` where it is none that we know
    layout: Layout
    kind: Kind
    detail: str
    obstacle: str = ""

    @property
    def has_known_figures(self) -> bool:
        """Whether the model can be built: at most the layout of its file keeps it from being trained."""
        return not self.obstacle or self.obstacle.endswith(_IN_ONE_FILE)


def detect_family(path: str | Path, *, trainable: bool = True, weights: bool = True) -> Detected:
    """What lies at `path`, a diffusers folder or a model file; of a folder without `weights` only config.json
    files are asked for.

    Raises ModelError when nothing is there, when it is damaged or incomplete, and, unless `trainable` is
    False, when it is of a family or kind that this version can't train.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise _missing(path)
    detected = _detect_folder(path, weights) if path.is_dir() else _detect_file(path)
    if trainable and detected.obstacle:
        raise ModelError(f"{path} can't be trained: {detected.obstacle}.", _TRAINED)
    return detected


def component_config(folder: Path) -> dict[str, Any]:
    """The config.json of one component of a diffusers folder. Raises ModelError when it is missing or
    broken."""
    if not (folder / "config.json").exists():
        raise ModelError(
            f"{folder.parent} lacks {folder.name}/config.json.",
            "The diffusers folder is incomplete: download that file again.",
        )
    return read_json(folder / "config.json")


def component_weights(folder: Path) -> Path:
    """The weights of one component of a diffusers folder: its file, or the index of its shards.

    safetensors go before .bin, full precision before fp16. Raises ModelError when there are none, or a
    shard is missing or damaged.
    """
    for name in _weight_names():
        if (folder / name).exists():
            _check_shards(folder / name)
            return folder / name
    raise ModelError(
        f"{folder.parent} lacks {folder.name}/{_expected_name(folder.name)}.",
        "The diffusers folder is incomplete: download that file again.",
    )


def shard_files(index: Path) -> list[Path]:
    """The files that hold the weights that `component_weights` found: itself, or the shards of the index."""
    if not index.name.endswith(".index.json"):
        return [index]
    return [index.parent / name for name in sorted(set(read_json(index).get("weight_map", {}).values()))]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file at `path`. Raises ModelError when it is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not readable JSON.", "Download that file again.")
    return content


def _missing(path: Path) -> ModelError:
    parent = next(p for p in path.absolute().parents if p.exists())
    way_out = "Check pretrained_model_name_or_path."
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not path.suffix:
        way_out = "Models are not downloaded from the Hugging Face hub: download it and give its folder or file."
    elif parent == path.absolute().parent:
        names = sorted(p.name for p in parent.iterdir()) if parent.is_dir() else []
        close = difflib.get_close_matches(path.name, names, n=1)
        way_out = f"Did you mean {close[0]}? {way_out}" if close else way_out
    return ModelError(f"base model {path} does not exist (nearest that exists: {parent}).", way_out)


# --- a diffusers folder -------------------------------------------------------------------------------------


def _detect_folder(path: Path, weights: bool) -> Detected:
    index = path / "model_index.json"
    if not index.exists() and not any((path / name / "config.json").exists() for name in ("unet", "transformer")):
        raise ModelError(
            f"{path} is no diffusers model folder: it has neither model_index.json nor unet/config.json.",
            "Give a diffusers folder or a single .safetensors or .ckpt file" + _files_inside(path),
        )
    listed = read_json(index) if index.exists() else {}
    if "transformer" in listed or (path / "transformer" / "config.json").exists():
        return _detect_transformer_folder(path, listed, weights)
    return _detect_unet_folder(path, weights)


def _detect_transformer_folder(path: Path, listed: Mapping[str, Any], weights: bool) -> Detected:
    kind = str(component_config(path / "transformer").get("_class_name"))
    family = family_of_denoiser(kind)
    if family is None:
        name = listed.get("_class_name", kind)
        return Detected("unknown", "diffusers", "safetensors", str(name), f"it is a {name}")
    present = [name for name in ("text_encoder", "text_encoder_2", "text_encoder_3") if (path / name).is_dir()]
    return Detected(family, "diffusers", _kind_of_parts(path, ["transformer", "vae", *present], weights), kind)


def _files_inside(path: Path) -> str:
    names = sorted(p.name for p in path.iterdir() if p.suffix in (".safetensors", ".ckpt"))
    return f" (this folder holds {names[0]})." if names else "."


def _detect_unet_folder(path: Path, weights: bool) -> Detected:
    unet = component_config(path / "unet")
    family, obstacle = _folder_family(unet)
    kind = _kind_of_parts(path, COMPONENTS.get(family, ("unet",)), weights)
    channels = "/".join(str(c) for c in unet.get("block_out_channels", ()))
    return Detected(family, "diffusers", kind, f"{_FAMILY_NAMES[family]}, U-Net {channels}", obstacle)


def _kind_of_parts(path: Path, names: Sequence[str], weights: bool) -> Kind:
    """How the denoiser, the first of `names`, is stored. Raises ModelError for one that lacks a file."""
    found: list[Path] = []
    for name in names:
        component_config(path / name)
        if weights:
            found.append(component_weights(path / name))
    shards = shard_files(found[0]) if found else []
    return "safetensors" if all(shard.suffix == ".safetensors" for shard in shards) else "ckpt"


def _folder_family(unet: Mapping[str, Any]) -> tuple[str, str]:
    channels = unet.get("in_channels", 4)
    if unet.get("addition_embed_type") == "text_time":
        refiner = unet.get("cross_attention_dim") == 1280
        return ("unknown", _REFINER) if refiner else ("sdxl", _channels_obstacle(channels))
    if unet.get("use_linear_projection") or unet.get("cross_attention_dim") == 1024:
        return "sd2", _channels_obstacle(channels)
    return "sd1", _channels_obstacle(channels)


def _weight_names() -> list[str]:
    stems = ("diffusion_pytorch_model", "model", "pytorch_model")
    names = []
    for suffix in ("safetensors", "bin"):
        for variant in ("", ".fp16"):
            for stem in stems:
                names += [f"{stem}{variant}.{suffix}", f"{stem}.{suffix}.index{variant}.json"]
    return names


def _expected_name(component: str) -> str:
    return "model.safetensors" if component.startswith("text_encoder") else "diffusion_pytorch_model.safetensors"


def _check_shards(weights: Path) -> None:
    for shard in shard_files(weights):
        if not shard.exists():
            raise ModelError(f"{shard} is missing, named by {weights.name}.", "Download that file again.")
        _refuse_fp8(shard, read_header(shard))


# --- a single file ------------------------------------------------------------------------------------------

_FAMILY_NAMES = {
    "sd1": "Stable Diffusion 1.x",
    "sd2": "Stable Diffusion 2.x",
    "sdxl": "SDXL",
    "flux1": "FLUX",
    "sd3": "Stable Diffusion 3",
    "unknown": "an unknown model",
}
_SD2 = "it is a Stable Diffusion 2.x model" + _IN_ONE_FILE
_REFINER = "it is the SDXL refiner, not the base model"
_LORA_MARKS = (
    ".lora_down.weight",
    ".lora_up.weight",
    ".lora_A.weight",
    ".lora_B.weight",
    ".lora.down.weight",
)


def _detect_file(path: Path) -> Detected:
    header = read_header(path)
    shapes = header.shapes
    family, obstacle = _file_family(shapes)
    _refuse_fp8(path, header)
    if not obstacle:
        obstacle = _channels_obstacle(shapes[UNET_PREFIX + "input_blocks.0.0.weight"][1])
    if not obstacle and f"{VAE_PREFIX}decoder.conv_in.weight" not in shapes:
        raise ModelError(f"{path} has no VAE inside.", "Use the full checkpoint, not the U-Net alone.")
    return Detected(family, "single-file", header.kind, f"{_FAMILY_NAMES[family]}, {_dtypes(header)}", obstacle)


def _file_family(shapes: Shapes) -> tuple[str, str]:
    """The family by names that only one family has, and what keeps it from being trained."""
    if any(name.endswith(_LORA_MARKS) for name in shapes):
        return (
            "unknown",
            "it is a LoRA, not a base model (pretrained_model_name_or_path wants the checkpoint)",
        )
    if _has(shapes, r"(model\.diffusion_model\.)?double_blocks\."):
        return "flux1", "it is a FLUX model" + _IN_ONE_FILE
    if _has(shapes, r"(model\.diffusion_model\.)?joint_blocks\."):
        return "sd3", "it is a Stable Diffusion 3 model" + _IN_ONE_FILE
    if UNET_PREFIX + "input_blocks.0.0.weight" not in shapes:
        return "unknown", _without_unet(shapes)
    return _unet_family(shapes)


def _unet_family(shapes: Shapes) -> tuple[str, str]:
    if _has(shapes, r"conditioner\.embedders\.1\."):
        return "sdxl", ""
    if _has(shapes, r"conditioner\.embedders\.0\.model\."):
        return "unknown", _REFINER
    if _has(shapes, r"cond_stage_model\.model\."):
        return "sd2", _SD2
    if _has(shapes, r"cond_stage_model\."):
        return "sd1", ""
    return "unknown", "it holds a U-Net without its text encoder; use the full checkpoint"


def _without_unet(shapes: Shapes) -> str:
    if _has(shapes, r"(down_blocks|mid_block)\."):
        return "it holds one component in the diffusers layout; give the folder that holds all of them"
    if _has(shapes, r"(first_stage_model\.)?(encoder|decoder)\."):
        return "it holds a VAE alone; a VAE belongs under `vae`"
    return f"no model is recognised in its {len(shapes)} tensors"


def _channels_obstacle(channels: int) -> str:
    if channels == 4:
        return ""
    kind = {9: "an inpainting model", 8: "an instruct-pix2pix model"}.get(channels, "a special model")
    return f"it is {kind} (its U-Net reads {channels} channels, not 4)"


def _refuse_fp8(path: Path, header: Header) -> None:
    dtypes = sorted({i.dtype for i in header.tensors.values() if i.dtype.upper().startswith(("F8", "FLOAT8"))})
    if dtypes:
        raise ModelError(
            f"{path} holds 8-bit float weights ({', '.join(dtypes)}), too coarse to train on.",
            "Use the fp16, bf16 or fp32 file of this model.",
        )


def _dtypes(header: Header) -> str:
    return "/".join(sorted({info.dtype for name, info in header.tensors.items() if name.startswith(UNET_PREFIX)}))


def _has(shapes: Shapes, pattern: str) -> bool:
    return any(re.match(pattern, name) for name in shapes)
