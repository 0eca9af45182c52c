"""The model of a row: its denoiser with the adapter that was trained, on `meta`.

Owns which precision and dropout an adapter gets where the source leaves it to its trainer, and the move of
a model without values to a device. Must never read weights.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from bench.replays.adapters import add_adapter
from bench.replays.denoisers import DENOISERS, build_denoiser, normal_name
from bench.replays.rows import Row

TRAINER_DROPOUT = 0.1  # SimpleTuner's default of `lora_dropout`


def place(model: Any, device: torch.device) -> None:
    """Give every tensor of `model` memory on `device`: what is on `meta` gets some without values, the rest moves.

    Plain tensors kept as attributes stay on the host, where models keep them.
    """
    if next(model.parameters()).is_meta:
        model.to_empty(device=device)
    else:
        model.to(device)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if name not in {"_parameters", "_buffers", "_modules"}:
                vars(module)[name] = tree_map(_on_host, value) if _has_tensors(value) else value


def build_model(row: Row) -> tuple[Any, dict[str, Any]]:
    """The denoiser a row names with what it trains, and what to tell of the adapter: on `meta`, or on the host in
    memory never touched where a method needs values to build its adapter.

    Raises AdapterError for an adapter that can't be rebuilt.
    """
    kind = DENOISERS[normal_name(row.family)]
    dtype = getattr(torch, row.base_dtype)

    def base() -> Any:
        model = build_denoiser(kind, dtype)
        if row.checkpointing:
            model.enable_gradient_checkpointing()
        return model

    if row.adapter.upper() in {"FULL", ""}:
        return base().requires_grad_(True), {"adapter": "every parameter", "adapter_matches": None}
    if row.is_peft_benchmark:
        adapted = add_adapter(base, row.adapter, row.rank, row.alpha, row.targets, row.trainable_parameters)
    else:
        targets = row.targets or kind.targets
        adapted = add_adapter(base, row.adapter, row.rank, row.alpha, targets, None, dropout=TRAINER_DROPOUT)
        _cast_adapters(adapted.model, dtype)
    told = {"adapter": adapted.settings, "trainable": adapted.trainable, "adapter_matches": adapted.matches}
    return adapted.model, told


def _cast_adapters(model: Any, dtype: torch.dtype) -> None:
    """Adapters in the base's precision, as diffusers' `add_adapter` leaves them and `adamw_bf16` demands."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (
        isinstance(value, list | tuple | dict)
        and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))
    )


def _on_host(value: Any) -> Any:
    is_blank = isinstance(value, torch.Tensor) and value.is_meta
    return torch.zeros(value.shape, dtype=value.dtype) if is_blank else value
