"""The Workload protocol: all that autotune knows of a training job.

Owns the contract and the loading of a factory by its `module:name`. Must never import a trainer by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast, runtime_checkable

from autotune.device.session import DeviceSession
from autotune.errors import ConfigError
from autotune.ladder.plan import Plan, Recipe

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """What a workload is and what the user asked of it.

    `workload` describes the work for matching: family, architecture, adapter, buckets, precision, optimizer,
    attention, phases; JSON values only, and nothing that names a machine, path, dataset or prompt.
    `label` is a short file-name-safe summary such as `sd15-lora-bf16-adamw`. `notes` are named warnings
    (keys not used and the like) to show before anything runs. `network_alpha` is the recipe's, for receipts:
    it follows the rank, and no profile is matched by it.
    """

    label: str
    workload: Mapping[str, Any]
    recipe: Recipe
    notes: Sequence[str] = field(default_factory=tuple)
    network_alpha: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON form that crosses the worker's pipe."""
        return {
            "label": self.label,
            "workload": dict(self.workload),
            "plan": self.recipe.plan.to_json(),
            "effective_batch": self.recipe.effective_batch,
            "processes": self.recipe.processes,
            "floors": dict(self.recipe.floors),
            "notes": list(self.notes),
            "network_alpha": self.network_alpha,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Job":
        """The job whose JSON form is `values`."""
        recipe = Recipe(
            Plan.from_json(values["plan"]), values["effective_batch"], values["processes"], values["floors"]
        )
        notes = tuple(values["notes"])
        return cls(values["label"], values["workload"], recipe, notes, values["network_alpha"])


class Session(Protocol):
    """A workload opened for one plan on one device. Everything it holds there is freed by `close`.

    `phases_before` run once before the first step (caching latents, say), `phases_after` after the last
    (sampling, saving): the names of those that are on, in order.
    """

    phases_before: Sequence[str]
    phases_after: Sequence[str]

    def run_phase(self, name: str) -> None:
        """Run one named phase on the worst-case input."""

    def step(self) -> None:
        """One optimizer step over one logical batch of the worst bucket: the real training step."""

    # A session may also have `tensors() -> Mapping[str, Iterable[Tensor]]`: what it holds now by category of
    # `memory.account`, wherever it is. Recorded trials ask it; without it they know what was placed and stepped.

    def close(self) -> None:
        """Free everything on the device and undo every change to what stays warm. Never raises."""


class Workload(Protocol):
    """A training job. Made by a factory `(config: Mapping[str, Any]) -> Workload` inside a worker.

    Making it and `job` may read files but must not use the device.
    """

    def job(self) -> Job:
        """What this job is and what was asked."""

    def open(self, plan: Plan, device: DeviceSession) -> Session:
        """Build the job for `plan` on `device`. May raise torch.OutOfMemoryError; then nothing stays."""


@runtime_checkable
class Trainable(Protocol):
    """A workload that can also do its full run, not only trials."""

    def train(self, plan: Plan, device: DeviceSession, report: Report) -> Mapping[str, Any]:
        """The full run of `plan`. Calls `report` with JSON events as it goes; returns the summary:
        at least `files` (paths written) and `steps`."""


def load_factory(reference: str) -> Callable[[Mapping[str, Any]], Workload]:
    """The factory named `module:name`. Raises ConfigError with what is missing."""
    module_name, _, name = reference.partition(":")
    way_out = "Write it as package.module:factory; the module must be importable from the current folder."
    if not module_name or not name:
        raise ConfigError(f"workload {reference!r} is not of the form module:factory.", way_out)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"workload {reference!r}: no module named {error.name!r}.", way_out) from None
    if not callable(getattr(module, name, None)):
        raise ConfigError(f"workload {reference!r}: {module_name} has no callable {name!r}.", way_out)
    return cast("Callable[[Mapping[str, Any]], Workload]", getattr(module, name))
