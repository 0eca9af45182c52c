"""One training step over one logical batch: what trials measure and training runs, the same code.

A logical batch is split into microbatches of one shape each; every sample counts 1/n of the loss whatever
the split, and all its randomness comes from (seed, step, sample). Only optimizer, scaler and schedule change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from autotune.device.session import DeviceSession
from trainer.adapters.lora import Adapter
from trainer.config.schema import TrainConfig
from trainer.data.batches import microbatches
from trainer.data.images import crop_geometry
from trainer.data.samples import Sample
from trainer.families.components import Components
from trainer.families.denoise import predict_noise
from trainer.families.family import get_family
from trainer.loss import sample_losses
from trainer.precision import Precision
from trainer.sources import BucketOf, LatentSource, TextSource, noise_for, timesteps_for


@dataclass(frozen=True)
class StepParts:
    """Everything a step works with."""

    config: TrainConfig
    components: Components
    adapter: Adapter
    device: DeviceSession
    precision: Precision
    latents: LatentSource
    text: TextSource
    bucket_of: BucketOf
    optimizer: Optimizer
    schedule: LRScheduler
    scaler: torch.amp.GradScaler
    accelerator: Accelerator


@dataclass(frozen=True)
class StepResult:
    """What a step showed: mean loss over the logical batch, gradient norm before clipping, learning rate,
    and whether the fp16 scaler skipped the update (overflow)."""

    loss: float
    gradient_norm: float | None
    learning_rate: float
    skipped: bool


def training_step(parts: StepParts, batch: Sequence[Sample], step: int, batch_size: int) -> StepResult:
    """Train on the logical batch `batch` in microbatches of at most `batch_size`; `step` counts from 0."""
    by_index = {sample.index: sample for sample in batch}
    learning_rate = float(parts.schedule.get_last_lr()[0])
    losses = []
    for indices in microbatches([sample.index for sample in batch], parts.bucket_of, batch_size):
        total = batch_losses(parts, [by_index[index] for index in indices], step).sum() / len(batch)
        # Accelerator.backward divides by its own accumulation count, which therefore stays 1.
        parts.accelerator.backward(parts.scaler.scale(total))
        losses.append(total.detach())
        del total
    norm, skipped = _update(parts)
    return StepResult(float(torch.stack(losses).sum()), norm, learning_rate, skipped)


def batch_losses(parts: StepParts, samples: Sequence[Sample], step: int) -> Tensor:
    """The losses (B,) of one microbatch, whose samples share a bucket."""
    config, device = parts.config, parts.device
    rule, scheduler = get_family(parts.components.family).rule, parts.components.scheduler
    latents = parts.latents.latents(samples, step)
    with device.host():
        noise_host = noise_for(config, samples, step, latents)
        timesteps = timesteps_for(config, samples, step, scheduler.config.num_train_timesteps)
        levels_host = rule.levels(scheduler, timesteps)
        size_ids_host = _size_ids(parts, samples, step)
    noise, levels = device.place(noise_host), device.place(levels_host)
    size_ids = None if size_ids_host is None else device.place(size_ids_host)
    conditioning = parts.text.conditioning(samples, step)
    latents = latents.float()
    noisy = rule.add_noise(scheduler, latents, noise, levels)
    with parts.precision.autocast(device.torch_device):
        prediction = predict_noise(parts.components, noisy, levels, conditioning, size_ids)
    losses = sample_losses(prediction, rule.target(scheduler, latents, noise, levels))
    if config.min_snr_gamma:
        weights = rule.min_snr_weights(scheduler, levels, config.min_snr_gamma)
        losses = losses if weights is None else losses * weights
    return losses


def _update(parts: StepParts) -> tuple[float | None, bool]:
    parameters = parts.adapter.parameters()
    parts.scaler.unscale_(parts.optimizer)
    norm = None
    if parts.config.max_grad_norm > 0:
        norm = float(parts.accelerator.clip_grad_norm_(parameters, parts.config.max_grad_norm))
    scale_before = parts.scaler.get_scale()
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()
    parts.optimizer.zero_grad(set_to_none=True)
    skipped = parts.scaler.get_scale() < scale_before
    if not skipped:  # kohya and accelerate count a skipped step's schedule out too
        parts.schedule.step()
    return (norm if norm is not None and math.isfinite(norm) else None), skipped


def _size_ids(parts: StepParts, samples: Sequence[Sample], step: int) -> Tensor | None:
    family = get_family(parts.components.family)
    geometries = [
        crop_geometry(sample.size, parts.bucket_of(sample.index), parts.latents.flip(sample, step))
        for sample in samples
    ]
    rows = [family.size_ids(g.original_size, g.crop_top_left, g.target_size) for g in geometries]
    told = [row for row in rows if row is not None]
    return torch.cat(told) if told else None
