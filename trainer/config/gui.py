"""The kohya_ss GUI's saved settings. Owns what its keys mean: percent warm-up, 0 and "" for unset, keys that
gate each other, the adapter type; never reads files.
"""

from collections.abc import Mapping
from typing import Any

from trainer.config.values import SpellingFault, is_true, parse_float, shown

Written = tuple[tuple[str, ...], Any]

_MARKS = frozenset(
    (
        "model_list",
        "additional_parameters",
        "lr_warmup",
        "stop_text_encoder_training",
        "caption_dropout_every_n_epochs",
        "num_cpu_threads_per_process",
        "vae_batch_size",
    )
)
_NAMES = {"max_resolution": "resolution", "optimizer": "optimizer_type"}
_HONOURED = ("LoRA_type", "sdxl", "noise_offset_type")  # they steer what the other keys mean
_PLAIN_LORA = ("standard", "kohya lora")
_FAMILIES = {"flux1": "Flux.1", "sd3": "Stable Diffusion 3", "lumina": "Lumina"}


def is_gui(flat: Mapping[str, Any]) -> bool:
    """Whether the keys are those of the GUI: LoRA_type, or its resolution beside other keys only it saves."""
    return "LoRA_type" in flat or ("max_resolution" in flat and len(_MARKS & flat.keys()) >= 2)


def plain_name(key: str) -> str:
    """The training script's name of a GUI key."""
    return _NAMES.get(key, key)


def refuse_other_adapters(flat: Mapping[str, Any]) -> None:
    """Raise SpellingFault when the file trains what is no plain LoRA, or a family that we don't have."""
    kind = str(flat.get("LoRA_type", "Standard")).strip()
    family = _FAMILIES.get(kind.lower()) or next(
        (name for mark, name in _FAMILIES.items() if is_true(flat.get(f"{mark}_checkbox"))), None
    )
    if family:
        raise SpellingFault(
            f"LoRA_type = {shown(kind)} trains {family}, a family this version does not have.",
            "Use an SD 1.x or SDXL base model.",
        )
    if kind and kind.lower() not in _PLAIN_LORA:
        raise SpellingFault(
            f"LoRA_type = {shown(kind)} is not a plain LoRA, the one adapter this version trains.",
            "Choose the type Standard in the GUI and save again.",
        )


def gui_notes(flat: Mapping[str, Any]) -> list[str]:
    """What a reader should know about keys that another key switches off."""
    notes = []
    if _noise_kind(flat) == "multires" and _number(flat, "noise_offset"):
        notes.append(f"noise_offset = {shown(flat['noise_offset'])} is off: noise_offset_type is Multires")
    if _noise_kind(flat) != "multires" and _number(flat, "multires_noise_iterations"):
        iterations = shown(flat["multires_noise_iterations"])
        notes.append(f"multires_noise_iterations = {iterations} is off: noise_offset_type is Original")
    if _number(flat, "conv_dim") > 1:  # the GUI hands it on for LoCon and LyCORIS alone
        notes.append(f"conv_dim = {shown(flat['conv_dim'])} is off: a Standard LoRA has no 3x3 convolutions")
    if not _number(flat, "max_train_epochs") and _number(flat, "max_train_steps") and _number(flat, "epoch"):
        notes.append(f"epoch = {shown(flat['epoch'])} is not used: max_train_steps is set")
    if _number(flat, "lr_warmup_steps") and _number(flat, "lr_warmup"):
        notes.append(f"lr_warmup = {shown(flat['lr_warmup'])} is not used: lr_warmup_steps is set")
    return notes


def resolve_gui(written: list[Written]) -> list[Written]:
    """The file's keys and values as the training script would get them, each still at its place."""
    flat = {place[-1]: value for place, value in written}
    unused = _unused(flat)
    resolved: list[Written] = []
    for place, value in written:
        key = place[-1]
        if key in _RENAMED and key not in unused and value not in (None, ""):
            name, convert = _RENAMED[key]
            resolved.append(((*place[:-1], name), convert(key, value)))
        elif key not in unused and key not in _RENAMED:
            resolved.append((place, value))
    return resolved


def _unused(flat: Mapping[str, Any]) -> set[str]:
    """Keys that the GUI does not hand on, given the others."""
    unused = {*_HONOURED, "conv_dim", "conv_alpha"} | _unused_noise(flat)
    unused |= {key for key in ("seed", "lr_warmup_steps") if not _number(flat, key)}
    if _number(flat, "lr_warmup_steps"):
        unused.add("lr_warmup")
    if _number(flat, "max_train_epochs") or _number(flat, "max_train_steps"):
        unused.add("epoch")
    if not _number(flat, "unet_lr") and not _number(flat, "text_encoder_lr"):
        unused |= {"unet_lr", "text_encoder_lr"}  # both zero: learning_rate counts
    if not is_true(flat.get("sdxl")):
        unused |= {"sdxl_no_half_vae", "sdxl_cache_text_encoder_outputs"}
    return unused


def _unused_noise(flat: Mapping[str, Any]) -> set[str]:
    if _noise_kind(flat) == "multires":
        return {"noise_offset", "adaptive_noise_scale", "noise_offset_random_strength"}
    unset = set() if _number(flat, "noise_offset") else {"adaptive_noise_scale"}
    return unset | {"multires_noise_iterations", "multires_noise_discount"}


def _noise_kind(flat: Mapping[str, Any]) -> str:
    return str(flat.get("noise_offset_type", "Original")).lower()


def _warmup_share(key: str, value: object) -> float:
    percent = parse_float(value)
    if not 0 <= percent < 100:
        raise SpellingFault(
            f"{key} = {shown(value)} is outside 0 to 99 percent.", "Warm up for 10 percent or less."
        )
    return percent / 100


def _same(key: str, value: object) -> object:
    return value


_RENAMED = {
    "lr_warmup": ("lr_warmup_steps", _warmup_share),
    "epoch": ("max_train_epochs", _same),
    "sdxl_no_half_vae": ("no_half_vae", _same),
    "sdxl_cache_text_encoder_outputs": ("cache_text_encoder_outputs", _same),
}


def _number(flat: Mapping[str, Any], key: str) -> float:
    """The number at `key`, 0 when it is unset or none."""
    try:
        return parse_float(flat.get(key))
    except SpellingFault:
        return 0.0
