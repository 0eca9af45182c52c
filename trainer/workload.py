"""The trainer as a Workload: what `autotune` probes and trains. Lives in worker processes only.

Owns the translation between a config and a Job. A trial runs the trainer's own session on the worst bucket;
nothing of it reaches a disk.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from autotune.device.session import DeviceSession
from autotune.ladder.plan import Plan, Recipe, Size
from autotune.trial.workload import Job, Report
from trainer.adapters.lora import Shelf
from trainer.config.loader import load_config
from trainer.config.schema import TrainConfig
from trainer.data.buckets import assign_buckets, worst_bucket
from trainer.data.checks import check_images
from trainer.data.samples import Dataset, Sample, load_dataset
from trainer.families.components import Components
from trainer.families.family import check_sizes, get_family, trainable_config
from trainer.families.load import load_components
from trainer.loop import Buckets, total_steps, train
from trainer.precision import dtype_of
from trainer.session import FILES, Pictures, Setup, TrainingSession

MOST_SKIPS = 16  # the scaler begins at 2**16 and halves
TRIAL_SAMPLING_STEPS = 2  # the peak of sampling does not depend on how many


def create(config: Mapping[str, Any]) -> "LoraWorkload":
    """The factory. `config` holds `configs` (paths, in order) and `set` (key=value overrides)."""
    loaded = load_config([Path(path) for path in config["configs"]], list(config.get("set", [])))
    dataset = load_dataset(loaded.config)
    image_notes = check_images(dataset.paths)
    notes = (*loaded.notes, *dataset.notes, *image_notes)
    return LoraWorkload(loaded.config, _load_base(loaded.config), dataset, notes)


class LoraWorkload:
    """LoRA training of one config on one dataset."""

    def __init__(
        self,
        config: TrainConfig,
        components: Components,
        dataset: Dataset,
        notes: Sequence[str],
        pictures: Pictures = FILES,
        shelf: Shelf | None = None,
    ) -> None:
        """`components` are the base model, on the host or blank; `notes` are shown before anything runs. With a
        `shelf` adapters are used again with the weights they have."""
        family = get_family(components.family)
        self._config = trainable_config(family, config)
        self._components = components
        self._dataset = dataset
        self._pictures = pictures
        self._shelf = shelf
        self._notes = (*notes, *family.notes(config))

    def job(self) -> Job:
        """The job of this config: its label, what is matched, the recipe."""
        config, family = self._config, self._components.family
        label = f"{family}-lora-{config.mixed_precision}-{config.optimizer_type.lower()}"
        return Job(label, self._description(), self._recipe(), self._notes, config.network_alpha)

    def open(self, plan: Plan, device: DeviceSession) -> "LoraTrial":
        """A trial session of `plan` in its worst bucket."""
        return LoraTrial(self._setup(), plan, device, self._buckets(plan.resolutions))

    def train(self, plan: Plan, device: DeviceSession, report: Report) -> Mapping[str, Any]:
        """The full run of `plan`."""
        buckets = Buckets(self._buckets(self._config.resolution), self._buckets(plan.resolutions))
        return train(self._setup(), plan, device, buckets, report)

    def _setup(self) -> Setup:
        steps = total_steps(self._config, len(self._dataset.samples))
        return Setup(self._config, self._components, self._dataset, steps, self._pictures, self._shelf)

    def _buckets(self, resolutions: tuple[Size, ...]) -> dict[int, Size]:
        buckets = assign_buckets(self._dataset, resolutions, self._config)
        check_sizes(get_family(self._components.family), buckets.values())
        return buckets

    def _recipe(self) -> Recipe:
        config = self._config
        plan = Plan.of(
            batch_size=config.train_batch_size,
            resolution=config.resolution,
            gradient_checkpointing=config.gradient_checkpointing,
            network_dim=config.network_dim,
        )
        smallest = min(min(size) for size in config.resolution)
        floor = min(get_family(self._components.family).resolution_floor, smallest)
        return Recipe(plan, config.effective_batch, 1, {"batch_size": 1, "resolution": floor, "network_dim": 4})

    def _description(self) -> dict[str, Any]:
        config = self._config
        return {
            "family": self._components.family,
            "architecture": architecture_of(self._components),
            "adapter": "lora",
            "trains": [
                part
                for part, on in (("unet", config.trains_unet), ("text_encoders", config.trains_text_encoder))
                if on
            ],
            "buckets": sorted({f"{w}x{h}" for w, h in self._buckets(config.resolution).values()}),
            "precision": config.mixed_precision,
            "optimizer": config.optimizer_type,
            "attention": "sdpa",
            "latents_cached": config.cache_latents,
            "text_cached": config.caches_text,
            "vae_batch_size": config.vae_batch_size,
            "sampling": _samples(config),
        }


class LoraTrial:
    """A short real run: caching, loading, steps on the worst logical batch, saving, sampling."""

    def __init__(self, setup: Setup, plan: Plan, device: DeviceSession, buckets: Mapping[int, Size]) -> None:
        """Attach the adapter; nothing is on the device yet."""
        self._setup = setup
        self._batch = worst_batch(setup, buckets)
        self._to_encode = [*worst_encoding(setup, buckets), *self._batch]
        self._session = TrainingSession(setup, plan, device, dict(buckets))
        self._step = 0
        self._skips_left = MOST_SKIPS
        config = self._session.parts.config
        cached = (("cache_latents", config.cache_latents), ("cache_text", self._session.parts.text.cached))
        self.phases_before = (*(name for name, on in cached if on), "load")
        self.phases_after = ("save", "sample") if _samples(config) else ("save",)

    def run_phase(self, name: str) -> None:
        """Run one phase on the worst-case input."""
        if name == "load":
            self._session.load()
        elif name == "cache_latents":
            self._session.cache_latents(self._to_encode, _ignore)
        elif name == "cache_text":
            self._session.cache_text(self._batch, _ignore)
        elif name == "save":
            self._session.lora_values()
        else:
            self._session.picture_file(self._batch[0].caption, TRIAL_SAMPLING_STEPS, _ignore)

    def step(self) -> None:
        """One optimizer step on the worst logical batch. Under fp16 the scaler skips steps until its scale is
        right, and only the first update makes the optimizer's state: so until there is one, again."""
        while self._session.step(self._batch, self._step).skipped and self._skips_left:
            self._skips_left -= 1
            self._step += 1
        self._step += 1

    def tensors(self) -> Mapping[str, Iterable[torch.Tensor]]:
        """See TrainingSession."""
        return self._session.tensors()

    def close(self) -> None:
        """Free the device; the base models stay warm on the host."""
        self._session.close()


def worst_batch(setup: Setup, buckets: Mapping[int, Size]) -> list[Sample]:
    """A logical batch of the recipe's size in the largest bucket; its samples repeat if there are too few."""
    largest = worst_bucket(buckets.values())
    candidates = [s for s in setup.dataset.samples if buckets.get(s.index) == largest]
    wanted = setup.config.effective_batch
    # a repeated sample keeps its index, hence its noise: memory does not depend on values
    return [candidates[number % len(candidates)] for number in range(wanted)]


def worst_encoding(setup: Setup, buckets: Mapping[int, Size]) -> list[Sample]:
    """Pictures that fill the largest batch which the VAE gets when the whole dataset is cached."""
    batch = max(1, setup.config.vae_batch_size)
    views = 2 if setup.config.flip_aug else 1  # each picture is encoded as it is and mirrored
    pictures: defaultdict[Size, dict[Path, Sample]] = defaultdict(dict)
    for sample in setup.dataset.samples:
        pictures[buckets[sample.index]].setdefault(sample.path, sample)

    def pixels(bucket: Size) -> int:
        return bucket[0] * bucket[1] * min(batch, views * len(pictures[bucket]))

    return list(pictures[max(pictures, key=pixels)].values())[: -(-batch // views)]


def architecture_of(components: Components) -> str:
    """A short digest of the models' shapes, equal for all checkpoints of one architecture."""
    shapes = [tuple(p.shape) for module in components.modules for p in module.parameters()]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]


def _load_base(config: TrainConfig) -> Components:
    return load_components(
        Path(config.pretrained_model_name_or_path),
        dtype_of(config.mixed_precision),
        vae_path=Path(config.vae) if config.vae else None,
        vae_dtype=torch.float32 if config.no_half_vae else None,
        v_prediction=config.v_parameterization or None,
    )


def _samples(config: TrainConfig) -> bool:
    return bool(config.sample_at_end or config.sample_every_n_epochs or config.sample_every_n_steps)


def _ignore(done: int, total: int) -> None:
    """Progress of a trial's phases is not shown."""
