"""A trial meets the worst of each phase, and what the base model says of itself is believed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.device.virtual import VirtualSession
from autotune.ladder.plan import Plan
from autotune.testing.photos import write_demo_dataset
from autotune.testing.tiny import make_tiny
from autotune.units import GIB
from trainer.config.schema import TrainConfig
from trainer.data.samples import Sample, load_dataset
from trainer.families.load import load_components
from trainer.precision import Precision
from trainer.session import Setup, TrainingSession
from trainer.step import batch_losses
from trainer.workload import MOST_SKIPS, LoraTrial, worst_encoding

SMALL, LARGE = (64, 64), (128, 64)


def setup_of(count: int, **settings: Any) -> Any:
    """A setup of `count` pictures, each twice."""
    config = TrainConfig(pretrained_model_name_or_path="base", train_data_dir="photos", **settings)
    pairs = [(picture, repeat) for picture in range(count) for repeat in range(2)]
    samples = [Sample(i, Path(f"{p}.png"), "", SMALL, r) for i, (p, r) in enumerate(pairs)]
    return SimpleNamespace(config=config, dataset=SimpleNamespace(samples=samples))


def encoded(setup: Any, large: set[str]) -> list[str]:
    buckets = {s.index: LARGE if s.path.stem in large else SMALL for s in setup.dataset.samples}
    return [sample.path.stem for sample in worst_encoding(setup, buckets)]


def test_a_trial_encodes_as_many_pictures_at_once_as_the_run_will() -> None:
    assert encoded(setup_of(6, vae_batch_size=4), large={"3", "4", "5"}) == ["3", "4", "5"]
    assert encoded(setup_of(6, vae_batch_size=2), large={"3", "4", "5"}) == ["3", "4"]


def test_a_full_batch_of_smaller_pictures_may_be_the_worst() -> None:
    assert encoded(setup_of(6, vae_batch_size=4), large={"5"}) == ["0", "1", "2", "3"]


def test_mirrored_pictures_fill_a_batch_too() -> None:
    assert encoded(setup_of(6, vae_batch_size=4, flip_aug=True), large={"5"}) == ["0", "1"]


def test_a_trial_under_fp16_goes_on_until_the_optimizer_has_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(device.type, init_scale=2.0**22)  # overflows in fp16 more than once

    monkeypatch.setattr(Precision, "scaler", scaler)
    base, photos = make_tiny(tmp_path / "tiny"), write_demo_dataset(tmp_path / "photos", "flat")
    plan = Plan.of(batch_size=1, resolution=((64, 64),), gradient_checkpointing=False, network_dim=4)
    config = TrainConfig(
        pretrained_model_name_or_path=str(base), train_data_dir=str(photos), mixed_precision="fp16",
        network_train_unet_only=True,
    )  # fmt: skip
    device, dataset = VirtualSession(GIB), load_dataset(config)
    setup = Setup(config, load_components(base, torch.float16), dataset, total_steps=1)
    with device.scope():
        trial = LoraTrial(setup, plan, device, dict.fromkeys(range(len(dataset.samples)), (64, 64)))
        trial.run_phase("cache_latents")
        trial.run_phase("load")
        trial.step()
        assert trial._skips_left < MOST_SKIPS
        assert trial._session.parts.optimizer.state
        trial.close()


def test_a_model_that_predicts_velocity_by_itself_is_weighted_and_named_so(tmp_path: Path) -> None:
    base, photos = make_tiny(tmp_path / "tiny"), write_demo_dataset(tmp_path / "photos", "flat")
    plan = Plan.of(batch_size=1, resolution=((64, 64),), gradient_checkpointing=False, network_dim=4)
    told, losses = [], []
    for flag in (True, False):  # the config says it, or the model's own files alone
        config = TrainConfig(
            pretrained_model_name_or_path=str(base), train_data_dir=str(photos), min_snr_gamma=1.0,
            network_train_unet_only=True, v_parameterization=flag,
        )  # fmt: skip
        components, device = load_components(base, torch.float32, v_prediction=True), VirtualSession(GIB)
        samples = load_dataset(config).samples
        setup = Setup(config, components, load_dataset(config), total_steps=1)
        with device.scope():
            session = TrainingSession(setup, plan, device, dict.fromkeys(range(len(samples)), (64, 64)))
            session.cache_latents(samples[:1], lambda done, total: None)
            session.load()
            losses.append(batch_losses(session.parts, samples[:1], 0).item())
            told.append(b'"modelspec.prediction_type":"v"' in session.lora_file("lora", 0, 0))
            session.close()
    assert told == [True, True]
    assert losses[0] == losses[1]
