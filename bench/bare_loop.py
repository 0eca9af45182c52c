"""A hand-written LoRA training loop of the same operations as the trainer's step: what the trainer is held to.

Owns the loop and the two jobs, equal to the last bit, that the benchmark lets take turns. Everything that can
be known before a step (seeds, captions, latents) is prepared outside it. Must never call `trainer.step` or
`trainer.session` for the bare job: it would compare the trainer with itself.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from autotune.device.session import Evidence, Placed
from autotune.ladder.plan import Plan
from autotune.testing.photos import write_demo_dataset
from autotune.testing.tiny import make_tiny
from trainer.adapters.lora import Adapter, attach
from trainer.config.schema import TrainConfig
from trainer.data.samples import Dataset, Sample, load_dataset
from trainer.data.seeds import sample_seed
from trainer.families.load import Components, load_components
from trainer.session import Setup, TrainingSession

MICROBATCHES = 2
TOTAL_STEPS = 10_000
RANK = 8


class PlainDevice:
    """A device session that does nothing: the host, uncounted and uncapped."""

    name = "plain"
    evidence = Evidence.SIMULATED
    torch_device = torch.device("cpu")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Nothing to do."""
        yield

    @contextmanager
    def host(self) -> Iterator[None]:
        """Nothing to do."""
        yield

    def place(self, thing: Placed) -> Placed:
        """`thing` is where it should be."""
        return thing

    def evict(self, thing: Placed) -> Placed:
        """`thing` is where it should be."""
        return thing

    def limit(self, budget_bytes: int) -> None:
        """There is no cap."""

    def statistics(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def reset_peak(self) -> None:
        """Nothing is counted."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def synchronize(self) -> None:
        """The CPU has finished when a call returns."""


@dataclass(frozen=True)
class Job:
    """One recipe on the demo photographs: tiny SD 1.x, bf16 autocast, LoRA on U-Net and text encoder."""

    config: TrainConfig
    base: Path
    dataset: Dataset

    @property
    def batch(self) -> list[Sample]:
        """The logical batch of every step: the first samples, again from the first if there are too few."""
        samples = self.dataset.samples
        return [samples[number % len(samples)] for number in range(self.config.effective_batch)]

    def components(self) -> Components:
        """The base model, loaded anew."""
        return load_components(self.base, torch.bfloat16)


def make_job(folder: Path, batch_size: int, pixels: int) -> Job:
    """The job with `MICROBATCHES` microbatches of `batch_size` pictures of `pixels` squared, in `folder`."""
    base, photos = folder / "tiny", folder / "photos"
    if not base.exists():
        make_tiny(base)
        write_demo_dataset(photos, "flat")
    config = TrainConfig(
        pretrained_model_name_or_path=str(base),
        train_data_dir=str(photos),
        resolution=((pixels, pixels),),
        train_batch_size=batch_size,
        gradient_accumulation_steps=MICROBATCHES,
        mixed_precision="bf16",
        network_dim=RANK,
        network_alpha=RANK,
        learning_rate=1e-3,
        max_train_steps=TOTAL_STEPS,
    )
    return Job(config, base, load_dataset(config))


class TrainerJob:
    """The job run by the trainer's own session on a device that does nothing."""

    def __init__(self, job: Job) -> None:
        config = job.config
        plan = Plan.of(
            batch_size=config.train_batch_size,
            resolution=config.resolution,
            gradient_checkpointing=config.gradient_checkpointing,
            network_dim=config.network_dim,
        )
        buckets = {sample.index: config.resolution[0] for sample in job.dataset.samples}
        setup = Setup(config, job.components(), job.dataset, TOTAL_STEPS)
        self.session = TrainingSession(setup, plan, PlainDevice(), buckets)
        self._batch = job.batch
        self.session.cache_latents(self._batch, lambda done, total: None)
        self.session.load()

    def latents(self) -> list[Tensor]:
        """The latents (C, h, w) of the batch's samples, in its order."""
        return list(self.session.parts.latents.latents(self._batch, 0).unbind())

    def step(self, number: int) -> float:
        """Optimizer step `number`, from 0. Returns its loss."""
        return self.session.step(self._batch, number).loss


class BareJob:
    """The same job as anybody would write it out by hand."""

    def __init__(self, job: Job, latents: list[Tensor]) -> None:
        """`latents` are those of the batch's samples: encoding them is no part of a step."""
        self._config, self._batch, self._latents = job.config, job.batch, latents
        self._components = job.components()
        self._adapter: Adapter = attach(
            self._components, rank=RANK, alpha=RANK, denoiser=True, text_encoders=True, seed=job.config.seed
        )
        self._weights = self._adapter.parameters()
        groups = [{"params": self._adapter.parameters(part)} for part in ("denoiser", "text_encoder")]
        self._optimizer = torch.optim.AdamW(groups, lr=job.config.learning_rate, weight_decay=1e-2)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: 1.0)
        self._scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(self, number: int) -> float:
        """Optimizer step `number`, from 0. Returns its loss."""
        size, losses = self._config.train_batch_size, []
        for first in range(0, len(self._batch), size):
            loss = self._loss(number, range(first, min(first + size, len(self._batch))))
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        self._scaler.unscale_(self._optimizer)
        float(torch.nn.utils.clip_grad_norm_(self._weights, 1.0))
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        self._schedule.step()
        return float(torch.stack(losses).sum())

    def _loss(self, number: int, places: range) -> Tensor:
        parts, samples = self._components, [self._batch[place] for place in places]
        latents = torch.stack([self._latents[place] for place in places])
        noise = torch.stack([self._noise(number, sample, latents) for sample in samples])
        timesteps = torch.tensor([self._seed(number, sample, "timestep") % 1000 for sample in samples])
        noisy = parts.scheduler.add_noise(latents, noise, timesteps)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ids = parts.tokenizers[0](
                [sample.caption for sample in samples],
                padding="max_length",
                max_length=77,
                truncation=True,
                return_tensors="pt",
            ).input_ids
            hidden = parts.text_encoders[0](ids).last_hidden_state
            noisy, hidden = noisy.to(torch.bfloat16), hidden.to(torch.bfloat16)
            predicted = parts.denoiser(noisy, timesteps, hidden, return_dict=False)[0]
        errors = functional.mse_loss(predicted.float(), noise, reduction="none")
        return errors.mean(dim=(1, 2, 3)).sum() / len(self._batch)

    def _noise(self, number: int, sample: Sample, like: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed(number, sample, "noise"))
        return torch.randn(like.shape[1:], generator=generator)

    def _seed(self, number: int, sample: Sample, purpose: str) -> int:
        return sample_seed(self._config.seed, number, sample.index, purpose)


def check_equal(trainer_losses: list[float], bare_losses: list[float]) -> None:
    """Raise AssertionError unless both jobs had the same losses: else they did not do the same."""
    pairs = list(zip(trainer_losses, bare_losses, strict=True))
    assert all(math.isclose(one, other, rel_tol=1e-6) for one, other in pairs), f"not the same maths: {pairs}"
