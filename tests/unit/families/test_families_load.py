"""Whatever holds a base model, the same modules come out of it, whole and offline, or an error says why."""

import json
import shutil
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.loaders import single_file_utils as oracle
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from autotune.errors import ModelError
from autotune.testing.single_file import single_file_state
from autotune.testing.tiny import save_single_file
from trainer.families import layout
from trainer.families.architecture import (
    clip_config,
    family_configs,
    open_clip_config,
    unet_config,
    vae_config,
)
from trainer.families.denoise import predict_noise
from trainer.families.load import Components, load_components
from trainer.families.sd import SD1, SDXL
from trainer.families.text import encode_prompts
from trainer.families.vae import decode_latents

both = pytest.mark.parametrize("family", ["sd1", "sdxl"])


def _assert_equal(one: nn.Module, other: nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@torch.no_grad()
def _outputs(components: Components) -> tuple[Tensor, ...]:
    latents = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    told = encode_prompts(components, ["a photo of a cat"])
    time_ids = SDXL.size_ids((64, 64), (0, 0), (64, 64))
    predicted = predict_noise(components, latents, torch.tensor([500]), told, time_ids)
    return told.hidden, predicted, decode_latents(components.vae, latents)


@both
@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
def test_single_file_gives_bit_equal_weights_and_outputs(
    tiny_folders: Mapping[str, Path],
    tiny_components: Mapping[str, Components],
    tmp_path: Path,
    family: str,
    suffix: str,
) -> None:
    expected = tiny_components[family]
    loaded = load_components(save_single_file(tiny_folders[family], tmp_path / f"m.{suffix}"), torch.float32)
    for one, other in zip(loaded.modules, expected.modules, strict=True):
        _assert_equal(one, other)
    for one, other in zip(_outputs(loaded), _outputs(expected), strict=True):
        assert torch.equal(one, other)


@both
def test_single_file_layout_agrees_with_diffusers_own_conversion(
    tiny_files: Mapping[str, Path], tiny_components: Mapping[str, Components], family: str
) -> None:
    state, expected = load_file(tiny_files[family]), tiny_components[family]
    unet = oracle.convert_ldm_unet_checkpoint(dict(state), dict(expected.denoiser.config))
    vae = oracle.convert_ldm_vae_checkpoint(dict(state), dict(expected.vae.config))
    texts = [oracle.convert_ldm_clip_checkpoint(dict(state))]
    if family == "sdxl":
        second = expected.text_encoders[1]
        texts.append(oracle.convert_open_clip_checkpoint(second, dict(state), layout.SDXL_TEXT_2_PREFIX))
    for converted, module in zip([unet, vae, *texts], expected.modules, strict=True):
        mine = {name.removeprefix("text_model."): tensor for name, tensor in module.state_dict().items()}
        theirs = {name.removeprefix("text_model."): tensor for name, tensor in converted.items()}
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@both
def test_folder_gives_what_the_libraries_own_loaders_give(
    tiny_folders: Mapping[str, Path], tiny_components: Mapping[str, Components], family: str
) -> None:
    folder, loaded = tiny_folders[family], tiny_components[family]
    kinds: list[tuple[str, Any]] = [
        ("unet", UNet2DConditionModel),
        ("vae", AutoencoderKL),
        ("text_encoder", CLIPTextModel),
        ("text_encoder_2", CLIPTextModelWithProjection),
    ]
    for (name, kind), module in zip(kinds, loaded.modules, strict=False):
        _assert_equal(module, kind.from_pretrained(folder / name, local_files_only=True))
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())


# The counts of the published files: 1131 tensors in v1-5-pruned-emaonly (with position_ids), 2515 in
# sd_xl_base_1.0 (with position_ids and logit_scale).
@pytest.mark.parametrize(("family", "unet", "text", "total"), [("sd1", 686, 196, 1130), ("sdxl", 1680, 585, 2513)])
def test_full_size_single_file_has_the_published_tensors(
    full_size: Mapping[str, Components], family: str, unet: int, text: int, total: int
) -> None:
    names = single_file_state(full_size[family])
    starts = ("model.diffusion_model.", "first_stage_model.", "cond_stage_model.", "conditioner.")
    counts = [sum(name.startswith(start) for name in names) for start in starts]
    assert (counts[0], counts[1], counts[2] + counts[3], len(names)) == (unet, 248, text, total)


@both
def test_full_size_architecture_is_read_from_shapes(full_size: Mapping[str, Components], family: str) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in single_file_state(full_size[family]).items()}
    configs = family_configs(family)

    def under(prefix: str) -> dict[str, tuple[int, ...]]:
        return {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}

    pooled = configs.get("text_encoder_2", {}).get("projection_dim", 0)
    unet = unet_config(family, under("model.diffusion_model."), pooled)
    assert {name: unet[name] for name in configs["unet"]} == configs["unet"]
    vae = vae_config(family, under("first_stage_model."))
    assert {name: vae[name] for name in configs["vae"]} == configs["vae"]
    assert vae["norm_num_groups"] == 32
    prefix = layout.SD1_TEXT_PREFIX if family == "sd1" else layout.SDXL_TEXT_PREFIX
    assert clip_config(family, under(prefix)) == configs["text_encoder"]
    if family == "sdxl":
        assert open_clip_config(under(layout.SDXL_TEXT_2_PREFIX)) == configs["text_encoder_2"]


# Parameters of the published models.
@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("sd1", [859_520_964, 83_653_863, 123_060_480]),
        ("sdxl", [2_567_463_684, 83_653_863, 123_060_480, 694_659_840]),
    ],
)
def test_full_size_models_have_the_published_parameters_and_take_no_memory(
    full_size: Mapping[str, Components], family: str, parameters: list[int]
) -> None:
    modules = full_size[family].modules
    assert [sum(p.numel() for p in module.parameters()) for module in modules] == parameters
    assert all(p.device.type == "meta" for module in modules for p in module.parameters())


def test_loading_uses_no_network(
    tiny_folders: Mapping[str, Path],
    tiny_files: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError(f"network asked for: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for path in (tiny_folders["sdxl"], tiny_files["sdxl"]):
        assert load_components(path, torch.float32).family == "sdxl"


def _rewrite(source: Path, path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    save_file(change(load_file(source)), path)
    return path


def _as_old_checkpoints_have_it(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without `text_model.`, with position ids and with weights of an average."""
    bare = {name.replace("transformer.text_model.", "transformer."): tensor for name, tensor in state.items()}
    return {
        **bare,
        "cond_stage_model.transformer.embeddings.position_ids": torch.arange(77)[None],
        "model_ema.diffusion_modelout2weight": torch.zeros(1),
    }


def test_habits_of_old_checkpoints_load_alike(
    tiny_files: Mapping[str, Path], tiny_components: Mapping[str, Components], tmp_path: Path
) -> None:
    path = _rewrite(tiny_files["sd1"], tmp_path / "m.safetensors", _as_old_checkpoints_have_it)
    loaded = load_components(path, torch.float32)
    for one, other in zip(loaded.modules, tiny_components["sd1"].modules, strict=True):
        _assert_equal(one, other)


@pytest.mark.parametrize(
    "lost",
    [
        "model.diffusion_model.middle_block.0.in_layers.2.weight",
        "first_stage_model.quant_conv.weight",
        "cond_stage_model.transformer.text_model.final_layer_norm.bias",
    ],
)
def test_missing_weight_is_named(tiny_files: Mapping[str, Path], tmp_path: Path, lost: str) -> None:
    path = _rewrite(
        tiny_files["sd1"], tmp_path / "m.safetensors", lambda s: {n: t for n, t in s.items() if n != lost}
    )
    with pytest.raises(ModelError, match=f"lacks the weight {lost}"):
        load_components(path, torch.float32)


def test_weight_missing_in_a_folder_is_never_random(tiny_folders: Mapping[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folders["sd1"], tmp_path / "model")
    weights = folder / "text_encoder" / "model.safetensors"
    state = load_file(weights)
    name = next(n for n in state if n.endswith("layers.1.mlp.fc2.bias"))
    save_file({n: t for n, t in state.items() if n != name}, weights)
    with pytest.raises(ModelError, match=r"lacks the weight encoder\.layers\.1\.mlp\.fc2\.bias"):
        load_components(folder, torch.float32)


def test_weights_of_another_architecture_are_named(tiny_files: Mapping[str, Path], tmp_path: Path) -> None:
    name = "model.diffusion_model.input_blocks.1.0.extra.weight"
    path = _rewrite(tiny_files["sd1"], tmp_path / "m.safetensors", lambda s: {**s, name: torch.zeros(1)})
    with pytest.raises(ModelError, match=f"does not have, first {name}"):
        load_components(path, torch.float32)


def test_weight_of_another_shape_is_named(tiny_files: Mapping[str, Path], tmp_path: Path) -> None:
    name = "model.diffusion_model.middle_block.0.in_layers.2.weight"
    path = _rewrite(tiny_files["sd1"], tmp_path / "m.safetensors", lambda s: {**s, name: torch.zeros(2, 2, 3, 3)})
    with pytest.raises(ModelError, match=f"{name} has shape"):
        load_components(path, torch.float32)


def test_attention_names_of_old_vae_folders_are_read(
    tiny_folders: Mapping[str, Path], tiny_components: Mapping[str, Components], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folders["sd1"], tmp_path / "model")
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def rename(state: dict[str, Tensor]) -> dict[str, Tensor]:
        for new, name in old.items():
            state = {n.replace(f".{new}.", f".{name}."): t for n, t in state.items()}
        return state

    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    _rewrite(weights, weights, rename)
    _assert_equal(load_components(folder, torch.float32).vae, tiny_components["sd1"].vae)


def test_folder_of_bin_files_and_shards_loads_alike(
    tiny_folders: Mapping[str, Path], tiny_components: Mapping[str, Components], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folders["sd1"], tmp_path / "model")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    state = load_file(weights)
    names = sorted(state)
    halves = {"a.bin": names[::2], "b.bin": names[1::2]}
    for file, part in halves.items():
        torch.save({name: state[name] for name in part}, folder / "unet" / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "unet" / "diffusion_pytorch_model.bin.index.json").write_text(json.dumps(index))
    weights.unlink()
    _assert_equal(load_components(folder, torch.float32).denoiser, tiny_components["sd1"].denoiser)


@both
def test_precision_is_as_asked_and_the_sdxl_vae_stays_in_float32(
    tiny_files: Mapping[str, Path], family: str
) -> None:
    loaded = load_components(tiny_files[family], torch.float16)
    vae_dtype = torch.float32 if family == "sdxl" else torch.float16
    assert {p.dtype for m in (loaded.denoiser, *loaded.text_encoders) for p in m.parameters()} == {torch.float16}
    assert {p.dtype for p in loaded.vae.parameters()} == {vae_dtype}


def test_vae_is_taken_from_another_file_or_folder(
    tiny_folders: Mapping[str, Path], tiny_components: Mapping[str, Components], tmp_path: Path
) -> None:
    other = {n: t + 1 for n, t in tiny_components["sd1"].vae.state_dict().items()}
    folder = shutil.copytree(tiny_folders["sd1"] / "vae", tmp_path / "vae")
    save_file(other, folder / "diffusion_pytorch_model.safetensors")
    alone = {layout.vae_name(n, 4): t for n, t in other.items()}
    save_file(alone, tmp_path / "vae.safetensors")
    torch.save({"state_dict": alone}, tmp_path / "vae.pt")
    for path in (folder, tmp_path / "vae.safetensors", tmp_path / "vae.pt"):
        vae = load_components(tiny_folders["sd1"], torch.float32, path).vae
        assert all(torch.equal(tensor, other[name]) for name, tensor in vae.state_dict().items())


def test_missing_vae_is_named(tiny_folders: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_components(tiny_folders["sd1"], torch.float32, tmp_path / "vae.pt")


def test_scheduler_is_stable_diffusions_unless_the_model_says_otherwise(
    tiny_files: Mapping[str, Path], tmp_path: Path
) -> None:
    plain = load_components(tiny_files["sd1"], torch.float32).scheduler.config
    assert (plain.beta_start, plain.beta_end, plain.beta_schedule) == (0.00085, 0.012, "scaled_linear")
    assert (plain.num_train_timesteps, plain.prediction_type, plain.rescale_betas_zero_snr) == (
        1000,
        "epsilon",
        False,
    )
    marks = {"v_pred": torch.zeros(1), "ztsnr": torch.zeros(1)}
    path = _rewrite(tiny_files["sd1"], tmp_path / "v.safetensors", lambda state: state | marks)
    marked = load_components(path, torch.float32).scheduler.config
    assert (marked.prediction_type, marked.rescale_betas_zero_snr) == ("v_prediction", True)
    forced = load_components(tiny_files["sd1"], torch.float32, v_prediction=True).scheduler.config
    assert forced.prediction_type == "v_prediction"


def test_scheduler_of_a_folder_is_read_whatever_its_kind() -> None:
    pndm = {"_class_name": "PNDMScheduler", "prediction_type": "v_prediction", "skip_prk_steps": True}
    assert SD1.rule.schedule(pndm).config.prediction_type == "v_prediction"


def test_loaded_weights_do_not_depend_on_the_file_any_more(tiny_files: Mapping[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(tiny_files["sd1"], tmp_path / "m.safetensors"))
    loaded = load_components(path, torch.float32)
    before = loaded.denoiser.conv_in.weight.clone()
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(loaded.denoiser.conv_in.weight, before)


def test_places_in_a_single_file_never_collide(full_size: Mapping[str, Components]) -> None:
    unet = full_size["sdxl"].denoiser
    places = list(map(partial(layout.unet_place, config=unet.config), unet.state_dict()))
    assert len(set(places)) == len(places)
