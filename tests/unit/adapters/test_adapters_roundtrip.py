"""A LoRA file reloads through diffusers with the trained model's own outputs, whatever the base came from."""

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors import safe_open

from autotune.testing.single_file import save_single_file
from autotune.testing.tiny import make_tiny
from trainer.adapters.export import base_metadata, lora_tensors, save_lora
from trainer.adapters.lora import attach, largest_change
from trainer.families.load import load_components
from trainer.families.text import encode_prompts

PIPELINES = {"sd1": StableDiffusionPipeline, "sdxl": StableDiffusionXLPipeline}
BASES = ["folder", "safetensors", "ckpt"]
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["sd1", "sdxl"])
def tiny(request, tmp_path_factory):
    folder = make_tiny(tmp_path_factory.mktemp("tiny") / request.param, request.param)
    bases = {"folder": folder}
    for ending in ("safetensors", "ckpt"):
        bases[ending] = save_single_file(folder, folder.parent / f"{request.param}.{ending}")
    return request.param, bases


def trained(base, *, text_encoders):
    """The base with an adapter whose up weights are no longer zero, as after training."""
    components = load_components(base, torch.float32)
    adapter = attach(components, rank=4, alpha=2.0, denoiser=True, text_encoders=text_encoders, seed=7)
    generator = torch.Generator().manual_seed(1)
    for pair in adapter.pairs:
        pair.up.data.normal_(0, 0.05, generator=generator)
    return components, adapter


@torch.no_grad()
def outputs(unet, conditioning):
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(1, 4, 16, 16, generator=generator)
    added = None
    if conditioning.pooled is not None:
        added = {"text_embeds": conditioning.pooled, "time_ids": torch.full((1, 6), 128.0)}
    timestep = torch.tensor([321])
    return unet(latents, timestep, encoder_hidden_states=conditioning.hidden, added_cond_kwargs=added).sample


@pytest.mark.parametrize("text_encoders", [False, True], ids=["unet", "unet+text"])
@pytest.mark.parametrize("base", BASES)
def test_diffusers_reloads_the_file_with_equal_outputs(tiny, base, text_encoders, tmp_path):
    family, bases = tiny
    components, adapter = trained(bases[base], text_encoders=text_encoders)
    with torch.no_grad():
        conditioning = encode_prompts(components, ["a photo of a cat"])
    expected = outputs(components.denoiser, conditioning)
    path = tmp_path / "lora.safetensors"
    save_lora(path, lora_tensors(adapter, torch.float32), base_metadata(adapter, family, "lora"))

    pipe = PIPELINES[family].from_pretrained(bases["folder"], local_files_only=True, safety_checker=None)
    plain = outputs(pipe.unet, conditioning)
    pipe.load_lora_weights(tmp_path, weight_name=path.name, local_files_only=True)

    theirs = load_components(bases["folder"], torch.float32)
    theirs = type(theirs)(
        family,
        pipe.unet,
        theirs.vae,
        tuple(getattr(pipe, n) for n in ("text_encoder", "text_encoder_2")[: len(theirs.text_encoders)]),
        theirs.tokenizers,
        theirs.scheduler,
    )
    with torch.no_grad():
        reloaded = encode_prompts(theirs, ["a photo of a cat"])
    assert (outputs(pipe.unet, conditioning) - expected).abs().max() <= TOLERANCE
    assert (reloaded.hidden - conditioning.hidden).abs().max() <= TOLERANCE
    assert (plain - expected).abs().max() > 100 * TOLERANCE, "the adapter must matter for this test to mean much"


def test_detaching_gives_the_base_model_back(tiny):
    _, bases = tiny
    components = load_components(bases["folder"], torch.float32)
    names = [name for name, _ in components.denoiser.named_parameters()]
    with torch.no_grad():
        conditioning = encode_prompts(components, ["a cat"])
    before = outputs(components.denoiser, conditioning)
    adapter = attach(components, rank=4, alpha=4.0, denoiser=True, text_encoders=True, seed=0)
    adapter.pairs[0].up.data.fill_(1.0)
    adapter.detach()
    assert [name for name, _ in components.denoiser.named_parameters()] == names
    assert torch.equal(outputs(components.denoiser, conditioning), before)


def test_a_new_adapter_changes_nothing_until_trained_and_leaves_the_random_state(tiny):
    _, bases = tiny
    components = load_components(bases["folder"], torch.float32)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    adapter = attach(components, rank=2, alpha=1.0, denoiser=True, text_encoders=False, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert largest_change(adapter) == 0.0


def test_the_adapter_is_float32_on_a_half_precision_base(tiny):
    _, bases = tiny
    components = load_components(bases["folder"], torch.float16)
    adapter = attach(components, rank=2, alpha=1.0, denoiser=True, text_encoders=True, seed=0)
    assert {weight.dtype for weight in adapter.parameters()} == {torch.float32}
    assert all(weight.requires_grad for weight in adapter.parameters())
    trainable = {id(p) for host in adapter.hosts for p in host.module.parameters() if p.requires_grad}
    assert trainable == {id(weight) for weight in adapter.parameters()}


def test_the_file_carries_true_alpha_string_metadata_and_hashes(tiny, tmp_path):
    family, bases = tiny
    _, adapter = trained(bases["folder"], text_encoders=True)
    path = tmp_path / "out" / "my.safetensors"
    save_lora(path, lora_tensors(adapter, torch.float16), base_metadata(adapter, family, "my"))
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        alphas = {float(file.get_tensor(k)) for k in file.keys() if k.endswith(".alpha")}  # noqa: SIM118
        names = {k.split(".")[0] for k in file.keys()}  # noqa: SIM118
    assert alphas == {2.0}
    assert len(names) == len(adapter.pairs)
    assert metadata["ss_network_dim"] == "4"
    assert metadata["ss_network_alpha"] == "2.0"
    assert metadata["ss_base_model_version"] == {"sd1": "sd_v1", "sdxl": "sdxl_base_v1-0"}[family]
    assert len(metadata["sshs_model_hash"]) == 64
    assert path.stat().st_mode & 0o044, "a team must be able to read it"
    assert list(path.parent.iterdir()) == [path]
