"""What one written key asks for. Owns the keys that are no plain setting (flags of other scripts, argument
lists, refusals) and the words of the notes; never knows which file a key stands in.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainer.config.known import ALIASES, FIELDS, KNOWN, is_neutral, suggestion
from trainer.config.optimizers import optimizer_settings, split_arguments
from trainer.config.values import UNSET, SpellingFault, is_true, parse_bool, parse_value, shown


@dataclass(frozen=True)
class Meaning:
    """The settings (canonical key, raw value) that a written key stands for, and what to tell the user."""

    values: tuple[tuple[str, object], ...] = ()
    notes: tuple[str, ...] = ()


def meaning_of(key: str, raw: object) -> Meaning:
    """What `key = raw` asks for; an unknown key is a note. Raises SpellingFault for what can't be trained."""
    if key in _RULES:
        return Meaning() if raw is None or raw == "" else _RULES[key](key, raw)
    canonical = canonical_key(key)
    if canonical:
        return Meaning(((canonical, raw),))
    if key in KNOWN:
        return Meaning(notes=() if is_neutral(key, raw) else (not_used(key, raw),))
    return Meaning(notes=(f"unknown key '{shown(key)}'{suggestion(key) or ': not used'}",))


def canonical_key(key: str) -> str | None:
    """Our name for a plain setting written as `key`, or None when it is none."""
    return key if key in FIELDS else ALIASES.get(key)


def not_used(key: str, raw: object, within: str = "") -> str:
    """The note for a key we know and don't honour yet: what happens instead."""
    return f"known, not used yet: {within}{key} = {shown(raw)}: {KNOWN[key]}"


def _v2(key: str, raw: object) -> Meaning:
    if parse_bool(raw):
        raise SpellingFault(
            "means Stable Diffusion 2.x, which this version does not train.",
            "Use an SD 1.x or SDXL base model.",
        )
    return Meaning()


def _network_module(key: str, raw: object) -> Meaning:
    if raw != "networks.lora":
        raise SpellingFault("is not an adapter that this version trains.", "Use networks.lora, a plain LoRA.")
    return Meaning()


def _network_args(key: str, raw: object) -> Meaning:
    notes = []
    for name, value in split_arguments(raw).items():
        if name not in KNOWN:
            notes.append(f"unknown key '{name}' in network_args{suggestion(name) or ': not used'}")
        elif not is_neutral(name, value):
            notes.append(not_used(name, value, "network_args "))
    return Meaning(notes=tuple(notes))


def _optimizer_args(key: str, raw: object) -> Meaning:
    values, unknown = optimizer_settings(split_arguments(raw))
    notes = tuple(f"{key} {argument}: not used, only betas, eps and weight_decay are" for argument in unknown)
    return Meaning(values, notes)


def _use_8bit_adam(key: str, raw: object) -> Meaning:
    return Meaning((("optimizer_type", "AdamW8bit"),) if parse_bool(raw) else ())


def _attention(key: str, raw: object) -> Meaning:
    named = isinstance(raw, str) and raw.strip().lower() in ("xformers", "sdpa")
    wanted = named or is_true(raw)
    return Meaning(notes=(f"{key} = {shown(raw)}: attention is torch's SDPA, always",) if wanted else ())


def _to_disk(key: str, raw: object) -> Meaning:
    if not parse_bool(raw):
        return Meaning()
    cached = key.removesuffix("_to_disk")
    return Meaning(((cached, True),), (f"{key} = true: read as {cached}; the trainer says where it keeps them",))


def _precision_flag(key: str, raw: object) -> Meaning:
    return Meaning((("mixed_precision", key if parse_bool(raw) else "no"),))


def _train_text_encoder(key: str, raw: object) -> Meaning:
    return Meaning((("network_train_unet_only", not parse_bool(raw)),))


def _task_type(key: str, raw: object) -> Meaning:
    if re.search(r"image|diffusion|lora|dreambooth", str(raw), re.IGNORECASE):
        return Meaning()
    raise SpellingFault("is no job for a picture model.", "Give the settings of a Stable Diffusion LoRA.")


def _caption_dropout(key: str, raw: object) -> Meaning:
    """A rate in percent is a habit of some front ends: 5 means 5 %."""
    rate = parse_value(key, raw)
    if rate is not UNSET and isinstance(rate, float) and not 0 <= rate <= 1:
        raise SpellingFault("is outside 0 to 1.", "Write 0.05 for 5 %.")
    return Meaning(((key, raw),))


_RULES: Mapping[str, Callable[[str, object], Meaning]] = {
    "v2": _v2,
    "network_module": _network_module,
    "network_args": _network_args,
    "optimizer_args": _optimizer_args,
    "use_8bit_adam": _use_8bit_adam,
    "xformers": _attention,
    "sdpa": _attention,
    "mem_eff_attn": _attention,
    "enable_xformers_memory_efficient_attention": _attention,
    "cache_latents_to_disk": _to_disk,
    "cache_text_encoder_outputs_to_disk": _to_disk,
    "fp16": _precision_flag,
    "bf16": _precision_flag,
    "train_text_encoder": _train_text_encoder,
    "task_type": _task_type,
    "caption_dropout_rate": _caption_dropout,
}
