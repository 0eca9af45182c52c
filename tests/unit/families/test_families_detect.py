"""What a base model is, from its header; and one clear line for everything that is none."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import ModelError
from trainer.families.detect import detect_family
from trainer.families.figures import family_of_base

UNET = "model.diffusion_model."
SD1 = {
    f"{UNET}input_blocks.0.0.weight": (320, 4, 3, 3),
    f"{UNET}middle_block.1.transformer_blocks.0.attn2.to_k.weight": (1280, 768),
    "first_stage_model.decoder.conv_in.weight": (512, 4, 3, 3),
    "cond_stage_model.transformer.text_model.final_layer_norm.weight": (768,),
}
OPEN_CLIP = {"cond_stage_model.model.ln_final.weight": (1024,)}
SDXL = {
    **{name: shape for name, shape in SD1.items() if not name.startswith("cond_stage")},
    "conditioner.embedders.0.transformer.text_model.final_layer_norm.weight": (768,),
    "conditioner.embedders.1.model.ln_final.weight": (1280,),
}
HERE = "trainer.families.detect"

Write = Callable[..., Path]


@pytest.mark.parametrize(("shapes", "family"), [(SD1, "sd1"), (SDXL, "sdxl")])
def test_single_file_is_recognised_by_its_header(write_header: Write, shapes: dict, family: str) -> None:
    found = detect_family(write_header(shapes))
    assert (found.family, found.layout, found.kind, found.obstacle) == (
        family,
        "single-file",
        "safetensors",
        "",
    )


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_diffusers_folder_is_recognised(tiny_folders: Mapping[str, Path], family: str) -> None:
    found = detect_family(tiny_folders[family])
    assert (found.family, found.layout, found.kind) == (family, "diffusers", "safetensors")


REFUSED = {
    "Stable Diffusion 2": {k: v for k, v in (SD1 | OPEN_CLIP).items() if "cond_stage_model.transformer" not in k},
    "inpainting": SD1 | {f"{UNET}input_blocks.0.0.weight": (320, 9, 3, 3)},
    "FLUX": {"double_blocks.0.img_attn.qkv.weight": (9, 3)},
    "Stable Diffusion 3": {f"{UNET}joint_blocks.0.x_block.attn.qkv.weight": (9, 3)},
    "refiner": {
        **{k: v for k, v in SD1.items() if not k.startswith("cond_stage")},
        "conditioner.embedders.0.model.ln_final.weight": (1280,),
    },
    "LoRA": {"lora_unet_mid_block_attentions_0_proj_in.lora_down.weight": (4, 9)},
    "VAE alone": {"encoder.conv_in.weight": (128, 3, 3, 3), "decoder.conv_in.weight": (512, 4, 3, 3)},
    "one component": {"down_blocks.0.resnets.0.conv1.weight": (9, 9, 3, 3)},
    "without its text encoder": {k: v for k, v in SD1.items() if not k.startswith("cond_stage")},
    "no model is recognised": {"something": (1,)},
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_what_cannot_be_trained_is_named(write_header: Write, words: str) -> None:
    path = write_header(REFUSED[words])
    with pytest.raises(ModelError, match=words) as caught:
        detect_family(path)
    assert str(path) in caught.value.fact
    assert caught.value.way_out
    assert detect_family(path, trainable=False).obstacle


def test_eight_bit_weights_are_refused(write_header: Write) -> None:
    with pytest.raises(ModelError, match=r"8-bit float weights \(F8_E4M3\)"):
        detect_family(write_header(SD1, dtype="F8_E4M3"))


def test_checkpoint_without_vae_is_refused(write_header: Write) -> None:
    shapes = {name: shape for name, shape in SD1.items() if not name.startswith("first_stage")}
    with pytest.raises(ModelError, match="no VAE inside"):
        detect_family(write_header(shapes))


def test_truncated_file_says_bytes_it_has_and_needs(write_header: Write) -> None:
    path = write_header(SD1, cut_bytes=1000)
    size = path.stat().st_size
    with pytest.raises(ModelError, match=f"has {size:,} bytes and needs {size + 1000:,}"):
        detect_family(path)


def test_truncated_header_is_cut_short(write_header: Write) -> None:
    path = write_header(SD1)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match="has 100 bytes and needs at least"):
        detect_family(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>Not Found</html>", "web page"),
        (b"not a model at all, but long enough to look at", "no model file"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{]", "damaged safetensors header"),
        (b"PK\x03\x04 and then nothing of a zip file", "cut short"),
        (b"\x80\x02garbage", "no PyTorch checkpoint"),
    ],
)
def test_file_that_is_no_model_is_named_for_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        detect_family(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.binary(max_size=64), st.binary(max_size=40).map(lambda b: len(b).to_bytes(8, "little") + b"{" + b)
    )
)
def test_any_bytes_give_a_model_error_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.ckpt"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        detect_family(path)


def test_length_that_looks_like_a_pickle_is_still_safetensors(write_header: Write) -> None:
    for padding in range(256):
        path = write_header({**SD1, "x" * padding: (1,)})
        if path.read_bytes()[0] == 0x80:
            assert detect_family(path).kind == "safetensors"
            return
    pytest.fail("no padding gave a header length of that kind")


def test_missing_path_names_the_nearest_folder_and_a_close_name(tmp_path: Path) -> None:
    (tmp_path / "sd-v1-5.safetensors").touch()
    with pytest.raises(ModelError, match=r"Did you mean sd-v1-5\.safetensors"):
        detect_family(tmp_path / "sd-v1-5.safetensor")
    with pytest.raises(ModelError, match=f"nearest that exists: {tmp_path}\\)"):
        detect_family(tmp_path / "gone" / "away" / "model.ckpt")


def test_hub_name_is_told_from_a_path() -> None:
    with pytest.raises(ModelError, match="not downloaded from the Hugging Face hub"):
        detect_family("stable-diffusion-v1-5/stable-diffusion-v1-5")


@pytest.mark.parametrize(
    "lost",
    ["unet/config.json", "vae/diffusion_pytorch_model.safetensors", "text_encoder_2/model.safetensors"],
)
def test_folder_names_the_file_it_lacks(tiny_folders: Mapping[str, Path], tmp_path: Path, lost: str) -> None:
    folder = shutil.copytree(tiny_folders["sdxl"], tmp_path / "model")
    (folder / lost).unlink()
    with pytest.raises(ModelError, match=lost):
        detect_family(folder)


def test_folder_names_the_shard_it_lacks(tiny_folders: Mapping[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folders["sd1"], tmp_path / "model")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    index = {"weight_map": {"a": weights.name, "b": "part-2.safetensors"}}
    weights.with_name(weights.name + ".index.json").write_text(json.dumps(index))
    weights.rename(weights.with_name("kept"))
    with pytest.raises(ModelError, match="is missing, named by diffusion_pytorch_model"):
        detect_family(folder)


def test_folder_of_stable_diffusion_2_is_told_by_its_u_net(
    tiny_folders: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folders["sd1"], tmp_path / "model")
    config = folder / "unet" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_linear_projection": True}))
    found = detect_family(folder)
    assert (found.family, found.obstacle) == ("sd2", "")


@pytest.mark.parametrize(
    ("tensor", "family"), [("double_blocks.0.img_attn.qkv.weight", "flux1"), ("joint_blocks.0.x.weight", "sd3")]
)
def test_a_single_file_that_is_not_read_yet_still_tells_its_family(
    write_header: Write, tensor: str, family: str
) -> None:
    path = write_header({tensor: (9, 3)})
    assert family_of_base(path) == family
    with pytest.raises(ModelError, match="in one file"):
        detect_family(path)


def test_an_inpainting_model_has_no_known_figures(write_header: Write) -> None:
    path = write_header(SD1 | {"model.diffusion_model.input_blocks.0.0.weight": (320, 9, 3, 3)})
    with pytest.raises(ModelError, match="an inpainting model"):
        family_of_base(path)


def test_folder_without_a_model_names_a_file_inside(tmp_path: Path) -> None:
    (tmp_path / "base.safetensors").touch()
    with pytest.raises(ModelError, match=r"this folder holds base\.safetensors"):
        detect_family(tmp_path)


def test_pickle_is_read_without_torch_or_execution(tmp_path: Path) -> None:
    state = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in SD1.items()}
    for legacy in (False, True):
        path = tmp_path / f"legacy-{legacy}.ckpt"
        torch.save({"state_dict": state}, path, _use_new_zipfile_serialization=not legacy)
        found = detect_family(path)
        assert (found.family, found.kind, found.detail) == ("sd1", "ckpt", "Stable Diffusion 1.x, F16")


def test_detection_needs_no_torch() -> None:
    code = f"import sys, {HERE}; sys.exit('torch' in sys.modules or 'diffusers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
