"""Tiny Stable Diffusion 1.x and SDXL base models of the real classes, and full-size ones.

Owns their architecture figures and their start: random weights scaled so that activations stay near one, in
any precision. For tests and demonstrations: the code paths and file layouts are the real ones, the pictures
are not.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from transformers.utils import logging

from autotune.testing.single_file import save_single_file
from trainer.families.architecture import Config, family_configs
from trainer.families.blank import blank_components
from trainer.families.components import Components
from trainer.families.family import get_family
from trainer.families.parts import make_part
from trainer.families.tokenizer import END, ZERO, write_tokenizer
from trainer.families.weights import build

__all__ = ["build_meta", "make_full_size", "make_tiny", "save_single_file", "tiny_configs"]


def make_tiny(folder: str | Path, family: str = "sd1", seed: int = 0) -> Path:
    """Write a tiny base model of `family` (`sd1` or `sdxl`) as a diffusers folder, and return the folder.

    Equal seeds give equal weights; the global random state stays as it was.
    """
    folder = Path(folder)
    configs = tiny_configs(family)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        kinds = get_family(family).parts
        parts: dict[str, Any] = {name: make_part(kind, configs[name]) for name, kind in kinds.items()}
    for name, module in parts.items():
        _write_module(folder / name, module, generator)
    _write_rest(folder, family, configs)
    return folder


def make_full_size(folder: str | Path, family: str, dtype: torch.dtype, seed: int = 0) -> Path:
    """Write a base model of the real size of `family` with random weights in `dtype` as a diffusers folder, and
    return the folder: about 2 GB (sd1) or 7 GB (sdxl) in half precision, one module at a time in memory."""
    folder = Path(folder)
    configs = family_configs(family)
    generator = torch.Generator().manual_seed(seed)
    for name, config in configs.items():
        if name != "scheduler":
            module = build(partial(make_part, get_family(family).parts[name], config))
            _take_memory(module, dtype)
            _write_module(folder / name, module, generator)
    _write_rest(folder, family, configs)
    return folder


def tiny_configs(family: str) -> dict[str, Config]:
    """The tiny model's configs by component: the full-size ones with smaller figures, block types and all."""
    full = family_configs(family)
    return {name: config | _TINY[family].get(name, {}) for name, config in full.items()}


def build_meta(family: str) -> Components:
    """The full-size model of `family` on the meta device: names, shapes and structure, no memory."""
    return blank_components(family, dtype=torch.float32)


def _write_module(folder: Path, module: Any, generator: torch.Generator) -> None:
    _start_weights(module, generator)
    if isinstance(module, AutoencoderKL):
        _start_vae(module)
    with _no_progress_bar():
        module.save_pretrained(folder)


def _write_rest(folder: Path, family: str, configs: dict[str, Config]) -> None:
    for name, pad in (("tokenizer", END), ("tokenizer_2", ZERO)):
        if name.replace("tokenizer", "text_encoder") in configs:
            write_tokenizer(folder / name, pad)
    get_family(family).rule.schedule(configs["scheduler"]).save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(_model_index(family), indent=2), "utf-8")


def _take_memory(module: nn.Module, dtype: torch.dtype) -> None:
    """Real memory for a module on the meta device: ones in norms' weights, zeros elsewhere."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                is_norm = name == "weight" and parameter.dim() == 1
                value = torch.full(parameter.shape, float(is_norm), dtype=dtype)
                part._parameters[name] = nn.Parameter(value, requires_grad=False)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# CLIP heads are 64 wide; U-Net widths are multiples of 32 (norm groups), in SDXL of 64 (heads). The first
# level has no attention: over 4096 tokens it would take most of a step. The VAE is thin, for at 512 pixels
# each of its channels costs as much as 64 of the U-Net's.
_TINY_CLIP: Config = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "projection_dim": 64,
}
_TINY_VAE: Config = {"layers_per_block": 1, "block_out_channels": [4, 4, 8, 8], "norm_num_groups": 4}
_TINY: dict[str, dict[str, Config]] = {
    "sd2": {
        "unet": {
            "block_out_channels": [64, 128],
            "layers_per_block": 1,
            "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
            "cross_attention_dim": 64,
            "attention_head_dim": [1, 2],
        },
        "vae": _TINY_VAE,
        "text_encoder": _TINY_CLIP,
    },
    "sd1": {
        "unet": {
            "block_out_channels": [64, 128, 128, 128],
            "layers_per_block": 1,
            "down_block_types": [
                "DownBlock2D",
                "CrossAttnDownBlock2D",
                "CrossAttnDownBlock2D",
                "DownBlock2D",
            ],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            "cross_attention_dim": 64,
        },
        "vae": _TINY_VAE,
        "text_encoder": _TINY_CLIP,
    },
    "sdxl": {
        "unet": {
            "block_out_channels": [64, 64, 128],
            "layers_per_block": 1,
            "cross_attention_dim": 128,
            "attention_head_dim": [1, 1, 2],
            "transformer_layers_per_block": [1, 1, 2],
            "addition_time_embed_dim": 32,
            "projection_class_embeddings_input_dim": 6 * 32 + 64,
        },
        "vae": _TINY_VAE,
        "text_encoder": _TINY_CLIP,
        "text_encoder_2": _TINY_CLIP,
    },
}


def _start_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Normal weights of variance 1/inputs, halved at the end of residual branches; zero biases; norms as
    made."""
    with torch.no_grad():
        for name, part in module.named_modules():
            if isinstance(part, nn.Embedding):
                part.weight.normal_(0, 0.5, generator=generator)
            elif isinstance(part, nn.Linear | nn.Conv2d):
                _start_layer(part, _GAINS.get(name.rpartition(".")[2], 1.0), generator)


_GAINS = {"conv2": 0.5, "proj_out": 0.5, "out_proj": 0.5, "fc2": 0.5, "conv_out": 1.4}


def _start_layer(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> None:
    layer.weight.normal_(0, gain / math.sqrt(layer.weight[0].numel()), generator=generator)
    if layer.bias is not None:
        layer.bias.zero_()


def _start_vae(vae: AutoencoderKL) -> None:
    """Latents whose scaled standard deviation is near one, and a narrow posterior."""
    with torch.no_grad():
        channels = vae.config.latent_channels
        identity: Tensor = torch.eye(2 * channels)[:, :, None, None]
        vae.quant_conv.weight.copy_(identity)
        vae.post_quant_conv.weight.copy_(identity[:channels, :channels])
        vae.encoder.conv_out.weight[:channels].mul_(1 / vae.config.scaling_factor)
        vae.encoder.conv_out.weight[channels:].mul_(0.1)
        vae.encoder.conv_out.bias[channels:].fill_(-6.0)
        vae.decoder.conv_in.weight.mul_(vae.config.scaling_factor)


def _model_index(family: str) -> dict[str, Any]:
    index: dict[str, Any] = {
        "_class_name": "StableDiffusionXLPipeline" if family == "sdxl" else "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
    }
    if family == "sdxl":
        second = ["transformers", "CLIPTextModelWithProjection"]
        return index | {"text_encoder_2": second, "tokenizer_2": ["transformers", "CLIPTokenizer"]}
    absent = [None, None]
    return index | {"safety_checker": absent, "feature_extractor": absent, "requires_safety_checker": False}
