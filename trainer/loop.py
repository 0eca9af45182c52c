"""The full run, from the first cached latent to the last picture. Owns the order of things in a run.

Saving always precedes sampling, and a sampling failure never costs a trained step.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autotune.device.session import DeviceSession
from autotune.errors import DiskError, TrainingError
from autotune.ladder.plan import Plan, Size
from autotune.trial.workload import Report
from trainer.adapters.lora import largest_change
from trainer.config.schema import TrainConfig
from trainer.data.batches import LogicalBatch, batches_per_epoch, logical_batches
from trainer.data.samples import Sample
from trainer.naming import SAMPLES, RunName
from trainer.session import Setup, TrainingSession


@dataclass(frozen=True)
class Position:
    """Where a run stands: optimizer steps done before this one, and the epoch (from 1) it is in."""

    step: int
    epoch: int
    ends_epoch: bool


def train(
    setup: Setup, plan: Plan, device: DeviceSession, buckets: "Buckets", report: Report
) -> Mapping[str, Any]:
    """Run `plan` to the end and return the summary (files, steps, modules, largest_change, last_loss)."""
    config, samples = setup.config, setup.dataset.samples
    name = RunName(Path(config.output_dir), config.output_name, report)
    by_index = {sample.index: sample for sample in samples}
    files: list[str] = []
    device.reset_peak()  # trials in this process may have reached higher
    with device.scope():
        session = TrainingSession(setup, plan, device, buckets.of_plan)
        try:
            _fill_caches(session, samples, report)
            session.load()
            loss, watch = math.nan, LossWatch(config)
            for position, batch in schedule_of(config, samples, buckets.of_recipe, setup.total_steps):
                result = session.step([by_index[index] for index in batch], position.step)
                loss = watch.checked(result.loss, position.step)
                report(_step_event(position, setup.total_steps, result.__dict__))
                files += _interim_outputs(session, position, name, setup, report)
            files += _final_outputs(session, name, setup, report)
            return {
                "files": files,
                "steps": setup.total_steps,
                "modules": len(session.parts.adapter.pairs),
                "largest_change": largest_change(session.parts.adapter),
                "last_loss": loss,
                "statistics": device.statistics(),
            }
        finally:
            session.close()


@dataclass(frozen=True)
class Buckets:
    """Each sample's size in pixels, at the recipe's resolution (fixes the batches) and at the plan's."""

    of_recipe: dict[int, Size]
    of_plan: dict[int, Size]


def total_steps(config: TrainConfig, sample_count: int) -> int:
    """Optimizer steps of a run: epochs win over max_train_steps, as in kohya."""
    if config.max_train_epochs:
        return config.max_train_epochs * batches_per_epoch(sample_count, config.effective_batch)
    return config.max_train_steps


def schedule_of(
    config: TrainConfig, samples: tuple[Sample, ...], buckets: dict[int, Size], steps: int
) -> Iterator[tuple[Position, LogicalBatch]]:
    """Every logical batch of the run in order, until `steps` are reached."""
    sizes = [buckets[sample.index] for sample in samples]
    step, epoch = 0, 0
    while step < steps:
        epoch += 1
        batches = logical_batches(samples, sizes, config.effective_batch, config.seed, epoch)
        for number, batch in enumerate(batches, 1):
            if step == steps:
                return
            yield Position(step, epoch, number == len(batches)), batch
            step += 1


class LossWatch:
    """Ends a run whose loss is not a number: at once, or under fp16, where one picture may overflow and the
    scaler then skips the step, when it stays so for `PATIENCE` steps in a row."""

    PATIENCE = 10

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._in_a_row = 0

    def checked(self, loss: float, step: int) -> float:
        """`loss` of optimizer step `step` (from 0). Raises TrainingError."""
        config = self._config
        self._in_a_row = 0 if math.isfinite(loss) else self._in_a_row + 1
        patience = self.PATIENCE if config.mixed_precision == "fp16" else 1
        if self._in_a_row < patience:
            return loss
        at = f"at step {step + 1}" if patience == 1 else f"at {patience} steps in a row, up to step {step + 1}"
        raise TrainingError(
            f"the loss is {loss} {at} (learning_rate {config.learning_rate}, "
            f"mixed_precision {config.mixed_precision}).",
            "Lower learning_rate, and check the base model and VAE for NaN weights.",
        )


def _fill_caches(session: TrainingSession, samples: tuple[Sample, ...], report: Report) -> None:
    if session.parts.config.cache_latents:
        session.cache_latents(samples, lambda d, t: report(_phase("cache_latents", d, t)))
    if session.parts.text.cached:
        session.cache_text(samples, lambda d, t: report(_phase("cache_text", d, t)))


def _interim_outputs(
    session: TrainingSession, position: Position, name: RunName, setup: Setup, report: Report
) -> list[str]:
    config, done = setup.config, position.step + 1
    if done == setup.total_steps:
        return []
    saves = _due(position, config.save_every_n_epochs, config.save_every_n_steps)
    samples = _due(position, config.sample_every_n_epochs, config.sample_every_n_steps)
    files = [_save(session, name, suffix, done, position.epoch, report) for suffix in saves]
    return files + (_sample(session, name, samples[0], report) if samples else [])


def _final_outputs(session: TrainingSession, name: RunName, setup: Setup, report: Report) -> list[str]:
    config = setup.config
    epochs = config.max_train_epochs or 0
    files = [_save(session, name, "", setup.total_steps, epochs, report)]
    return files + (_sample(session, name, "", report) if config.sample_at_end else [])


def _due(position: Position, epochs: int | None, steps: int | None) -> list[str]:
    """The endings, by kohya's names, of what is due after this step: one for the epoch, one for the step."""
    done = position.step + 1
    by_epoch = epochs is not None and position.ends_epoch and position.epoch % epochs == 0
    by_step = steps is not None and done % steps == 0
    return [f"-{position.epoch:06d}"] * by_epoch + [f"-step{done:08d}"] * by_step


def _save(session: TrainingSession, name: RunName, suffix: str, steps: int, epoch: int, report: Report) -> str:
    def write(path: Path) -> None:
        session.save(path, steps, epoch)

    try:
        path = name.write(Path(session.parts.config.output_dir), f"{suffix}.safetensors", write)
    except DiskError as error:
        raise _rescued(error, write, name.stem + suffix, steps) from None
    report({"event": "file", "kind": "lora", "path": str(path)})
    return str(path)


def _rescued(error: DiskError, write: Callable[[Path], None], stem: str, steps: int) -> DiskError:
    """What was trained goes to the folder for temporary files rather than nowhere, and the error says so."""
    folder = Path(tempfile.gettempdir())
    try:
        refuge = RunName(folder, stem, lambda event: None).write(folder, ".safetensors", write)
    except DiskError:
        return error
    return DiskError(f"{error.fact} The LoRA of step {steps} is in {refuge} instead.", error.way_out)


def _sample(session: TrainingSession, name: RunName, suffix: str, report: Report) -> list[str]:
    config = session.parts.config
    prompts = config.sample_prompts or (session.setup.dataset.samples[0].caption,)
    files = []
    for number, prompt in enumerate(prompts):
        ending = f"{suffix}_{number:02d}.png"

        def write(path: Path, prompt: str = prompt) -> None:
            session.sample(path, prompt, config.sample_steps, lambda d, t: report(_phase("sample", d, t)))

        try:
            path = name.write(Path(config.output_dir) / SAMPLES, ending, write)
        except torch.OutOfMemoryError as error:
            picture = f"{name.stem}{ending}"
            report(_note(f"picture {picture} skipped, training is not touched: {str(error).splitlines()[0]}"))
            continue
        report({"event": "file", "kind": "picture", "path": str(path)})
        files.append(str(path))
    return files


def _step_event(position: Position, steps: int, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"event": "step", "step": position.step + 1, "steps": steps, "epoch": position.epoch, **result}


def _phase(name: str, done: int, total: int) -> dict[str, Any]:
    return {"event": "phase", "name": name, "done": done, "total": total}


def _note(text: str) -> dict[str, Any]:
    return {"event": "note", "text": text}
