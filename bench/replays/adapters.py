"""Adapters of published runs, rebuilt with PEFT and checked by their parameter counts.

Owns what settings a method's row means: those of the public PEFT benchmark's experiment files first, then other
documented defaults of the method. Must never accept a rebuilt adapter in silence whose trainable count differs
from the row's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

# Settings of the PEFT image generation benchmark's experiments (method_comparison/image-gen/experiments of the
# peft repository), beside rank, alpha and targets, which the row tells.
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ADALORA": {"target_r": 8, "tinit": 100, "tfinal": 200, "deltaT": 1, "total_step": 750},
    "BOFT": {"boft_block_size": 4, "boft_n_butterfly_factor": 2},
    "C3A": {"block_size": 256, "init_weights": "xavier_uniform"},
    "DELORA": {"delora_lambda": 15},
    "FOURIERFT": {"n_frequency": 2000, "scaling": 150.0},
    "GRALORA": {"gralora_k": 2},
    "LOKR": {"decompose_factor": -1},
    "OFT": {"oft_block_size": 32, "use_cayley_neumann": True},
    "RANDLORA": {"randlora_alpha": 640},
    "ROAD": {"variant": "road_1", "group_size": 64},
    "SHIRA": {"mask_type": "random"},
    "VBLORA": {"num_vectors": 256, "vector_length": 256, "topk": 2},
    "WAVEFT": {"n_frequency": 2592},
}
_VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "BOFT": ({"boft_n_butterfly_factor": 1}, {"boft_block_size": 8}),
    "FOURIERFT": ({"n_frequency": 1000}, {"n_frequency": 3000}),
    "GRALORA": ({"gralora_k": 4},),
    "LOKR": ({"decompose_factor": 4}, {"decompose_factor": 8}, {"decompose_factor": 16}, {"decompose_both": True}),
    "OFT": ({"use_cayley_neumann": False}, {"oft_block_size": 64}),
    "ROAD": ({"variant": "road_2"}, {"variant": "road_4"}),
    "VBLORA": ({"num_vectors": 90},),
}
_ALPHA_NAMES = {"LORA": "lora_alpha", "ADALORA": "lora_alpha", "LOHA": "alpha", "LOKR": "alpha",
                "GRALORA": "alpha", "PSOFT": "psoft_alpha"}  # fmt: skip
_RANKLESS = {"IA3", "OFT", "BOFT", "FOURIERFT", "C3A", "LN_TUNING", "ROAD", "WAVEFT"}
_ALIASES = {"BONE": "MISS", "LNTUNING": "LN_TUNING", "VB_LORA": "VBLORA", "FOURIER_FT": "FOURIERFT"}
# Ways to start a LoRA that leave the same tensors behind: the start needs values, the training does not.
_DECOMPOSING = {"OSF", "FROD"}
# Methods that draw indices or permutations when they are built, which `meta` can't hold.
_VALUED = {"BOFT", "C3A", "FOURIERFT", "SHIRA", "WAVEFT"}
_MOST_DRAWN = 1 << 23
_LORA_STARTS = {"pissa", "olora", "gaussian", "orthogonal", "loftq", "corda", "eva", "lora_ga"}


class AdapterError(Exception):
    """An adapter that can't be rebuilt here; the text says why."""


@dataclass(frozen=True)
class Adapted:
    """A denoiser with its adapter, and how well the rebuilt adapter agrees with the row."""

    model: Any
    settings: str
    trainable: int
    matches: bool | None
    """Whether the trainable count is the row's; None where the row tells none."""


def add_adapter(
    build_base: Callable[[], Any],
    adapter: str,
    rank: int | None,
    alpha: float | None,
    targets: Sequence[str],
    trainable: int | None,
    dropout: float = 0.0,
) -> Adapted:
    """The base model of `build_base()` with the adapter a row names, on `meta`: the first documented setting whose
    trainable count is `trainable`, else the first of all.

    Raises AdapterError where PEFT has no such method or can't build it without values.
    """
    first: Adapted | None = None
    for settings in _settings(adapter, rank, alpha, targets):
        if dropout:
            settings |= {"lora_dropout": dropout}
        adapted = _build(build_base, adapter, settings, trainable)
        if adapted.matches is not False:
            return adapted
        first = first or adapted
    if first is None:
        raise AdapterError(f"adapter {adapter!r} has no settings")
    return first


def _settings(
    adapter: str, rank: int | None, alpha: float | None, targets: Sequence[str]
) -> Iterator[dict[str, Any]]:
    method, flags = _split(adapter)
    plain: dict[str, Any] = {"target_modules": list(targets)}
    if rank is not None and method not in _RANKLESS:
        plain["init_r" if method == "ADALORA" else "r"] = rank
    if method in _ALPHA_NAMES and (alpha is not None or rank is not None):
        plain[_ALPHA_NAMES[method]] = alpha if alpha is not None else rank
    if method == "IA3":
        plain["feedforward_modules"] = list(targets)  # the benchmark scales every layer's input
    if method == "OFT" and rank:
        plain["oft_block_size"] = rank
    known = {**_SETTINGS.get(method, {}), **plain, **flags}
    yield known
    for variant in _VARIANTS.get(method, ()):
        yield {**known, **variant}
    yield {**plain, **flags}


def _split(adapter: str) -> tuple[str, dict[str, Any]]:
    """`LORA+dora` is the method LORA with the flag of DoRA."""
    method, *extras = adapter.upper().replace(" ", "_").split("+")
    flags: dict[str, Any] = {}
    for extra in extras:
        if extra in {"DORA", "RSLORA"}:
            flags[f"use_{extra.lower()}"] = True
        elif extra.lower() not in _LORA_STARTS:
            raise AdapterError(f"adapter {adapter!r}: {extra.lower()!r} is not known")
    return _ALIASES.get(method, method), flags


def _build(
    build_base: Callable[[], Any], adapter: str, settings: Mapping[str, Any], expected: int | None
) -> Adapted:
    from peft import PeftType
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    method, _ = _split(adapter)
    config_class = PEFT_TYPE_TO_CONFIG_MAPPING.get(PeftType.__members__.get(method))
    if config_class is None:
        raise AdapterError(f"PEFT has no method {adapter!r}")
    if method in _DECOMPOSING:
        raise AdapterError(
            f"{adapter!r} begins with a decomposition of every weight, and there are no weights here"
        )
    model = _wrap(build_base, config_class(**settings), adapter, on_host=method in _VALUED)
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    told = {
        name: value for name, value in settings.items() if name not in {"target_modules", "feedforward_modules"}
    }
    text = ", ".join(f"{name}={value}" for name, value in told.items())
    return Adapted(model, text, count, None if expected is None else count == expected)


def _wrap(build_base: Callable[[], Any], config: Any, adapter: str, on_host: bool) -> Any:
    """The adapted model on `meta`; on the host, in memory never touched, where building needs values."""
    import torch
    from peft import get_peft_model

    base = build_base()
    try:
        if on_host:
            with patch("torch.randperm", _places):
                return get_peft_model(base.to_empty(device="cpu"), config, autocast_adapter_dtype=True)
        with torch.device("meta"):
            return get_peft_model(base, config, autocast_adapter_dtype=True)
    except Exception as error:  # a method may need values, sizes or packages that are not here
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise AdapterError(f"PEFT can't build {adapter!r} here: {first}") from None


def _places(count: int, **settings: Any) -> Any:
    """The first positions, in the place of a permutation of every one, which takes minutes: where indices point
    doesn't matter to memory, and methods draw only a few."""
    import torch

    return torch.arange(min(count, _MOST_DRAWN), device=settings.get("device"))
