"""The trainer as a Workload without weights, pictures or files: what `plan` tries on the null GPU.

Owns the stand-ins: a blank base model at full architecture size and pictures of zeros. Everything else is the
trainer's own session and step. It must never train, write anything, or serve a device that computes values.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from autotune.device.session import DeviceSession
from autotune.errors import ConfigError, ModelError
from autotune.ladder.plan import Plan
from autotune.trial.workload import Job
from trainer.adapters.lora import Shelf
from trainer.blank_settings import load_settings
from trainer.config.schema import Size, TrainConfig
from trainer.data.samples import Dataset, Sample, load_dataset
from trainer.families.blank import blank_components
from trainer.families.components import Components
from trainer.families.family import get_family
from trainer.families.figures import configs_of_base, family_of_base
from trainer.precision import dtype_of
from trainer.session import Pictures
from trainer.workload import LoraTrial, LoraWorkload

# A second microbatch meets the first one's gradients, and every later one the same memory again.
MOST_MICROBATCHES = 2


def create(config: Mapping[str, Any]) -> "BlankWorkload":
    """The factory. `config` holds `configs` (paths) and `set` (key=value), as `trainer.workload:create`'s, or
    `family` and any trainer settings beside it (`DEFAULTS` for the rest, the family's own side in pixels).

    With both, `family` and `variant` say what the base model is when its files are not here. Raises ConfigError
    for a setting that can't be, ModelError when nothing tells the family.
    """
    family, variant = config.get("family"), config.get("variant")
    loaded = load_settings(config, get_family(str(family)).native_side if family else 0)
    components = _blank_base(loaded.config, family, variant)
    dataset = _dataset(loaded.config)
    notes = loaded.notes if config.get("configs") else ()
    return BlankWorkload(loaded.config, components, dataset, (*notes, *dataset.notes))


class BlankWorkload:
    """LoRA training of one config with a blank base model, built once and used by every plan."""

    def __init__(
        self, config: TrainConfig, components: Components, dataset: Dataset, notes: Sequence[str]
    ) -> None:
        """`components` are on `meta`; `notes` are shown before anything runs."""
        self._config = config
        self._components = components
        self._dataset = dataset
        self._notes = tuple(notes)
        self._shelf = Shelf()

    def job(self) -> Job:
        """The job of this config, as the trainer describes it."""
        return self._workload(self._config).job()

    def open(self, plan: Plan, device: DeviceSession) -> LoraTrial:
        """The trainer's own trial of `plan`, of any batch size: the recipe's logical batch, made larger where the
        plan's microbatch is, and shorter where its microbatches would only repeat. Raises ConfigError on a
        device that computes values."""
        if device.evidence.has_values:
            raise ConfigError(
                f"{device.name} computes values, and a forecast's model has none.", "Use --device null:NAME."
            )
        return self._workload(_for_plan(self._config, plan)).open(plan, device)

    def _workload(self, config: TrainConfig) -> LoraWorkload:
        return LoraWorkload(config, self._components, self._dataset, self._notes, _BLANK_PICTURES, self._shelf)


def _blank_base(config: TrainConfig, family: str | None, variant: str | None) -> Components:
    base = Path(config.pretrained_model_name_or_path)
    if not family and not base.exists():
        raise ModelError(
            f"base model {base} is not on this machine, so its family is not known.",
            "Say --family, for example --family sdxl.",
        )
    family = family or family_of_base(base)
    return blank_components(
        family,
        variant,
        dtype_of(config.mixed_precision),
        configs_of_base(base, family) if base.exists() else None,
        vae_dtype=torch.float32 if config.no_half_vae else None,
    )


def _dataset(config: TrainConfig) -> Dataset:
    """The user's samples where they are here (their buckets count), else pictures at each resolution that fill two
    of the VAE's batches, since the second meets what the first left; a training batch repeats them."""
    if Path(config.train_data_dir).expanduser().is_dir():
        return load_dataset(config)
    count = 2 * max(1, config.vae_batch_size) * len(config.resolution)
    sizes = config.resolution
    samples = (
        Sample(number, Path(f"blank-{number}.png"), "a photograph", sizes[number % len(sizes)], 0)
        for number in range(count)
    )
    return Dataset(tuple(samples), ())


def _for_plan(config: TrainConfig, plan: Plan) -> TrainConfig:
    most = MOST_MICROBATCHES * plan.batch_size
    wanted = min(max(config.effective_batch, plan.batch_size), most)
    return config.model_copy(update={"train_batch_size": wanted, "gradient_accumulation_steps": 1})


def _blank_pixels(sample: Sample, bucket: Size, flip: bool) -> torch.Tensor:
    return torch.zeros(3, bucket[1], bucket[0])


_BLANK_PICTURES = Pictures(_blank_pixels, str)
