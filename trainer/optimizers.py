"""Optimizer, parameter groups and learning-rate schedule of a run, built from its config."""

from typing import Any

from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainer.adapters.lora import Adapter, Part
from trainer.config.schema import TrainConfig


def build_optimizer(config: TrainConfig, adapter: Adapter) -> Optimizer:
    """The optimizer over the adapter's weights; denoiser and text encoders in groups of their own rates.

    AdamW is torch's default for the device; AdamW8bit is bitsandbytes' (it steps on a CPU too).
    """
    groups = parameter_groups(config, adapter)
    shared: dict[str, Any] = {
        # each group has its own rate; the polynomial schedule reads this one, and refuses a zero
        "lr": max(group["lr"] for group in groups),
        "betas": config.optimizer_betas,
        "eps": config.optimizer_eps,
        "weight_decay": config.optimizer_weight_decay,
    }
    if config.optimizer_type == "AdamW8bit":
        from bitsandbytes.optim import AdamW8bit

        optimizer: Optimizer = AdamW8bit(groups, **shared)
        return optimizer
    return AdamW(groups, **shared)


def parameter_groups(config: TrainConfig, adapter: Adapter) -> list[dict[str, Any]]:
    """One group per trained part with its learning rate (unet_lr, text_encoder_lr, else learning_rate)."""
    rates: dict[Part, float] = {"denoiser": config.unet_rate, "text_encoder": config.text_encoder_rate}
    groups = [{"params": adapter.parameters(part), "lr": rate} for part, rate in rates.items()]
    return [group for group in groups if group["params"]]


def build_schedule(config: TrainConfig, optimizer: Optimizer, total_steps: int) -> LRScheduler:
    """The schedule over `total_steps` optimizer steps; a warm-up below 1 is a share of them."""
    from diffusers.optimization import get_scheduler

    warmup = config.lr_warmup_steps
    schedule: LRScheduler = get_scheduler(
        config.lr_scheduler,
        optimizer,
        num_warmup_steps=round(warmup * total_steps) if warmup < 1 else int(warmup),
        num_training_steps=total_steps,
        num_cycles=config.lr_scheduler_num_cycles,
        power=config.lr_scheduler_power,
    )
    return schedule
