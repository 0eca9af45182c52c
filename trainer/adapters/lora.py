"""LoRA layers on a model's modules, put on and taken off by PEFT. Owns which modules and in what precision.

Targets are kohya's: every linear and 1x1 convolution inside the U-Net's transformer blocks, and the attention
and MLP linears of CLIP. The adapter's weights are float32 whatever the base's precision, since fp16 gradients
can't be unscaled. The base modules come back untouched from `detach`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from trainer.adapters.names import text_name, unet_name
from trainer.families.load import Components

_ADAPTER = "default"
_CLIP_LINEARS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")


@dataclass(frozen=True)
class LoraPair:
    """One adapted module: its kohya name and the two float32 weights, down (r x in) and up (out x r)."""

    name: str
    down: nn.Parameter
    up: nn.Parameter


@dataclass(frozen=True)
class Adapter:
    """LoRA layers attached to some of a model's modules, at one rank and alpha (scale = alpha / rank)."""

    pairs: tuple[LoraPair, ...]
    rank: int
    alpha: float
    hosts: tuple[nn.Module, ...]  # the modules that carry the layers: U-Net, text encoders

    def parameters(self, prefix: str = "lora_") -> list[nn.Parameter]:
        """Trainable weights of the pairs whose name starts with `prefix` (`lora_unet_`, `lora_te`)."""
        return [weight for pair in self.pairs if pair.name.startswith(prefix) for weight in (pair.down, pair.up)]

    def detach(self) -> None:
        """Take the layers off again; the base modules are what they were before."""
        for host in self.hosts:
            for path, layer in list(_lora_layers(host)):
                parent, _, leaf = path.rpartition(".")
                setattr(host.get_submodule(parent), leaf, layer.get_base_layer())
            if hasattr(host, "peft_config"):
                del host.peft_config


def attach(
    components: Components, *, rank: int, alpha: float, unet: bool, text_encoders: bool, seed: int
) -> Adapter:
    """Put LoRA layers of `rank` on the U-Net and/or the text encoders of `components`.

    The base is frozen. Down weights are drawn from `seed` (Kaiming uniform), up weights are zero, so the
    adapted model starts equal to the base. The global random state stays as it was.
    """
    named: list[tuple[nn.Module, list[str], dict[str, str]]] = []
    if unet:
        paths = unet_targets(components.unet)
        layers = components.unet.config.layers_per_block
        names = {path: unet_name(components.family, path, layers) for path in paths}
        named.append((components.unet, paths, names))
    if text_encoders:
        for index, encoder in enumerate(components.text_encoders):
            paths = text_targets(encoder)
            named.append((encoder, paths, {p: text_name(components.family, index, p) for p in paths}))
    for module in (components.unet, components.vae, *components.text_encoders):
        module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for host, paths, _ in named:
            _inject(host, paths, rank, alpha)
    pairs = [
        LoraPair(names[path], layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight)
        for host, _, names in named
        for path, layer in _lora_layers(host)
    ]
    return Adapter(tuple(pairs), rank, alpha, tuple(host for host, _, _ in named))


def unet_targets(unet: nn.Module) -> list[str]:
    """Paths of the linears and 1x1 convolutions in the transformer blocks (192 in SD 1.5, 722 in SDXL)."""
    return [
        f"{outer}.{inner}"
        for outer, block in unet.named_modules()
        if isinstance(block, Transformer2DModel)
        for inner, module in block.named_modules()
        if _is_target(module)
    ]


def text_targets(encoder: nn.Module) -> list[str]:
    """Paths of the attention and MLP linears of a CLIP text encoder (72 in CLIP-L, 192 in bigG)."""
    return [
        path
        for path, module in encoder.named_modules()
        if isinstance(module, nn.Linear) and path.rpartition(".")[2] in _CLIP_LINEARS
    ]


def largest_change(adapter: Adapter) -> float:
    """The largest absolute up weight: 0.0 means that training has changed nothing."""
    peaks: list[Tensor] = [pair.up.detach().abs().max() for pair in adapter.pairs]
    return float(torch.stack(peaks).max()) if peaks else 0.0


def _is_target(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.kernel_size == (1, 1)
    return isinstance(module, nn.Linear)


def _inject(host: nn.Module, paths: list[str], rank: int, alpha: float) -> None:
    settings = LoraConfig(r=rank, lora_alpha=alpha, target_modules=paths, bias="none")
    inject_adapter_in_model(settings, host, adapter_name=_ADAPTER)
    for _, layer in _lora_layers(host):
        layer.lora_A.float()
        layer.lora_B.float()
        layer.lora_A.requires_grad_(True)
        layer.lora_B.requires_grad_(True)


def _lora_layers(host: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    return ((path, layer) for path, layer in host.named_modules() if isinstance(layer, LoraLayer))
