"""A LoRA file of a transformer family reloads through its diffusers pipeline with the trained model's outputs."""

import inspect
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from autotune.testing.tiny_transformers import tiny_components
from trainer.adapters.export import base_metadata, lora_tensors, save_lora
from trainer.adapters.lora import Adapter, attach
from trainer.families.components import Components
from trainer.families.denoise import predict_noise
from trainer.families.family import get_family
from trainer.families.text import encode_prompts

PIPELINES = {
    "flux1": "FluxPipeline",
    "sd3": "StableDiffusion3Pipeline",
    "flux2": "Flux2KleinPipeline",
    "zimage": "ZImagePipeline",
    "qwenimage": "QwenImagePipeline",
    "chroma": "ChromaPipeline",
    "auraflow": "AuraFlowPipeline",
    "wan": "WanPipeline",
}
TRAIN_TEXT = ("flux1", "sd3")
RANK, ALPHA = 4, 2.0
TOLERANCE = 1e-5


def adapted(name: str) -> tuple[Components, Adapter]:
    """A tiny model with an adapter whose up weights are no longer zero, as after training."""
    components = tiny_components(name)
    text = name in TRAIN_TEXT
    adapter = attach(components, rank=RANK, alpha=ALPHA, denoiser=True, text_encoders=text, seed=7)
    generator = torch.Generator().manual_seed(1)
    for pair in adapter.pairs:
        pair.up.data.normal_(0, 0.05, generator=generator)
    return components, adapter


@torch.no_grad()
def answers(components: Components) -> tuple[Tensor, Tensor]:
    """What the model says of noise, and of a caption: its pooled text where the text encoders may be trained."""
    family = get_family(components.family)
    told = encode_prompts(components, ["a cat"])
    generator = torch.Generator().manual_seed(2)
    latents = torch.randn((1, *family.latent_shape(components, (64, 64))), generator=generator)
    levels = family.rule.levels(components.scheduler, torch.tensor([500]))
    return predict_noise(components, latents, levels, told), told.hidden if told.pooled is None else told.pooled


def pipeline_of(components: Components) -> Any:
    """The family's pipeline around the very modules."""
    kind = getattr(diffusers, PIPELINES[components.family])
    names = [name for name in inspect.signature(kind).parameters if name.startswith(("text_encoder", "tokenizer"))]
    modules: dict[str, Any] = dict.fromkeys(names)
    if components.family in TRAIN_TEXT:
        modules |= dict(zip(list(get_family(components.family).parts)[2:], components.text_encoders, strict=True))
    return kind(transformer=components.denoiser, vae=components.vae, scheduler=components.scheduler, **modules)


@pytest.mark.parametrize("name", PIPELINES)
def test_diffusers_reloads_the_file_with_equal_outputs(name: str, tmp_path: Path) -> None:
    components, adapter = adapted(name)
    expected = answers(components)
    path = tmp_path / "lora.safetensors"
    save_lora(path, lora_tensors(adapter, torch.float32), base_metadata(adapter, name, "lora"))
    adapter.detach()
    plain = answers(components)
    pipeline_of(components).load_lora_weights(tmp_path, weight_name=path.name, local_files_only=True)
    reloaded = answers(components)
    for one, other in zip(reloaded, expected, strict=True):
        assert (one - other).abs().max() <= TOLERANCE
    moved = [bool((one - other).abs().max() > 100 * TOLERANCE) for one, other in zip(plain, expected, strict=True)]
    assert moved == [True, name in TRAIN_TEXT], "the adapter must matter for this test to mean much"


def test_the_file_says_a_scale_that_its_readers_will_take(tmp_path: Path) -> None:
    _, adapter = adapted("flux1")
    tensors = lora_tensors(adapter, torch.float32)
    assert {name.rpartition(".lora_")[2] for name in tensors} == {"A.weight", "B.weight"}
    assert torch.equal(tensors[f"{adapter.pairs[0].name}.lora_B.weight"], adapter.pairs[0].up * ALPHA / RANK)
    save_lora(tmp_path / "lora.safetensors", tensors, base_metadata(adapter, "flux1", "lora"))
    with safe_open(tmp_path / "lora.safetensors", "pt") as file:
        metadata = file.metadata()
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"]) == (str(RANK), str(float(RANK)))
    assert metadata["modelspec.architecture"] == "flux-1-dev/lora"
