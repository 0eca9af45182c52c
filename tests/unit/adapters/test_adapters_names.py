"""LoRA names are the ones A1111, ComfyUI and kohya know, on the full-size architectures."""

from pathlib import Path

import pytest

from autotune.testing.tiny import build_meta
from trainer.adapters.names import sgm_path, text_name
from trainer.families.family import get_family

GOLDEN = Path(__file__).parents[2] / "golden"
CLIP_PARTS = ("mlp_fc1", "mlp_fc2", *(f"self_attn_{p}_proj" for p in ("k", "out", "q", "v")))


@pytest.fixture(scope="module", params=["sd1", "sdxl"])
def full_size(request):
    return build_meta(request.param)


def test_unet_names_equal_the_golden_list_of_the_full_size_model(full_size):
    # The lists were printed by kohya sd-scripts' own LoRANetwork on its own U-Nets (February 2026).
    file = {"sd1": "lora_unet_names_sd15.txt", "sdxl": "lora_unet_names_sdxl.txt"}[full_size.family]
    golden = (GOLDEN / file).read_text().split()
    family, denoiser = get_family(full_size.family), full_size.denoiser
    names = [family.denoiser_lora_name(denoiser, path) for path in family.denoiser_targets(denoiser)]
    assert len(golden) == {"sd1": 192, "sdxl": 722}[full_size.family]
    assert sorted(names) == golden


def test_text_encoder_names_are_those_the_uis_match(full_size):
    prefixes = {"sd1": [("lora_te", 12)], "sdxl": [("lora_te1", 12), ("lora_te2", 32)]}[full_size.family]
    for number, (encoder, (prefix, layers)) in enumerate(zip(full_size.text_encoders, prefixes, strict=True)):
        expected = {f"{prefix}_text_model_encoder_layers_{i}_{p}" for i in range(layers) for p in CLIP_PARTS}
        family = get_family(full_size.family)
        names = [family.text_lora_name(number, path) for path in family.text_targets(encoder)]
        assert len(names) == len(set(names)) == 6 * layers
        assert set(names) == expected


def test_text_names_do_not_depend_on_how_transformers_nests_the_encoder():
    nested = text_name("lora_te", "text_model.encoder.layers.0.mlp.fc1")
    assert nested == text_name("lora_te", "encoder.layers.0.mlp.fc1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("down_blocks.0.resnets.1.conv1", "input_blocks.2.0.in_layers.2"),
        ("down_blocks.1.attentions.0.proj_in", "input_blocks.4.1.proj_in"),
        ("down_blocks.1.downsamplers.0.conv", "input_blocks.6.0.op"),
        ("mid_block.resnets.1.time_emb_proj", "middle_block.2.emb_layers.1"),
        ("mid_block.attentions.0.proj_out", "middle_block.1.proj_out"),
        ("up_blocks.0.attentions.2.norm", "output_blocks.2.1.norm"),
        ("up_blocks.0.upsamplers.0.conv", "output_blocks.2.2.conv"),
        ("up_blocks.2.resnets.0.conv_shortcut", "output_blocks.6.0.skip_connection"),
    ],
)
def test_sdxl_paths_follow_the_original_layout(path, expected):
    assert sgm_path(path) == expected


def test_a_module_outside_the_blocks_has_no_sgm_path():
    with pytest.raises(ValueError, match="conv_in"):
        sgm_path("conv_in")
