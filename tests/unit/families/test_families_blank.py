"""Full-size models without weights have the published size, in the precision of loading, and take no memory."""

import json
from pathlib import Path

import pytest
import torch

from autotune.errors import ModelError
from trainer.adapters.lora import attach
from trainer.families.blank import blank_components, configs_of_folder
from trainer.families.family import family_names, get_family

CLIP_L, CLIP_L_PROJECTED, CLIP_H, CLIP_G = 123_060_480, 123_650_304, 340_387_840, 694_659_840
T5, UMT5, PILE_T5, QWEN, QWEN_VL = 4_762_310_656, 5_680_910_336, 1_223_550_976, 4_022_468_096, 7_070_619_136
VAE_4, VAE_16, VAE_FLUX2, VAE_VIDEO = 83_653_863, 83_819_683, 84_046_115, 126_892_531
# Parameters of the published models: denoiser, VAE, text encoders.
PUBLISHED = {
    ("sd1", "sd15"): (859_520_964, VAE_4, CLIP_L),
    ("sd2", "sd21"): (865_910_724, VAE_4, CLIP_H),
    ("sd2", "sd21-base"): (865_910_724, VAE_4, CLIP_H),
    ("sdxl", "sdxl-base"): (2_567_463_684, VAE_4, CLIP_L, CLIP_G),
    ("sd3", "sd35-medium"): (2_243_171_520, VAE_16, CLIP_L_PROJECTED, CLIP_G, T5),
    ("sd3", "sd3-medium"): (2_028_328_000, VAE_16, CLIP_L_PROJECTED, CLIP_G, T5),
    ("sd3", "sd35-large"): (8_056_627_520, VAE_16, CLIP_L_PROJECTED, CLIP_G, T5),
    ("flux1", "flux1-dev"): (11_901_408_320, VAE_16, CLIP_L, T5),
    ("flux1", "flux1-schnell"): (11_891_178_560, VAE_16, CLIP_L, T5),
    ("flux2", "flux2-klein-4b"): (3_875_544_576, VAE_FLUX2, QWEN),
    ("pixart", "pixart-sigma"): (610_856_096, VAE_4, T5),
    ("zimage", "z-image"): (6_154_908_736, VAE_16, QWEN),
    ("qwenimage", "qwen-image"): (20_430_401_088, VAE_VIDEO, QWEN_VL),
    ("chroma", "chroma1"): (8_899_983_424, VAE_16, T5),
    ("auraflow", "auraflow-0.3"): (6_858_605_568, VAE_4, PILE_T5),
    ("wan", "wan21-1.3b"): (1_418_996_800, VAE_VIDEO, UMT5),
    ("wan", "wan21-14b"): (14_288_491_584, VAE_VIDEO, UMT5),
}
# For a picture of 1024 x 768: latents, and what is told of two captions (hidden states, pooled).
SHAPES = {
    "sd1": ((4, 96, 128), (2, 77, 768), None),
    "sd2": ((4, 96, 128), (2, 77, 1024), None),
    "sdxl": ((4, 96, 128), (2, 77, 2048), (2, 1280)),
    "sd3": ((16, 96, 128), (2, 333, 4096), (2, 2048)),
    "flux1": ((16, 96, 128), (2, 512, 4096), (2, 768)),
    "flux2": ((128, 48, 64), (2, 512, 7680), None),
    "pixart": ((4, 96, 128), (2, 300, 4096), None),
    "zimage": ((16, 96, 128), (2, 512, 2560), None),
    "qwenimage": ((16, 96, 128), (2, 512, 3584), None),
    "chroma": ((16, 96, 128), (2, 512, 4096), None),
    "auraflow": ((4, 96, 128), (2, 256, 2048), None),
    "wan": ((16, 96, 128), (2, 512, 4096), None),
}
# Modules that get LoRA layers: attention and MLP of every block.
TARGETS = {
    "sd1": 192,
    "sd2": 192,
    "sdxl": 722,
    "sd3": 24 * 12 + 13 * 4 - 3,  # the last block tells the captions nothing more
    "flux1": 19 * 12 + 38 * 5,
    "flux2": 5 * 12 + 20 * 2,
    "pixart": 28 * 10,
    "zimage": (30 + 2 + 2) * 7,
    "qwenimage": 60 * 12,
    "chroma": 19 * 12 + 38 * 5,
    "auraflow": 4 * 14 + 32 * 7,
    "wan": 30 * 10,
}

every_family = pytest.mark.parametrize("name", family_names())


def test_every_variant_of_every_family_is_listed_here() -> None:
    assert {(name, variant) for name in family_names() for variant in get_family(name).variants} == set(PUBLISHED)


@pytest.mark.parametrize(("name", "variant"), PUBLISHED)
def test_a_blank_model_has_the_published_parameters_and_takes_no_memory(name: str, variant: str) -> None:
    components = blank_components(name, variant)
    counts = tuple(sum(p.numel() for p in module.parameters()) for module in components.modules)
    assert counts == PUBLISHED[name, variant]
    tensors = [t for module in components.modules for t in (*module.parameters(), *module.buffers())]
    assert {t.device.type for t in tensors} == {"meta"}
    assert not any(t.requires_grad for t in tensors)


@every_family
def test_what_a_module_keeps_beside_parameters_and_buffers_is_real(name: str) -> None:
    components = blank_components(name)
    parts = (part for module in components.modules for part in module.modules())
    kept = [value for part in parts for value in vars(part).values() if isinstance(value, torch.Tensor)]
    assert not any(value.is_meta for value in kept)


@every_family
def test_precision_is_that_of_loading(name: str) -> None:
    components = blank_components(name, dtype=torch.float16)
    weights = {p.dtype for module in (components.denoiser, *components.text_encoders) for p in module.parameters()}
    assert weights == {torch.float16}
    expected = torch.float32 if get_family(name).vae_needs_float32 else torch.float16
    assert {p.dtype for p in components.vae.parameters()} == {expected}


@every_family
def test_latents_and_conditioning_have_the_shapes_that_the_denoiser_takes(name: str) -> None:
    family, components = get_family(name), blank_components(name)
    told = family.blank_conditioning(components, 2, torch.device("meta"), torch.bfloat16)
    pooled = None if told.pooled is None else tuple(told.pooled.shape)
    assert (family.latent_shape(components, (1024, 768)), tuple(told.hidden.shape), pooled) == SHAPES[name]


@every_family
def test_an_adapter_on_a_blank_model_is_real_and_leaves_it_blank(name: str) -> None:
    components = blank_components(name)
    adapter = attach(components, rank=2, alpha=1.0, denoiser=True, text_encoders=False, seed=3)
    assert len(adapter.pairs) == len({pair.name for pair in adapter.pairs}) == TARGETS[name]
    assert {(w.device.type, w.dtype) for w in adapter.parameters()} == {("cpu", torch.float32)}
    assert all(pair.down.any() and not pair.up.any() for pair in adapter.pairs)
    adapter.detach()
    assert {p.device.type for p in components.denoiser.parameters()} == {"meta"}


def test_figures_of_a_folder_go_before_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    figures = {**blank_components("flux1").denoiser.config, "num_layers": 2, "num_single_layers": 3}
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(figures))
    configs = configs_of_folder(tmp_path, "flux1")
    assert set(configs) == {"transformer"}
    denoiser = blank_components("flux1", configs=configs).denoiser
    assert (len(denoiser.transformer_blocks), len(denoiser.single_transformer_blocks)) == (2, 3)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'sd9'.*sdxl"):
        blank_components("sd9")
    with pytest.raises(ModelError, match=r"'flux1-max'.*flux1-dev"):
        blank_components("flux1", "flux1-max")
