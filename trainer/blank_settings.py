"""The settings of a job that names a family instead of files: what `plan` forecasts when nothing else is said.

Owns the defaults and the names that stand in for files. Never imports torch, so that a command can refuse wrong
settings before any worker starts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ConfigError
from trainer.config.loader import LoadedConfig, load_config

# What people train with today, and what autotune's own ladders start from.
DEFAULTS: Mapping[str, Any] = {
    "mixed_precision": "bf16",
    "optimizer_type": "AdamW",
    "network_dim": 16,
    "network_alpha": 16,
    "network_train_unet_only": True,
    "cache_latents": True,
    "cache_text_encoder_outputs": True,
    "gradient_checkpointing": False,
    "train_batch_size": 1,
    "sample_at_end": True,
}
# Names that no folder has: one called `sd1` or `pictures` where the command runs has nothing to do with the job.
_STAND_INS = {
    "pretrained_model_name_or_path": "no files, a blank base model",
    "train_data_dir": "no files, blank pictures",
}
_OWN_KEYS = ("family", "variant", "configs", "set")
_USUAL_SIDE = 512
LEAST_SIDE = 64  # pixels; no family samples smaller pictures
MOST = {"train_batch_size": 1024, "vae_batch_size": 1024, "network_dim": 1024}
"""More fits no card. Noise and latents of a batch, and the adapters, pass through the host's memory."""


def load_settings(
    config: Mapping[str, Any], side: int = _USUAL_SIDE, said_as: Mapping[str, str] | None = None
) -> LoadedConfig:
    """The settings in a forecast's `config` (see `trainer.forecast.create`); `side` in pixels is the resolution
    when none is given; `said_as` names the options that keys came by, for messages. Raises ConfigError for one
    that can't be read or trained."""
    loaded = _load(config, side, said_as or {})
    for key, most in MOST.items():
        if (value := getattr(loaded.config, key)) > most:
            raise ConfigError(f"{key} = {value:,} is more than a forecast takes.", f"Use {most:,} or less.")
    return loaded


def _load(config: Mapping[str, Any], side: int, said_as: Mapping[str, str]) -> LoadedConfig:
    if config.get("configs"):
        paths = [Path(path) for path in config["configs"]]
        told = _STAND_INS if config.get("family") else {}
        overrides = list(config.get("set", []))
        return load_config(paths, overrides, files_must_exist=False, said_as=said_as, stand_ins=told)
    if not config.get("family"):
        raise ConfigError("neither a config nor a family is given.", "Say --family sdxl, or give --config FILE.")
    loaded = load_config([], _overrides(config, side), files_must_exist=False, said_as=said_as)
    for width, height in loaded.config.resolution:
        if min(width, height) < LEAST_SIDE:
            fact = f"pictures of {width}x{height} pixels are too small for a training with samples."
            raise ConfigError(fact, f"Use {LEAST_SIDE} pixels or more.")
    return loaded


def _overrides(config: Mapping[str, Any], side: int) -> list[str]:
    given = {key: value for key, value in config.items() if key not in _OWN_KEYS}
    values = {**_STAND_INS, "resolution": side, **DEFAULTS, **given}
    return [f"{key}={_text(value)}" for key, value in values.items() if value is not None]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
