"""What the integration tests share: real workloads on tiny models, and a worker without a process of its own.

Everything below the worker is the product's own: workload, trials, virtual GPU. Only the pipe is left out,
so that a test can walk a ladder dozens of times.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from autotune.device.session import DeviceSpec
from autotune.device.virtual import VirtualSession
from autotune.ladder.plan import Plan
from autotune.trial.protocol import STEPS_TO_FIT, Ready, TrialReport
from autotune.trial.trial import Bench, run_trial, settle
from autotune.trial.worker import device_facts, versions
from autotune.units import GIB
from trainer.config.loader import load_config
from trainer.config.schema import TrainConfig
from trainer.data.batches import LogicalBatch
from trainer.data.buckets import assign_buckets
from trainer.data.samples import Sample, load_dataset
from trainer.families.load import Components, load_components
from trainer.loop import total_steps
from trainer.precision import dtype_of
from trainer.session import Setup, TrainingSession
from trainer.step import StepResult
from trainer.workload import LoraWorkload, create

ROOMY_BYTES = 64 * GIB  # an account, not memory: nothing of it is ever allocated


class InProcessWorker:
    """`autotune.trial.client.Worker` as the search knows it (open, ready, trial, close), in this process."""

    def __init__(self, workload: LoraWorkload, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._workload = workload
        self._device = VirtualSession(budget_bytes)
        self.opened = 0

    @property
    def ready(self) -> Ready:
        spec = DeviceSpec("virtual", str(self.budget_bytes))
        return Ready(self._workload.job(), device_facts(self._device, spec), versions())

    def open(self) -> Ready:
        self.opened += 1
        return self.ready

    def trial(self, plan: Plan, steps: int, lift_budget: bool = False) -> TrialReport:
        device = VirtualSession(ROOMY_BYTES) if lift_budget else self._device
        budget_bytes = ROOMY_BYTES if lift_budget else self.budget_bytes
        bench = Bench(device, settle(device, 0).leftover_bytes, lambda event: None, budget_bytes)
        return run_trial(self._workload, plan, bench, steps)

    def close(self) -> None:
        """Nothing to end."""


def measure_peak(workload: LoraWorkload, plan: Plan) -> int:
    """The device bytes a real trial of `plan` takes when nothing limits it."""
    report = InProcessWorker(workload, ROOMY_BYTES).trial(plan, STEPS_TO_FIT)
    peak_bytes = report.outcome.peak_reserved_bytes
    assert report.outcome.fits, report.outcome.reason
    assert report.clean
    assert peak_bytes is not None
    return peak_bytes


@dataclass(frozen=True)
class Rig:
    """A base model and photographs on disk, from which configs, workloads and sessions are made."""

    folder: Path
    base: Path
    photos: Path

    def write_config(self, **settings: Any) -> Path:
        """A kohya-style TOML file with `settings` over a small recipe."""
        recipe = {
            "pretrained_model_name_or_path": str(self.base),
            "train_data_dir": str(self.photos),
            "output_dir": str(self.folder / "out"),
            "resolution": "64,64",
            "mixed_precision": "no",
            "network_dim": 4,
            "network_alpha": 4,
            "sample_at_end": False,
        }
        path = self.folder / "config.toml"
        lines = (f"{key} = {_toml(value)}" for key, value in {**recipe, **settings}.items())
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def workload(self, **settings: Any) -> LoraWorkload:
        """The workload the product makes of such a config."""
        return create({"configs": [str(self.write_config(**settings))]})

    def setup(self, components: Components | None = None, **settings: Any) -> Setup:
        """The warm part of a session; `components` are loaded afresh unless given."""
        config = load_config([self.write_config(**settings)]).config
        dataset = load_dataset(config)
        steps = total_steps(config, len(dataset.samples))
        return Setup(config, components or self.components(config.mixed_precision), dataset, steps)

    def components(self, precision: str = "no") -> Components:
        return load_components(self.base, dtype_of(precision))


def plan_of(config: TrainConfig, **changes: Any) -> Plan:
    """The plan as `config` has it, with `changes`."""
    written = {
        "batch_size": config.train_batch_size,
        "resolution": config.resolution,
        "gradient_checkpointing": config.gradient_checkpointing,
        "network_dim": config.network_dim,
    }
    return Plan.of(**{**written, **changes})


@dataclass(frozen=True)
class Bout:
    """An open training session with its caches filled and its models loaded."""

    session: TrainingSession
    device: VirtualSession
    samples: tuple[Sample, ...]

    def step(self, batch: Sequence[int] | LogicalBatch, step: int = 0) -> StepResult:
        """One training step on the samples of these indices."""
        return self.session.step([self.samples[index] for index in batch], step)

    def weights(self) -> dict[str, Tensor]:
        """The adapter's weights, copied to the host."""
        with self.device.host():
            return {name: weight.detach().clone() for name, weight in self.parameters().items()}

    def gradients(self) -> dict[str, Tensor]:
        """The gradients there are, copied to the host. SDXL's last text layers have none: it reads the last
        but one."""
        with self.device.host():
            return {n: weight.grad.clone() for n, weight in self.parameters().items() if weight.grad is not None}

    def parameters(self) -> dict[str, Tensor]:
        """The adapter's own weights by name."""
        return {
            f"{pair.name}.{part}": weight
            for pair in self.session.parts.adapter.pairs
            for part, weight in (("down", pair.down), ("up", pair.up))
        }


@contextmanager
def open_bout(setup: Setup, plan: Plan | None = None) -> Iterator[Bout]:
    """A session of `plan` (by default as written) on a roomy virtual GPU, ready to step; closed afterwards."""
    device = VirtualSession(ROOMY_BYTES)
    plan = plan or plan_of(setup.config)
    buckets = assign_buckets(setup.dataset, plan.resolutions, setup.config)
    with device.scope():
        session = TrainingSession(setup, plan, device, buckets)
        try:
            if session.parts.config.cache_latents:
                session.cache_latents(setup.dataset.samples, lambda done, total: None)
            if session.parts.text.cached:
                session.cache_text(setup.dataset.samples, lambda done, total: None)
            session.load()
            yield Bout(session, device, setup.dataset.samples)
        finally:
            session.close()


def snapshot(components: Components) -> dict[str, Tensor]:
    """Every parameter and buffer of the base model by name, copied."""
    return {
        f"{number}.{name}": tensor.detach().clone()
        for number, module in enumerate(components.modules)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }


def modes(components: Components) -> dict[str, tuple[bool, bool, bool]]:
    """Of every submodule: training, gradient checkpointing, and whether any weight wants a gradient."""
    return {
        f"{number}.{name}": (part.training, _checkpoints(part), any(p.requires_grad for p in part.parameters()))
        for number, module in enumerate(components.modules)
        for name, part in module.named_modules()
    }


def _checkpoints(module: nn.Module) -> bool:
    return bool(getattr(module, "gradient_checkpointing", False))


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else f'"{value}"'
