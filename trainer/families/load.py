"""A base model from its files into modules on the host, offline: the one way any run gets its components.

Owns `Components` and the loading of diffusers folders and single files of SD 1.x and SDXL. Places nothing
on a device, downloads nothing and executes nothing from a file; a weight that is missing is an error that
names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from autotune.errors import ModelError
from trainer.families import layout
from trainer.families.architecture import (
    UNET_PREFIX,
    VAE_PREFIX,
    Config,
    clip_config,
    family_configs,
    open_clip_config,
    unet_config,
    vae_config,
)
from trainer.families.detect import component_config, component_weights, detect_family, read_json
from trainer.families.layout import Place
from trainer.families.tokenizer import END, ZERO, clip_tokenizer, load_tokenizer
from trainer.families.vae import vae_identity
from trainer.families.weights import State, build, fill, read_state, refuse_leftovers

TextEncoder: TypeAlias = CLIPTextModel | CLIPTextModelWithProjection


@dataclass(frozen=True)
class Components:
    """A base model's parts. SD 1.x has one text encoder and tokenizer, SDXL two (the second with projection).

    Modules are frozen, in eval mode and on the host. `scheduler` holds the noise schedule of training.
    """

    family: str
    unet: UNet2DConditionModel
    vae: AutoencoderKL
    text_encoders: tuple[TextEncoder, ...]
    tokenizers: tuple[CLIPTokenizer, ...]
    scheduler: DDPMScheduler

    @property
    def predicts_velocity(self) -> bool:
        """Whether the U-Net predicts velocity, by its own files or because the config says so; else noise."""
        return bool(self.scheduler.config.prediction_type == "v_prediction")

    @cached_property
    def vae_identity(self) -> str:
        """What latents of this VAE are kept under. Worked out once: it reads every weight, and none changes."""
        return vae_identity(self.vae)

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """Every module with weights: U-Net, VAE, text encoders."""
        return (self.unet, self.vae, *self.text_encoders)


def load_components(
    path: str | Path,
    dtype: torch.dtype,
    vae_path: str | Path | None = None,
    *,
    vae_dtype: torch.dtype | None = None,
    v_prediction: bool | None = None,
) -> Components:
    """Load the base model at `path`: a diffusers folder, or a .safetensors or .ckpt file.

    U-Net and text encoders come in `dtype`; the VAE in `vae_dtype`, by default float32 for SDXL, whose own
    overflows in half precision, else `dtype`. `vae_path` takes the VAE from another file or folder.
    `v_prediction` overrides what the model says of itself. Raises ModelError.
    """
    path = Path(path).expanduser()
    detected = detect_family(path)
    vae_dtype = vae_dtype or (torch.float32 if detected.family == "sdxl" else dtype)
    load = _load_folder if detected.layout == "diffusers" else _load_file
    return load(path, detected.family, dtype, vae_dtype, vae_path, v_prediction)


def load_vae(path: str | Path, family: str, dtype: torch.dtype) -> AutoencoderKL:
    """The VAE alone, from its own folder, a diffusers folder that has one, or a file in either layout."""
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelError(
            f"VAE {path} does not exist.", "Check `vae`, or leave it out to use the base model's own."
        )
    if path.is_dir():
        return _vae_from_folder(path / "vae" if (path / "vae").is_dir() else path, dtype)
    state = read_state(path)
    return _vae_from_state(state, family, dtype, path)


def noise_scheduler(config: Mapping[str, Any]) -> DDPMScheduler:
    """The training noise schedule from the figures in a scheduler's `config`; absent ones are Stable
    Diffusion's."""
    known = family_configs("sd1")["scheduler"] | {"rescale_betas_zero_snr": False}
    figures = {name: config.get(name, default) for name, default in known.items()}
    return DDPMScheduler(**figures, clip_sample=False)


# --- a diffusers folder -------------------------------------------------------------------------------------


def _load_folder(
    path: Path,
    family: str,
    dtype: torch.dtype,
    vae_dtype: torch.dtype,
    vae_path: str | Path | None,
    v_prediction: bool | None,
) -> Components:
    tokenizers = [load_tokenizer(path / "tokenizer", END)]
    encoders: list[TextEncoder] = [_text_from_folder(path / "text_encoder", CLIPTextModel, dtype)]
    if family == "sdxl":
        tokenizers.append(load_tokenizer(path / "tokenizer_2", ZERO))
        encoders.append(_text_from_folder(path / "text_encoder_2", CLIPTextModelWithProjection, dtype))
    scheduler_config = path / "scheduler" / "scheduler_config.json"
    return Components(
        family,
        _unet_from_folder(path / "unet", dtype),
        load_vae(vae_path or path / "vae", family, vae_dtype),
        tuple(encoders),
        tuple(tokenizers),
        _scheduler(read_json(scheduler_config) if scheduler_config.exists() else {}, v_prediction),
    )


def _unet_from_folder(folder: Path, dtype: torch.dtype) -> UNet2DConditionModel:
    weights = component_weights(folder)
    unet = build(partial(UNet2DConditionModel.from_config, component_config(folder)))
    return fill(unet, read_state(weights), Place, dtype, weights)


def _vae_from_folder(folder: Path, dtype: torch.dtype) -> AutoencoderKL:
    weights = component_weights(folder)
    vae = build(partial(AutoencoderKL.from_config, component_config(folder)))
    return fill(vae, _current_vae_names(read_state(weights)), Place, dtype, weights)


def _text_from_folder(folder: Path, kind: Callable[..., TextEncoder], dtype: torch.dtype) -> TextEncoder:
    weights = component_weights(folder)
    config = CLIPTextConfig.from_dict(component_config(folder))
    state = _without_text_model(read_state(weights))
    return fill(build(partial(kind, config)), state, lambda name: Place(_flat(name)), dtype, weights)


def _current_vae_names(state: State) -> State:
    """Folders saved before diffusers 0.15 name the attention's layers query, key, value and proj_attn."""
    old = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}
    renamed = {}
    for name, tensor in state.items():
        part = next((p for p in old if p in name), None)
        renamed[name.replace(part, old[part]) if part else name] = tensor
    return renamed


def _flat(name: str) -> str:
    """A text encoder's parameter name without `text_model.`, which only some versions and classes have."""
    return name.removeprefix("text_model.")


def _without_text_model(state: State) -> State:
    return {_flat(name): tensor for name, tensor in state.items()}


# --- a single file ------------------------------------------------------------------------------------------


def _load_file(
    path: Path,
    family: str,
    dtype: torch.dtype,
    vae_dtype: torch.dtype,
    vae_path: str | Path | None,
    v_prediction: bool | None,
) -> Components:
    state = read_state(path)
    try:
        encoders, pooled_width = _texts_from_state(state, family, dtype, path)
        unet = _unet_from_state(state, family, dtype, path, pooled_width)
    except KeyError as error:
        raise _incomplete(path, error) from None
    vae = load_vae(vae_path, family, vae_dtype) if vae_path else _vae_from_state(state, family, vae_dtype, path)
    tokenizers = [clip_tokenizer(END)] + ([clip_tokenizer(ZERO)] if family == "sdxl" else [])
    return Components(family, unet, vae, encoders, tuple(tokenizers), _scheduler(_marks(state), v_prediction))


def _unet_from_state(
    state: State, family: str, dtype: torch.dtype, source: Path, pooled_width: int
) -> UNet2DConditionModel:
    config = unet_config(family, _shapes(state, UNET_PREFIX), pooled_width)
    unet = build(partial(UNet2DConditionModel.from_config, config))
    place_of = partial(layout.unet_place, config=config)
    refuse_leftovers(unet, state, place_of, UNET_PREFIX, source)
    return fill(unet, state, place_of, dtype, source)


def _vae_from_state(state: State, family: str, dtype: torch.dtype, source: Path) -> AutoencoderKL:
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
    filled = fill(second, state, lambda name: layout.open_clip_place(_flat(name)), dtype, source)
    return (first, filled), config["projection_dim"]


def _clip_from_state(state: State, family: str, prefix: str, dtype: torch.dtype, source: Path) -> CLIPTextModel:
    config: Config = clip_config(family, _shapes(state, prefix))
    encoder = build(partial(CLIPTextModel, CLIPTextConfig(**config)))
    return fill(encoder, state, lambda name: layout.clip_place(_flat(name), prefix), dtype, source)


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


def _scheduler(config: Mapping[str, Any], v_prediction: bool | None) -> DDPMScheduler:
    if v_prediction is None:
        return noise_scheduler(config)
    return noise_scheduler({**config, "prediction_type": "v_prediction" if v_prediction else "epsilon"})


def _incomplete(path: Path, error: KeyError) -> ModelError:
    return ModelError(f"{path} lacks the weight {error.args[0]}.", "The file is incomplete: download it again.")
