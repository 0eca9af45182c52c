"""A forecast's workload is the trainer's own, at full size, without a file: what it makes of a config."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer.workload
from autotune.device.session import Evidence
from autotune.device.virtual import VirtualSession
from autotune.errors import ConfigError, ModelError
from autotune.ladder.plan import Plan
from autotune.testing.photos import write_demo_dataset
from autotune.testing.tiny import make_tiny, save_single_file
from autotune.units import GIB
from trainer.blank_settings import load_settings
from trainer.data.cache import LatentCache
from trainer.data.samples import Sample
from trainer.families.blank import blank_components
from trainer.families.load import load_components
from trainer.forecast import BlankWorkload, _for_plan, create
from trainer.workload import architecture_of


def family(**settings: Any) -> BlankWorkload:
    return create({"family": "sd1", **settings})


def user_config(folder: Path, **settings: Any) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps({"network_dim": 8, "network_alpha": 8, **settings}), encoding="utf-8")
    return {"configs": [str(path)], "set": []}


def test_a_family_alone_is_a_whole_job_at_its_own_side() -> None:
    job = create({"family": "sdxl"}).job()
    assert job.recipe.plan.resolutions == ((1024, 1024),)
    assert (job.recipe.plan.network_dim, job.recipe.plan.batch_size) == (16, 1)
    assert job.label == "sdxl-lora-bf16-adamw"
    assert job.workload["buckets"] == ["1024x1024"]
    assert job.workload["text_cached"] is True
    assert job.workload["trains"] == ["unet"]


def test_settings_beside_the_family_are_the_trainers_own() -> None:
    job = family(train_batch_size=4, resolution=[768, 512], network_dim=32, gradient_checkpointing=True).job()
    assert job.recipe.plan.to_json() == {
        "batch_size": 4,
        "resolution": [[768, 512]],
        "gradient_checkpointing": True,
        "network_dim": 32,
    }
    assert family(resolution="640").job().recipe.plan.resolutions == ((640, 640),)


def test_a_setting_that_can_not_be_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="train_batch_size"):
        family(train_batch_size="many")
    with pytest.raises(ConfigError, match="network_dimm"):
        family(network_dimm=4)
    with pytest.raises(ConfigError, match="neither a config nor a family"):
        create({})


def test_the_full_size_model_takes_no_memory() -> None:
    workload = family()
    assert {p.device.type for module in workload._components.modules for p in module.parameters()} == {"meta"}


def test_a_device_that_computes_values_is_refused() -> None:
    workload = family()
    with pytest.raises(ConfigError, match="computes values"):
        workload.open(workload.job().recipe.plan, VirtualSession(GIB))


def test_only_the_null_gpu_has_no_values() -> None:
    assert [evidence for evidence in Evidence if not evidence.has_values] == [Evidence.FORECAST]


@pytest.mark.parametrize(
    ("recipe", "batch", "wanted"), [(1, 8, 8), (64, 1, 2), (3, 2, 3), (4, 4, 4), (64, 16, 32)]
)
def test_a_logical_batch_fills_the_plans_microbatch_and_repeats_it_once(
    recipe: int, batch: int, wanted: int
) -> None:
    config = family(train_batch_size=recipe)._config
    plan = Plan.of(batch_size=batch, resolution=((512, 512),), gradient_checkpointing=False, network_dim=4)
    assert _for_plan(config, plan).effective_batch == wanted


def test_a_users_config_makes_the_very_job_that_training_makes_of_it(tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "tiny", "sd1")
    photos = write_demo_dataset(tmp_path / "photos", "flat")
    config = user_config(
        tmp_path,
        pretrained_model_name_or_path=str(base),
        train_data_dir=str(photos),
        resolution=128,
        enable_bucket=True,
        min_bucket_reso=64,
    )
    assert create(config).job() == trainer.workload.create(config).job()


@pytest.mark.parametrize("name", ["sd1", "sdxl"])
def test_a_single_files_figures_come_from_its_shapes(tmp_path: Path, name: str) -> None:
    file = save_single_file(make_tiny(tmp_path / "tiny", name), tmp_path / "tiny.safetensors")
    config = user_config(tmp_path, pretrained_model_name_or_path=str(file), train_data_dir="nowhere")
    blank = create(config).job().workload
    assert blank["family"] == name
    assert blank["architecture"] == architecture_of(load_components(file, torch.float32))


def test_a_file_of_another_family_is_refused(tmp_path: Path) -> None:
    file = save_single_file(make_tiny(tmp_path / "tiny", "sd1"), tmp_path / "tiny.safetensors")
    config = user_config(tmp_path, pretrained_model_name_or_path=str(file), train_data_dir="nowhere")
    with pytest.raises(ModelError, match="no sdxl checkpoint"):
        create({**config, "family": "sdxl"})


def test_a_model_that_is_not_here_needs_its_family_told(tmp_path: Path) -> None:
    config = user_config(tmp_path, pretrained_model_name_or_path="models/mine", train_data_dir="nowhere")
    with pytest.raises(ModelError, match="not on this machine") as refused:
        create(config)
    assert "--family" in refused.value.way_out
    job = create({**config, "family": "sd1"}).job()
    assert job.workload["architecture"] == architecture_of(blank_components("sd1"))


def test_a_config_that_names_no_files_yet_is_forecast_for_the_family_told(tmp_path: Path) -> None:
    config = user_config(tmp_path, pretrained_model_name_or_path="", train_batch_size=3)
    with pytest.raises(ConfigError, match="pretrained_model_name_or_path and train_data_dir are not set"):
        create(config)
    job = create({**config, "family": "sd1"}).job()
    assert (job.recipe.plan.batch_size, job.recipe.plan.network_dim) == (3, 8)


def test_pictures_that_are_no_files_are_told_apart_by_name() -> None:
    cache = LatentCache(str)
    keys = {cache.key(Sample(0, Path(name), "", (64, 64), 0), (64, 64), False, "vae") for name in "aab"}
    assert len(keys) == 2


def test_a_blank_vae_is_known_by_its_shapes() -> None:
    one, same = blank_components("sd1"), blank_components("sd1")
    assert one.vae_identity == same.vae_identity != blank_components("sdxl").vae_identity


@pytest.mark.parametrize("key", ["train_batch_size", "vae_batch_size", "network_dim"])
def test_what_fits_no_card_is_refused_before_it_fills_the_hosts_memory(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = 100,000 is more than a forecast takes"):
        load_settings({"family": "sd1", key: 100_000})


def test_as_many_blank_pictures_are_encoded_as_the_vae_needs_whatever_the_batch() -> None:
    sizes = "512,512;768,768"
    few, many = (len(family(train_batch_size=batch)._dataset.samples) for batch in (1, 1000))
    assert few == many == 2
    samples = family(train_batch_size=2, vae_batch_size=3, resolution=sizes)._dataset.samples
    assert Counter(sample.size for sample in samples) == {(512, 512): 6, (768, 768): 6}
