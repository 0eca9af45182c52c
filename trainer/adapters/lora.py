"""LoRA layers on a model's modules, put on and taken off by PEFT. Owns which modules and in what precision.

Targets and names are the family's. The adapter's weights are float32 whatever the base's precision, since fp16
gradients can't be unscaled, and real even where the base is on `meta`. The base modules come back untouched from
`detach`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from trainer.adapters.layout import LoraLayout
from trainer.families.components import Components
from trainer.families.family import get_family

Part = Literal["denoiser", "text_encoder"]
_Named = tuple[nn.Module, Part, dict[str, str]]  # a module that gets layers, and their names by path

_ADAPTER = "default"


@dataclass(frozen=True)
class LoraPair:
    """One adapted module: its name in the file, the part it belongs to, and the two float32 weights, down (r x in)
    and up (out x r)."""

    name: str
    part: Part
    down: nn.Parameter
    up: nn.Parameter


@dataclass(frozen=True)
class Adapter:
    """LoRA layers attached to some of a model's modules, at one rank and alpha (scale = alpha / rank)."""

    pairs: tuple[LoraPair, ...]
    rank: int
    alpha: float
    hosts: tuple["Host", ...]
    layout: LoraLayout

    def parameters(self, part: Part | None = None) -> list[nn.Parameter]:
        """Trainable weights of `part`, or of all."""
        return [weight for pair in self.pairs if part in (None, pair.part) for weight in (pair.down, pair.up)]

    def detach(self) -> None:
        """Take the layers off again; the base modules are what they were before."""
        for host in self.hosts:
            for place in host.places:
                setattr(place.parent, place.name, place.layer.get_base_layer())
            if hasattr(host.module, "peft_config"):
                del host.module.peft_config

    def attach_again(self) -> None:
        """Put the layers back where `detach` took them off, with the weights they have."""
        for host in self.hosts:
            for place in host.places:
                setattr(place.parent, place.name, place.layer)
            host.module.peft_config = host.settings


@dataclass(frozen=True)
class Place:
    """Where a layer sits: attribute `name` of `parent`."""

    parent: nn.Module
    name: str
    layer: LoraLayer


@dataclass(frozen=True)
class Host:
    """A module that carries layers (denoiser, text encoder), and PEFT's settings for it."""

    module: nn.Module
    places: tuple[Place, ...]
    settings: Any


@dataclass
class Shelf:
    """Adapters that are taken off and may be put on again: where values don't matter, making one anew is the
    larger part of a short trial."""

    _kept: dict[tuple[object, ...], Adapter] = field(default_factory=dict)

    def take(self, *key: object) -> Adapter | None:
        """The adapter kept under `key`, attached again, or None. It is not on the shelf meanwhile."""
        adapter = self._kept.pop(key, None)
        if adapter is not None:
            adapter.attach_again()
        return adapter

    def keep(self, adapter: Adapter, *key: object) -> None:
        """Keep a detached adapter for the next `take`."""
        self._kept[key] = adapter


def attach(
    components: Components, *, rank: int, alpha: float, denoiser: bool, text_encoders: bool, seed: int
) -> Adapter:
    """Put LoRA layers of `rank` on the denoiser and/or the text encoders of `components`.

    The base is frozen. Down weights are drawn from `seed` (Kaiming uniform), up weights are zero, so the
    adapted model starts equal to the base. The global random state stays as it was.
    """
    family = get_family(components.family)
    named: list[_Named] = []
    if denoiser:
        paths = family.denoiser_targets(components.denoiser)
        names = {path: family.denoiser_lora_name(components.denoiser, path) for path in paths}
        named.append((components.denoiser, "denoiser", names))
    if text_encoders:
        for number, encoder in enumerate(components.text_encoders):
            names = {path: family.text_lora_name(number, path) for path in family.text_targets(encoder)}
            if names:
                named.append((encoder, "text_encoder", names))
    for module in components.modules:
        module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for host, _, names in named:
            _inject(host, list(names), rank, alpha)
    pairs = [
        LoraPair(names[path], part, layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight)
        for host, part, names in named
        for path, layer in _lora_layers(host)
    ]
    hosts = tuple(_host_of(host) for host, _, _ in named)
    return Adapter(tuple(pairs), rank, alpha, hosts, family.lora_layout)


def largest_change(adapter: Adapter) -> float:
    """The largest absolute up weight: 0.0 means that training has changed nothing."""
    peaks: list[Tensor] = [pair.up.detach().abs().max() for pair in adapter.pairs]
    return float(torch.stack(peaks).max()) if peaks else 0.0


def _inject(host: nn.Module, paths: list[str], rank: int, alpha: float) -> None:
    settings = LoraConfig(r=rank, lora_alpha=alpha, target_modules=paths, bias="none")
    inject_adapter_in_model(settings, host, adapter_name=_ADAPTER)
    for _, layer in _lora_layers(host):
        if layer.lora_A[_ADAPTER].weight.is_meta:  # PEFT makes them where the base is
            layer.lora_A.to_empty(device="cpu")
            layer.lora_B.to_empty(device="cpu")
            layer.reset_lora_parameters(_ADAPTER, init_lora_weights=True)
        layer.lora_A.float()
        layer.lora_B.float()
        layer.lora_A.requires_grad_(True)
        layer.lora_B.requires_grad_(True)


def _host_of(module: nn.Module) -> Host:
    places = []
    for path, layer in _lora_layers(module):
        parent, _, name = path.rpartition(".")
        places.append(Place(module.get_submodule(parent), name, layer))
    return Host(module, tuple(places), module.peft_config)


def _lora_layers(host: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    return ((path, layer) for path, layer in host.named_modules() if isinstance(layer, LoraLayer))
