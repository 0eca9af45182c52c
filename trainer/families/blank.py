"""A family's model at full size without weights: every module on `meta`, no memory, no files, no network.

Owns the construction and the precision that loading would give each tensor. The figures come from what is shipped,
or from the config.json files of a model's folder.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.families.architecture import Config, family_configs
from trainer.families.components import Components
from trainer.families.detect import component_config, read_json
from trainer.families.family import Family, get_family
from trainer.families.parts import make_part
from trainer.families.weights import build


def blank_components(
    family: str,
    variant: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
    configs: Mapping[str, Config] | None = None,
    *,
    vae_dtype: torch.dtype | None = None,
) -> Components:
    """The model of `family` on `meta`, at the figures of `configs` (by component, as `configs_of_folder` gives
    them), which go before those shipped for `variant` (the family's first by default).

    Precisions are those of `load_components`. Raises ModelError for an unknown family or variant.
    """
    known = get_family(family)
    figures = {**family_configs(family, variant), **(configs or {})}
    vae_dtype = vae_dtype or (torch.float32 if known.vae_needs_float32 else dtype)
    modules = {
        name: _blank(kind, figures[name], vae_dtype if name == "vae" else dtype)
        for name, kind in known.parts.items()
    }
    return assemble(known, modules, figures.get("scheduler", {}))


def assemble(
    family: Family, modules: Mapping[str, Any], scheduler: Mapping[str, Any], folder: Path | None = None
) -> Components:
    """Components of `modules`, by the names of `family.parts`; tokenizers from the diffusers `folder` if given."""
    denoiser, vae, *texts = family.parts
    encoders = tuple(modules[name] for name in texts)
    return Components(
        family.name,
        modules[denoiser],
        modules[vae],
        encoders,
        family.tokenizers(encoders, folder),
        family.rule.schedule(scheduler),
    )


def configs_of_folder(path: str | Path, family: str) -> dict[str, Config]:
    """The configs by component of the diffusers folder at `path`: only config.json files are read, and only those
    that are there. Raises ModelError for one that is no JSON."""
    path = Path(path).expanduser()
    found = [name for name in get_family(family).parts if (path / name / "config.json").exists()]
    configs = {name: component_config(path / name) for name in found}
    scheduler = path / "scheduler" / "scheduler_config.json"
    return configs | ({"scheduler": read_json(scheduler)} if scheduler.exists() else {})


def _blank(kind: str, config: Config, dtype: torch.dtype) -> nn.Module:
    module = _empty(kind, config)
    stored = module.state_dict(keep_vars=True)
    casts = {id(tensor): _cast(tensor, dtype) for tensor in stored.values()}  # one may have two names
    for part_name, part in module.named_modules():
        for own in (part._parameters, part._buffers):
            for name, tensor in own.items():
                if tensor is not None and f"{part_name}.{name}".lstrip(".") in stored:
                    own[name] = casts[id(tensor)]
    return module.requires_grad_(False).eval()


def _empty(kind: str, config: Config) -> nn.Module:
    """Everything on `meta` but tensors that a module keeps beside parameters and buffers (Qwen-Image's rotations):
    nothing ever moves or fills those, so they are real."""
    with torch.device("meta"):
        module = make_part(kind, config)
    if not any(isinstance(value, torch.Tensor) for part in module.modules() for value in vars(part).values()):
        return module
    module = build(partial(make_part, kind, config))
    for part in module.modules():
        part._buffers.update({name: b.to("meta") for name, b in part._buffers.items() if b is not None})
    return module


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    cast = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor
    return nn.Parameter(cast, requires_grad=False) if isinstance(tensor, nn.Parameter) else cast
