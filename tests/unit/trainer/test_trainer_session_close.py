"""Closing a session gives back all that it put on the device, the noise schedule included."""

from pathlib import Path

import torch

from autotune.device.virtual import VirtualSession
from autotune.ladder.plan import Plan
from autotune.testing.photos import write_demo_dataset
from autotune.testing.tiny import make_tiny
from autotune.units import GIB
from trainer.config.schema import TrainConfig
from trainer.data.samples import load_dataset
from trainer.families.load import load_components
from trainer.session import Setup, TrainingSession


def test_a_noise_schedule_that_moved_to_the_device_comes_back_at_close(tmp_path: Path) -> None:
    base, photos = make_tiny(tmp_path / "tiny"), write_demo_dataset(tmp_path / "photos", "flat")
    config = TrainConfig(pretrained_model_name_or_path=str(base), train_data_dir=str(photos))
    components, device = load_components(base, torch.float32), VirtualSession(GIB)
    setup = Setup(config, components, load_dataset(config), total_steps=1)
    plan = Plan.of(batch_size=1, resolution=((64, 64),), gradient_checkpointing=False, network_dim=4)
    before = components.scheduler.alphas_cumprod.clone()
    session = TrainingSession(setup, plan, device, {})
    # what diffusers does on a card when noise is added there
    components.scheduler.alphas_cumprod = device.place(components.scheduler.alphas_cumprod)
    session.load()
    assert device.statistics()["allocated_bytes.all.current"] > before.nbytes
    session.close()
    assert device.statistics()["allocated_bytes.all.current"] == 0
    assert torch.equal(components.scheduler.alphas_cumprod, before)
