"""Tiny models of the families with a transformer, of the real classes, in memory. Owns their small figures.

For tests: the code paths are the real ones, the pictures are not.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import nn
from transformers import PreTrainedTokenizerFast

from autotune.testing.tiny import tiny_configs
from trainer.families.architecture import Config, family_configs
from trainer.families.blank import assemble
from trainer.families.components import Components
from trainer.families.family import get_family
from trainer.families.parts import make_part
from trainer.families.tokenizer import write_tokenizer


def tiny_components(family: str, seed: int = 0, variant: str | None = None) -> Components:
    """A tiny model of `family` with random weights in float32, the classes' own start but for what they start at
    zero. Equal seeds give equal weights; the global random state stays as it was."""
    known = get_family(family)
    configs = small_configs(family, variant)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules = {name: make_part(kind, configs[name]) for name, kind in known.parts.items()}
        for module in modules.values():
            _start(module)
    return assemble(known, modules, configs["scheduler"])


def save_tiny(folder: Path, components: Components) -> Path:
    """Write a tiny model as a diffusers folder, with a tokenizer of letters for its large text encoders, and
    return the folder."""
    known = get_family(components.family)
    for name, module in zip(known.parts, components.modules, strict=True):
        module.save_pretrained(folder / name)  # type: ignore[operator]
        if name.startswith("text_encoder"):
            _write_tokenizer(folder / name.replace("text_encoder", "tokenizer"), known.parts[name])
    components.scheduler.save_pretrained(folder / "scheduler")
    return folder


def small_configs(family: str, variant: str | None = None) -> dict[str, Config]:
    """The configs of the tiny model by component: the full-size ones with smaller figures."""
    if family not in _SMALL:
        return tiny_configs(family)
    full = family_configs(family, variant)
    return {name: config | _SMALL[family].get(name, {}) for name, config in full.items()}


def _start(module: nn.Module) -> None:
    """Some layers start at zero so that a fresh model answers nothing: no gradient would pass them."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(0, 0.02)
    module.requires_grad_(False).eval()


def _write_tokenizer(folder: Path, encoder: str) -> None:
    if encoder.startswith("CLIP"):
        write_tokenizer(folder)
        return
    letters = {token: number for number, token in enumerate(("<pad>", "</s>", *map(chr, range(32, 127))))}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE(letters, [], unk_token="</s>")),
        pad_token="<pad>",
        eos_token="</s>",
        chat_template="{{ messages[0].content }}",
    )
    tokenizer.save_pretrained(folder)


_CLIP: Config = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "projection_dim": 64,
}
_T5: Config = {"vocab_size": 512, "d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2}
_QWEN: Config = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 28,  # FLUX.2 reads the 27th
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
_VAE: Config = {"layers_per_block": 1, "block_out_channels": [4, 4, 8, 8], "norm_num_groups": 4}
_QWEN_VL: Config = {
    **_QWEN,
    "hidden_size": 64,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    "bos_token_id": None,
    "eos_token_id": None,
}
_VIDEO_VAE: Config = {"base_dim": 8, "num_res_blocks": 1}
_SMALL: dict[str, dict[str, Config]] = {
    "sd3": {
        "transformer": {
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "joint_attention_dim": 128,
            "caption_projection_dim": 64,
            "pooled_projection_dim": 128,
            "pos_embed_max_size": 64,
            "dual_attention_layers": [0],
        },
        "vae": _VAE,
        "text_encoder": _CLIP,
        "text_encoder_2": _CLIP,
        "text_encoder_3": _T5 | {"d_model": 128},
    },
    "flux1": {
        "transformer": {
            "num_layers": 1,
            "num_single_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "joint_attention_dim": 64,
            "pooled_projection_dim": 64,
            "axes_dims_rope": [8, 12, 12],
        },
        "vae": _VAE,
        "text_encoder": _CLIP,
        "text_encoder_2": _T5,
    },
    "flux2": {
        "transformer": {
            "num_layers": 1,
            "num_single_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "joint_attention_dim": 96,
            "axes_dims_rope": [8, 8, 8, 8],
        },
        "vae": _VAE,
        "text_encoder": _QWEN,
    },
    "pixart": {
        "transformer": {
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "cross_attention_dim": 64,
            "caption_channels": 64,
            "norm_num_groups": 4,
        },
        "vae": _VAE,
        "text_encoder": _T5,
    },
    "zimage": {
        "transformer": {
            "n_layers": 2,
            "n_refiner_layers": 1,
            "dim": 64,
            "n_heads": 2,
            "n_kv_heads": 2,
            "cap_feat_dim": 32,
            "axes_dims": [8, 12, 12],
        },
        "vae": _VAE,
        "text_encoder": _QWEN,
    },
    "qwenimage": {
        "transformer": {
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "joint_attention_dim": 64,
            "axes_dims_rope": [8, 12, 12],
        },
        "vae": _VIDEO_VAE,
        "text_encoder": _QWEN_VL,
    },
    "chroma": {
        "transformer": {
            "num_layers": 1,
            "num_single_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "joint_attention_dim": 64,
            "axes_dims_rope": [8, 12, 12],
            "approximator_hidden_dim": 64,
            "approximator_layers": 1,
        },
        "vae": _VAE,
        "text_encoder": _T5,
    },
    "auraflow": {
        "transformer": {
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "joint_attention_dim": 64,
            "caption_projection_dim": 64,
            "pos_embed_max_size": 256,
        },
        "vae": _VAE,
        "text_encoder": _T5,
    },
    "wan": {
        "transformer": {
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "text_dim": 64,
            "ffn_dim": 128,
        },
        "vae": _VIDEO_VAE,
        "text_encoder": _T5,
    },
}
