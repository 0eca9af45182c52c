"""Diffusers folders of the transformer families load whole, from shards too, and a missing part is named."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from autotune.errors import ModelError
from autotune.testing.tiny import make_tiny
from autotune.testing.tiny_transformers import save_tiny, tiny_components
from trainer.families.components import Components
from trainer.families.denoise import predict_noise
from trainer.families.detect import detect_family
from trainer.families.family import family_of_denoiser, get_family
from trainer.families.load import load_components
from trainer.families.text import encode_prompts
from trainer.families.vae import decode_latents

FAMILIES = ("sd3", "flux1", "flux2", "pixart", "zimage", "qwenimage", "chroma", "auraflow", "wan")
each = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Components, Path]]:
    made = {name: tiny_components(name) for name in FAMILIES}
    return {name: (made[name], save_tiny(tmp_path_factory.mktemp(name), made[name])) for name in FAMILIES}


@torch.no_grad()
def answers(components: Components, tokenizers: Components) -> tuple[Tensor, Tensor, Tensor]:
    """What a model's encoders, denoiser and VAE say, with the tokenizers of another."""
    family = get_family(components.family)
    told = encode_prompts(
        Components(
            components.family,
            components.denoiser,
            components.vae,
            components.text_encoders,
            tokenizers.tokenizers,
            components.scheduler,
        ),
        ["a cat"],
    )
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn((1, *family.latent_shape(components, (64, 64))), generator=generator)
    levels = family.rule.levels(components.scheduler, torch.tensor([500]))
    predicted = predict_noise(components, latents, levels, told)
    return told.hidden, predicted, decode_latents(components.vae, latents, codec=family.codec)


@each
def test_a_folder_loads_to_what_was_saved(models: Mapping[str, tuple[Components, Path]], name: str) -> None:
    made, folder = models[name]
    assert detect_family(folder).family == name
    loaded = load_components(folder, torch.float32)
    for one, other in zip(answers(made, loaded), answers(loaded, loaded), strict=True):
        assert torch.equal(one, other)
    assert loaded.scheduler.config.get("shift") == made.scheduler.config.get("shift")
    assert not any(p.requires_grad or p.is_meta for module in loaded.modules for p in module.parameters())


def test_a_folder_of_stable_diffusion_2_loads_with_its_own_prediction_and_padding(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "model", "sd2")
    loaded = load_components(folder, torch.float32)
    assert (loaded.family, loaded.predicts_velocity) == ("sd2", True)
    with torch.no_grad():
        told = encode_prompts(loaded, ["a cat"])
        answer = predict_noise(loaded, torch.randn(1, 4, 8, 8), torch.tensor([500]), told)
    assert bool(answer.isfinite().all())


def test_shards_and_a_chat_model_saved_whole_load_alike(
    models: Mapping[str, tuple[Components, Path]], tmp_path: Path
) -> None:
    made, folder = models["flux2"]
    folder = shutil.copytree(folder, tmp_path / "model")
    whole = folder / "text_encoder" / "model.safetensors"
    weights = {f"model.{name}": tensor for name, tensor in load_file(whole).items()}
    names = sorted(weights)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: weights[name] for name in held}, folder / "text_encoder" / file, {"format": "pt"})
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (folder / "text_encoder" / "model.safetensors.index.json").write_text(json.dumps(index))
    whole.unlink()
    loaded = load_components(folder, torch.float32)
    assert torch.equal(answers(made, loaded)[0], answers(loaded, loaded)[0])


@each
def test_a_folder_of_configs_alone_tells_its_family(
    models: Mapping[str, tuple[Components, Path]], name: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(models[name][1], tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    assert detect_family(folder, weights=False).family == name
    with pytest.raises(ModelError, match=r"lacks transformer/diffusion_pytorch_model.safetensors"):
        detect_family(folder)


def test_a_folder_without_one_of_its_encoders_is_refused(
    models: Mapping[str, tuple[Components, Path]], tmp_path: Path
) -> None:
    folder = shutil.copytree(models["sd3"][1], tmp_path / "model")
    shutil.rmtree(folder / "text_encoder_3")
    with pytest.raises(ModelError, match=r"lacks text_encoder_3/"):
        load_components(folder, torch.float32)


def test_a_folder_of_another_transformer_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text('{"_class_name": "MochiTransformer3DModel"}')
    with pytest.raises(ModelError, match="it is a MochiTransformer3DModel"):
        detect_family(tmp_path)


@each
def test_every_family_with_a_transformer_is_known_by_its_class(name: str) -> None:
    assert family_of_denoiser(next(iter(get_family(name).parts.values()))) == name
