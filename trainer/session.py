"""A training session: models, adapter and optimizer of one plan on one device, and the phases of a run.

Owns what is on the device when. Trials and the full run use this same class; neither decides here what fits.
`close` gives the warm base models back as they were.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import torch
from accelerate import Accelerator
from PIL.Image import Image
from torch import Tensor, nn

from autotune.device.session import DeviceSession
from autotune.files import write_atomically
from autotune.ladder.plan import Plan, Size
from autotune.ladder.receipts import scaled_alpha
from autotune.trial.record import tensors_in
from trainer.adapters.export import base_metadata, lora_file, lora_tensors
from trainer.adapters.lora import Adapter, Shelf, attach
from trainer.config.schema import TrainConfig
from trainer.data.cache import LatentCache
from trainer.data.images import load_pixels
from trainer.data.samples import Dataset, Sample
from trainer.families.components import Components, TextEncoder
from trainer.families.family import get_family
from trainer.families.sample import sample_image
from trainer.optimizers import build_optimizer, build_schedule
from trainer.precision import Precision, dtype_of
from trainer.sources import LatentSource, Progress, ReadPixels, TextSource
from trainer.step import StepParts, StepResult, training_step


@dataclass(frozen=True)
class Pictures:
    """Where pixels come from, and what tells pictures apart that are no files (of files the bytes do)."""

    read_pixels: ReadPixels = load_pixels
    identify: Callable[[Path], str] | None = None


FILES = Pictures()


@dataclass(frozen=True)
class Setup:
    """What stays warm between plans: the config of the recipe, the models on the host, the data."""

    config: TrainConfig
    components: Components
    dataset: Dataset
    total_steps: int
    pictures: Pictures = FILES
    shelf: Shelf | None = None  # adapters to use again, where values don't matter


class TrainingSession:
    """One plan of a job on one device. Use inside `device.scope()`; call `close` in any case."""

    def __init__(self, setup: Setup, plan: Plan, device: DeviceSession, buckets: dict[int, Size]) -> None:
        """Attach the adapter (on the host) for `plan`; `buckets` gives each sample its size in pixels."""
        self.setup = setup
        self.plan = plan
        self.device = device
        self.parts = _build_parts(_config_of(setup.config, plan), setup, plan, device, buckets)
        _switch_checkpointing(setup.components, plan.gradient_checkpointing)

    def cache_latents(self, samples: Sequence[Sample], progress: Progress) -> None:
        """Encode the samples' pictures once; only the VAE is on the device meanwhile."""
        self.parts.latents.fill(samples, progress)

    def cache_text(self, samples: Sequence[Sample], progress: Progress) -> None:
        """Encode the samples' captions once; only the text encoders are on the device meanwhile."""
        self.parts.text.fill(samples, progress)

    def load(self) -> None:
        """Place what training needs: the denoiser, and the encoders whose outputs are not cached."""
        for module in self._residents():
            self.device.place(module)

    def step(self, batch: Sequence[Sample], step: int) -> StepResult:
        """Train on one logical batch; `step` counts optimizer steps from 0."""
        return training_step(self.parts, batch, step, self.plan.batch_size)

    def save(self, path: Path, steps: int, epoch: int) -> None:
        """Write the LoRA of this moment to `path`. Raises DiskError, and FileExistsError if `path` exists."""
        write_atomically(path, self.lora_file(path.stem, steps, epoch), replace=False)

    def lora_values(self) -> dict[str, Tensor]:
        """The tensors of the LoRA file of this moment, on the host: all of saving that the device notices."""
        with self.device.host():
            return lora_tensors(self.parts.adapter, dtype_of(self.parts.config.save_precision))

    def lora_file(self, name: str, steps: int, epoch: int) -> bytes:
        """The content of the LoRA file of this moment."""
        config = self.parts.config
        tensors = self.lora_values()
        with self.device.host():
            components = self.parts.components
            metadata = base_metadata(self.parts.adapter, components.family, name, components.predicts_velocity)
            run = run_metadata(config, self.setup.dataset, steps, epoch)
            return lora_file(tensors, {**metadata, **run})

    def sample(self, path: Path, prompt: str, steps: int, progress: Progress) -> None:
        """Write one picture of the adapted model to `path`. Raises DiskError, and FileExistsError if `path`
        exists."""
        write_atomically(path, self.picture_file(prompt, steps, progress), replace=False)

    def picture_file(self, prompt: str, steps: int, progress: Progress) -> bytes:
        """One picture of the adapted model, as PNG. Training state and random state stay as they are."""
        width, height = self.plan.resolutions[0]
        with self.parts.precision.autocast(self.device.torch_device):
            picture = sample_image(
                self.parts.components,
                prompt,
                (width, height),
                steps,
                self.parts.config.seed,
                self.device,
                resident=self._residents(),
                clip_skip=self.parts.config.clip_skip,
                check=self.device.evidence.has_values,
                progress=progress,
            )
        return _png(picture)

    def tensors(self) -> Mapping[str, Iterable[Tensor]]:
        """What the session holds by kind, wherever it is now: `adapters`, `gradients`, `optimizer`."""
        parameters = self.parts.adapter.parameters()
        state = tensors_in(self.parts.optimizer.state)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return {"adapters": parameters, "gradients": gradients, "optimizer": state}

    def close(self) -> None:
        """Free the device and undo every change to the warm models. Never raises."""
        self.parts.optimizer.state.clear()
        self.parts.optimizer.zero_grad(set_to_none=True)
        components = self.parts.components
        for module in components.modules:
            with suppress(Exception):
                self.device.evict(module)
        with suppress(Exception):
            get_family(components.family).rule.bring_home(components.scheduler, self.device.evict)
        with suppress(Exception):
            self.parts.adapter.detach()
            if self.setup.shelf is not None:
                self.setup.shelf.keep(self.parts.adapter, *_adapter_key(self.parts.config))
        _switch_checkpointing(components, on=False)

    def _residents(self) -> list[nn.Module]:
        components = self.parts.components
        modules: list[nn.Module] = [components.denoiser]
        if not self.parts.text.cached:
            modules.extend(components.text_encoders)
        if not self.parts.config.cache_latents:
            modules.append(components.vae)
        return modules


def run_metadata(config: TrainConfig, dataset: Dataset, steps: int, epoch: int) -> dict[str, str]:
    """The ss_* fields that tell how a LoRA was made. Holds no path, only the base model's file name."""
    return {
        "ss_sd_model_name": Path(config.pretrained_model_name_or_path).name,
        "ss_resolution": "({}, {})".format(*config.resolution[0]),
        "ss_clip_skip": str(config.clip_skip),
        "ss_num_train_images": str(len(dataset.samples)),
        "ss_learning_rate": str(config.learning_rate),
        "ss_optimizer": config.optimizer_type,
        "ss_lr_scheduler": config.lr_scheduler,
        "ss_mixed_precision": config.mixed_precision,
        "ss_seed": str(config.seed),
        "ss_batch_size_per_device": str(config.train_batch_size),
        "ss_gradient_accumulation_steps": str(config.gradient_accumulation_steps),
        "ss_gradient_checkpointing": str(config.gradient_checkpointing),
        "ss_steps": str(steps),
        "ss_epoch": str(epoch),
        "ss_training_comment": str(config.training_comment),
        "ss_tag_frequency": json.dumps({Path(config.train_data_dir).name: _tag_counts(dataset)}),
    }


def _config_of(config: TrainConfig, plan: Plan) -> TrainConfig:
    return config.model_copy(
        update={
            "resolution": plan.resolutions,
            "train_batch_size": plan.batch_size,
            "gradient_accumulation_steps": -(-config.effective_batch // plan.batch_size),
            "gradient_checkpointing": plan.gradient_checkpointing,
            "network_dim": plan.network_dim,
            "network_alpha": scaled_alpha(config.network_dim, config.network_alpha, plan.network_dim),
        }
    )


def _build_parts(
    config: TrainConfig, setup: Setup, plan: Plan, device: DeviceSession, buckets: dict[int, Size]
) -> StepParts:
    adapter = setup.shelf.take(*_adapter_key(config)) if setup.shelf else None
    if adapter is None:
        with device.host():
            adapter = _new_adapter(config, setup.components)
    try:
        return _parts_around(adapter, config, setup, device, buckets)
    except BaseException:  # nobody will close a session that was never made
        adapter.detach()
        raise


def _new_adapter(config: TrainConfig, components: Components) -> Adapter:
    return attach(
        components,
        rank=config.network_dim,
        alpha=config.network_alpha,
        denoiser=config.trains_unet,
        text_encoders=config.trains_text_encoder,
        seed=config.seed,
    )


def _adapter_key(config: TrainConfig) -> tuple[object, ...]:
    return config.network_dim, config.network_alpha, config.trains_unet, config.trains_text_encoder


def _parts_around(
    adapter: Adapter, config: TrainConfig, setup: Setup, device: DeviceSession, buckets: dict[int, Size]
) -> StepParts:
    precision = Precision(config.mixed_precision)
    optimizer = build_optimizer(config, adapter)
    bucket_of, pictures = buckets.__getitem__, setup.pictures
    cache = LatentCache(pictures.identify)
    return StepParts(
        config=config,
        components=setup.components,
        adapter=adapter,
        device=device,
        precision=precision,
        latents=LatentSource(config, setup.components, device, bucket_of, cache, pictures.read_pixels),
        text=TextSource(config, setup.components, device, precision),
        bucket_of=bucket_of,
        optimizer=optimizer,
        schedule=build_schedule(config, optimizer, setup.total_steps),
        scaler=precision.scaler(device.torch_device),
        accelerator=Accelerator(cpu=device.torch_device.type == "cpu", mixed_precision="no"),
    )


def _switch_checkpointing(components: Components, on: bool) -> None:
    # Non-reentrant: the reentrant kind needs inputs with gradients and hides the base from LoRA's own.
    checkpoint = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    denoiser = components.denoiser
    denoiser.train(on)
    if on:
        denoiser.enable_gradient_checkpointing(checkpoint)
    else:
        denoiser.disable_gradient_checkpointing()
    for encoder in components.text_encoders:
        encoder.train(on)
        _switch_encoder_checkpointing(encoder, on)


def _switch_encoder_checkpointing(encoder: TextEncoder, on: bool) -> None:
    # transformers 5.24 renamed the switches, and the old names go with version 6.
    kind = "activation" if hasattr(encoder, "activation_checkpointing_enable") else "gradient"
    if on:
        enable = getattr(encoder, f"{kind}_checkpointing_enable")
        enable(**{f"{kind}_checkpointing_kwargs": {"use_reentrant": False}})
        # A hook that gives the embeddings gradients comes with it, which only the reentrant kind needs. It would
        # stay on the warm model for good, one more each time, and every later plan would need more memory.
        if hasattr(encoder, "_require_grads_hook"):
            encoder.disable_input_require_grads()
    else:
        getattr(encoder, f"{kind}_checkpointing_disable")()


def _tag_counts(dataset: Dataset) -> dict[str, int]:
    tags = (tag.strip() for sample in dataset.samples for tag in sample.caption.split(","))
    return dict(Counter(tag for tag in tags if tag))


def _png(picture: Image) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()
