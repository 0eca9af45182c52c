"""Parameter groups with rates of their own, and schedules whose warm-up is steps or a share of them."""

from typing import Any

import pytest
import torch
from bitsandbytes.optim import AdamW8bit
from torch import nn

from trainer.adapters.layout import KOHYA
from trainer.adapters.lora import Adapter, LoraPair, Part
from trainer.config.schema import TrainConfig
from trainer.optimizers import build_optimizer, build_schedule, parameter_groups


def config_with(**settings: Any) -> TrainConfig:
    return TrainConfig(pretrained_model_name_or_path="base", train_data_dir="photos", **settings)


def adapter_of(*parts: Part) -> Adapter:
    pairs = (
        LoraPair(f"{part}_{number}", part, nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3, 2)))
        for number, part in enumerate(parts)
    )
    return Adapter(tuple(pairs), 2, 1.0, (), KOHYA)


BOTH: tuple[Part, ...] = ("denoiser", "denoiser", "text_encoder", "text_encoder")


def test_unet_and_text_encoders_have_groups_and_rates_of_their_own() -> None:
    adapter = adapter_of(*BOTH)
    groups = parameter_groups(config_with(learning_rate=1e-4, unet_lr=2e-4, text_encoder_lr=5e-5), adapter)
    assert [(len(group["params"]), group["lr"]) for group in groups] == [(4, 2e-4), (4, 5e-5)]
    assert [id(p) for group in groups for p in group["params"]] == [id(p) for p in adapter.parameters()]


def test_a_rate_that_is_not_set_is_the_general_one_and_zero_stays_zero() -> None:
    groups = parameter_groups(config_with(learning_rate=1e-4, text_encoder_lr=0.0), adapter_of(*BOTH))
    assert [group["lr"] for group in groups] == [1e-4, 0.0]


def test_a_part_whose_only_rate_is_a_zero_one_does_not_train() -> None:
    config = config_with(learning_rate=0.0, unet_lr=1e-4)
    assert (config.trains_unet, config.trains_text_encoder) == (True, False)


def test_a_polynomial_schedule_takes_a_general_rate_of_zero() -> None:
    config = config_with(learning_rate=0.0, unet_lr=1e-4, lr_scheduler="polynomial")
    assert rates(config, 2)[0] == 1e-4


def test_a_part_that_does_not_train_has_no_group() -> None:
    groups = parameter_groups(config_with(), adapter_of("denoiser"))
    assert [len(group["params"]) for group in groups] == [2]


def test_the_optimizer_takes_every_setting() -> None:
    settings = {"optimizer_betas": (0.8, 0.95), "optimizer_eps": 1e-6, "optimizer_weight_decay": 0.1}
    for kind, expected in (("AdamW", torch.optim.AdamW), ("AdamW8bit", AdamW8bit)):
        optimizer = build_optimizer(config_with(optimizer_type=kind, **settings), adapter_of(*BOTH))
        assert type(optimizer) is expected
        group = optimizer.param_groups[0]
        assert (tuple(group["betas"]), group["eps"], group["weight_decay"]) == ((0.8, 0.95), 1e-6, 0.1)


def rates(config: TrainConfig, steps: int) -> list[float]:
    """The learning rate of each optimizer step."""
    optimizer = build_optimizer(config, adapter_of("denoiser"))
    schedule = build_schedule(config, optimizer, steps)
    seen = []
    for _ in range(steps):
        seen.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.parametrize("warmup", [4, 0.4])
def test_a_warm_up_of_four_steps_is_also_four_tenths_of_ten(warmup: float) -> None:
    config = config_with(learning_rate=1.0, lr_scheduler="constant_with_warmup", lr_warmup_steps=warmup)
    assert rates(config, 10) == pytest.approx([0.0, 0.25, 0.5, 0.75] + [1.0] * 6)


def test_one_is_one_step_and_not_the_whole_run() -> None:
    config = config_with(learning_rate=1.0, lr_scheduler="constant_with_warmup", lr_warmup_steps=1)
    assert rates(config, 4) == pytest.approx([0.0, 1.0, 1.0, 1.0])


def test_cosine_falls_to_zero_over_the_whole_run() -> None:
    falling = rates(config_with(learning_rate=1.0, lr_scheduler="cosine"), 8)
    assert falling[0] == 1.0
    assert falling[4] == pytest.approx(0.5)
    assert falling == sorted(falling, reverse=True)
    assert 0 < falling[-1] < 0.05


def test_restarts_and_power_are_the_configs() -> None:
    restarts = config_with(learning_rate=1.0, lr_scheduler="cosine_with_restarts", lr_scheduler_num_cycles=2)
    assert rates(restarts, 8)[4] == pytest.approx(1.0)
    polynomial = config_with(learning_rate=1.0, lr_scheduler="polynomial", lr_scheduler_power=2.0)
    assert rates(polynomial, 8)[4] == pytest.approx(0.25, abs=1e-3)
