"""A diffusers folder written as one file in the original LDM/SGM layout, .safetensors or .ckpt.

Owns the writing only; where each weight goes is the trainer's layout map, which reads such files too.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.families import layout
from trainer.families.layout import Place, PlaceOf
from trainer.families.load import Components, load_components

_THIRDS = 3


def save_single_file(folder: str | Path, path: str | Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write the model in `folder` to `path`, whose suffix says how: `.safetensors`, or `.ckpt` for a
    pickle."""
    path = Path(path)
    state = single_file_state(load_components(folder, dtype, vae_dtype=dtype))
    if path.suffix == ".ckpt":
        torch.save({"state_dict": state, "global_step": 0}, path)
    else:
        save_file(state, path, metadata={"format": "pt"})
    return path


def single_file_state(components: Components) -> dict[str, Tensor]:
    """The weights of `components` by their names in a single file."""
    parts: dict[Place, Tensor] = {}
    for module, place_of in _modules(components):
        for name, tensor in module.state_dict().items():
            parts[place_of(name)] = _as_stored(name, tensor, module)
    names = dict.fromkeys(place.name for place in parts)
    return {name: _join(name, parts) for name in names}


def _modules(components: Components) -> Iterator[tuple[nn.Module, PlaceOf]]:
    yield components.denoiser, partial(layout.unet_place, config=components.denoiser.config)
    yield components.vae, partial(layout.vae_place, levels=len(components.vae.config.block_out_channels))
    prefix = layout.SD1_TEXT_PREFIX if components.family == "sd1" else layout.SDXL_TEXT_PREFIX
    yield (
        components.text_encoders[0],
        lambda name: layout.clip_place(name.removeprefix("text_model."), prefix),
    )
    for encoder in components.text_encoders[1:]:
        yield encoder, lambda name: layout.open_clip_place(name.removeprefix("text_model."))


def _as_stored(name: str, tensor: Tensor, module: nn.Module) -> Tensor:
    """The original VAE's attention is made of 1x1 convolutions where diffusers has linear layers."""
    if module.__class__.__name__ == "AutoencoderKL" and ".attentions." in name and tensor.ndim == 2:
        return tensor[:, :, None, None]
    return tensor


def _join(name: str, parts: dict[Place, Tensor]) -> Tensor:
    thirds = [parts[place] for number in range(_THIRDS) if (place := Place(name, number)) in parts]
    if thirds:
        return torch.cat(thirds).contiguous()
    straight = parts.get(Place(name))
    return parts[Place(name, transposed=True)].T.contiguous() if straight is None else straight.contiguous()
