"""A base model from its files into modules on the host, offline: the one way any run gets its components.

Owns the loading of diffusers folders, of any family, and the choice between them and single files. Places nothing
on a device, downloads nothing and executes nothing from a file; a weight that is missing is an error that
names it.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autotune.errors import ModelError
from trainer.families.blank import assemble
from trainer.families.checkpoint import flat_name, load_file, vae_from_state, with_prediction
from trainer.families.components import Components
from trainer.families.detect import component_config, component_weights, detect_family, read_json
from trainer.families.family import get_family
from trainer.families.layout import Place
from trainer.families.parts import make_part
from trainer.families.weights import State, build, fill, read_state

__all__ = ["Components", "load_components", "load_vae"]


def load_components(
    path: str | Path,
    dtype: torch.dtype,
    vae_path: str | Path | None = None,
    *,
    vae_dtype: torch.dtype | None = None,
    v_prediction: bool | None = None,
) -> Components:
    """Load the base model at `path`: a diffusers folder, or a .safetensors or .ckpt file.

    Denoiser and text encoders come in `dtype`; the VAE in `vae_dtype`, by default float32 where the family's own
    overflows in half precision (SDXL), else `dtype`. `vae_path` takes the VAE from another file or folder.
    `v_prediction` overrides what the model says of itself. Raises ModelError.
    """
    path = Path(path).expanduser()
    detected = detect_family(path)
    vae_dtype = vae_dtype or (torch.float32 if get_family(detected.family).vae_needs_float32 else dtype)
    if detected.layout == "diffusers":
        return _load_folder(path, detected.family, dtype, vae_dtype, vae_path, v_prediction)
    vae = load_vae(vae_path, detected.family, vae_dtype) if vae_path else None
    return load_file(path, detected.family, dtype, vae_dtype, vae, v_prediction)


def load_vae(path: str | Path, family: str, dtype: torch.dtype) -> nn.Module:
    """The VAE alone, from its own folder, a diffusers folder that has one, or a file in either layout."""
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelError(
            f"VAE {path} does not exist.", "Check `vae`, or leave it out to use the base model's own."
        )
    if path.is_dir():
        return _vae_from_folder(path / "vae" if (path / "vae").is_dir() else path, family, dtype)
    vae: nn.Module = vae_from_state(read_state(path), family, dtype, path)
    return vae


# --- a diffusers folder -------------------------------------------------------------------------------------


def _load_folder(
    path: Path,
    family: str,
    dtype: torch.dtype,
    vae_dtype: torch.dtype,
    vae_path: str | Path | None,
    v_prediction: bool | None,
) -> Components:
    known = get_family(family)
    modules: dict[str, Any] = {}
    for name, kind in known.parts.items():
        if name == "vae":
            modules[name] = load_vae(vae_path or path / name, family, vae_dtype)
        else:
            modules[name] = _part_from_folder(path / name, kind, dtype)
    scheduler_config = path / "scheduler" / "scheduler_config.json"
    scheduler = read_json(scheduler_config) if scheduler_config.exists() else {}
    return assemble(known, modules, with_prediction(scheduler, v_prediction), folder=path)


def _part_from_folder(folder: Path, kind: str, dtype: torch.dtype) -> nn.Module:
    weights = component_weights(folder)
    module = build(partial(make_part, kind, component_config(folder)))
    state = _flat_names(read_state(weights))
    return fill(module, state, lambda name: Place(flat_name(name)), dtype, weights)


def _vae_from_folder(folder: Path, family: str, dtype: torch.dtype) -> nn.Module:
    weights = component_weights(folder)
    vae = build(partial(make_part, get_family(family).parts["vae"], component_config(folder)))
    return fill(vae, _current_vae_names(read_state(weights)), Place, dtype, weights)


def _current_vae_names(state: State) -> State:
    """Folders saved before diffusers 0.15 name the attention's layers query, key, value and proj_attn."""
    old = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}
    renamed = {}
    for name, tensor in state.items():
        part = next((p for p in old if p in name), None)
        renamed[name.replace(part, old[part]) if part else name] = tensor
    return renamed


def _flat_names(state: State) -> State:
    """Text encoders' names without what only some versions and classes put before them: `text_model.` in CLIP, and
    `model.` where a chat model was saved whole."""
    return {flat_name(name.removeprefix("model.")): tensor for name, tensor in state.items()}
