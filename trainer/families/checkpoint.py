"""A Stable Diffusion checkpoint in one file, in the original layout, into modules on the host.

Owns the reading of SD 1.x and SDXL single files, and of VAEs in a file of their own. A weight that is missing or
left over is an error that names it.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from autotune.errors import ModelError
from trainer.families import layout
from trainer.families.architecture import (
    UNET_PREFIX,
    VAE_PREFIX,
    Config,
    clip_config,
    open_clip_config,
    unet_config,
    vae_config,
)
from trainer.families.blank import assemble
from trainer.families.components import Components, TextEncoder
from trainer.families.family import get_family
from trainer.families.layout import Place
from trainer.families.weights import State, build, fill, read_state, refuse_leftovers


def load_file(
    path: Path,
    family: str,
    dtype: torch.dtype,
    vae_dtype: torch.dtype,
    vae: AutoencoderKL | None,
    v_prediction: bool | None,
) -> Components:
    """The base model in the single file at `path`, with `vae` instead of its own if given. Raises ModelError."""
    state = read_state(path)
    try:
        encoders, pooled_width = _texts_from_state(state, family, dtype, path)
        unet = _unet_from_state(state, family, dtype, path, pooled_width)
    except KeyError as error:
        raise _incomplete(path, error) from None
    vae = vae or vae_from_state(state, family, vae_dtype, path)
    names = [name for name in get_family(family).parts if name.startswith("text_encoder")]
    modules = {"unet": unet, "vae": vae, **dict(zip(names, encoders, strict=True))}
    return assemble(get_family(family), modules, with_prediction(_marks(state), v_prediction))


def vae_from_state(state: State, family: str, dtype: torch.dtype, source: Path) -> AutoencoderKL:
    """The VAE in `state`, of a full checkpoint or of a file that holds it alone. Raises ModelError."""
    if "decoder.mid_block.resnets.0.conv1.weight" in state:
        raise ModelError(
            f"{source} is a VAE in the diffusers layout without its config.json.",
            "Give the folder that holds both.",
        )
    prefix = VAE_PREFIX if f"{VAE_PREFIX}decoder.conv_in.weight" in state else ""
    try:
        config = vae_config(family, _shapes(state, prefix))
    except KeyError as error:
        raise _incomplete(source, error) from None
    vae = build(partial(AutoencoderKL.from_config, config))
    levels = len(config["block_out_channels"])
    return fill(vae, state, lambda name: Place(prefix + layout.vae_name(name, levels)), dtype, source)


def with_prediction(config: Mapping[str, Any], v_prediction: bool | None) -> Mapping[str, Any]:
    """A scheduler's `config` that predicts what `v_prediction` says, or what it says itself where that is None."""
    if v_prediction is None:
        return config
    return {**config, "prediction_type": "v_prediction" if v_prediction else "epsilon"}


def flat_name(name: str) -> str:
    """A text encoder's parameter name without `text_model.`, which only some versions and classes have."""
    return name.removeprefix("text_model.")


def _unet_from_state(
    state: State, family: str, dtype: torch.dtype, source: Path, pooled_width: int
) -> UNet2DConditionModel:
    config = unet_config(family, _shapes(state, UNET_PREFIX), pooled_width)
    unet = build(partial(UNet2DConditionModel.from_config, config))
    place_of = partial(layout.unet_place, config=config)
    refuse_leftovers(unet, state, place_of, UNET_PREFIX, source)
    return fill(unet, state, place_of, dtype, source)


def _texts_from_state(
    state: State, family: str, dtype: torch.dtype, source: Path
) -> tuple[tuple[TextEncoder, ...], int]:
    """The text encoders, and the width of SDXL's pooled text (0 for SD 1.x)."""
    state = _with_text_model(state)
    if family == "sd1":
        return (_clip_from_state(state, family, layout.SD1_TEXT_PREFIX, dtype, source),), 0
    first = _clip_from_state(state, family, layout.SDXL_TEXT_PREFIX, dtype, source)
    config = open_clip_config(_shapes(state, layout.SDXL_TEXT_2_PREFIX))
    second = build(partial(CLIPTextModelWithProjection, CLIPTextConfig(**config)))
    filled = fill(second, state, lambda name: layout.open_clip_place(flat_name(name)), dtype, source)
    return (first, filled), config["projection_dim"]


def _clip_from_state(state: State, family: str, prefix: str, dtype: torch.dtype, source: Path) -> CLIPTextModel:
    config: Config = clip_config(family, _shapes(state, prefix))
    encoder = build(partial(CLIPTextModel, CLIPTextConfig(**config)))
    return fill(encoder, state, lambda name: layout.clip_place(flat_name(name), prefix), dtype, source)


def _with_text_model(state: State) -> State:
    """Some checkpoints leave `text_model.` out of the text encoder's names: put it in."""
    renamed = {}
    for name, tensor in state.items():
        for prefix in (layout.SD1_TEXT_PREFIX, layout.SDXL_TEXT_PREFIX):
            bare = prefix.removesuffix("text_model.")
            if name.startswith(bare) and not name.startswith(prefix):
                name = prefix + name.removeprefix(bare)
        renamed[name] = tensor
    return renamed


def _marks(state: State) -> dict[str, Any]:
    """SDXL files trained for v-prediction say so by an empty tensor of that name, and zero terminal SNR
    too."""
    marks: dict[str, Any] = {"rescale_betas_zero_snr": "ztsnr" in state}
    return marks | ({"prediction_type": "v_prediction"} if "v_pred" in state else {})


def _shapes(state: State, prefix: str) -> dict[str, tuple[int, ...]]:
    return {n.removeprefix(prefix): tuple(t.shape) for n, t in state.items() if n.startswith(prefix)}


def _incomplete(path: Path, error: KeyError) -> ModelError:
    return ModelError(f"{path} lacks the weight {error.args[0]}.", "The file is incomplete: download it again.")
