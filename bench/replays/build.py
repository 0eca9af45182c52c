"""The model of a row: its denoiser with the adapter that was trained, on `meta`.

Owns which precision and dropout an adapter gets where the source leaves it to its trainer's defaults. Must never
allocate memory.
"""

from typing import Any

import torch

from bench.replays.adapters import add_adapter
from bench.replays.denoisers import DENOISERS, build_denoiser, normal_name
from bench.replays.rows import Row

TRAINER_DROPOUT = 0.1  # SimpleTuner's default of `lora_dropout`


def build_model(row: Row) -> tuple[Any, dict[str, Any]]:
    """The denoiser a row names with what it trains, on `meta`, and what to tell of the adapter.

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
