"""Published runs as a workload for our own worker: `bench.replays.workload:create`.

Owns the order of a replay: model, adapter, residents, loop, and giving everything back. One worker replays many
rows one after another; each begins on an empty allocator. Must never print and never let one row's failure end
another.
"""

import gc
import itertools
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch

from autotune.device.session import DeviceSession
from autotune.errors import ConfigError
from autotune.ladder.plan import Plan, Recipe
from autotune.trial.workload import Job, Report, Session
from bench.replays import loading, loops
from bench.replays.adapters import AdapterError
from bench.replays.build import build_model, place
from bench.replays.denoisers import DENOISERS, Batch, DenoiserKind, normal_name
from bench.replays.loading import Residents
from bench.replays.rows import Row
from bench.replays.workspace import Scratch

STEPS = 3


def create(config: Mapping[str, Any]) -> "Replays":
    """The workload of `config["rows"]`, each a row in its JSON form."""
    return Replays([Row(**{**row, "targets": tuple(row["targets"])}) for row in config["rows"]])


class Replays:
    """Rows to replay one after another; `train` reports each as it is done."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def job(self) -> Job:
        """A job with no knob to turn: what is replayed is fixed."""
        plan = Plan.of(batch_size=1)
        return Job("replays", {"rows": [row.id for row in self._rows]}, Recipe(plan, 1, 1, {}))

    def open(self, plan: Plan, device: DeviceSession) -> Session:
        """Replays have no trials."""
        raise ConfigError("replays of published runs have no trials.", "Run them with bench.forecast_accuracy.")

    def train(self, plan: Plan, device: DeviceSession, report: Report) -> Mapping[str, Any]:
        """Replay every row; one event `{"row": id, ...}` each, with `error` where it failed."""
        for row in self._rows:
            began = time.perf_counter()
            try:
                result = _replay(row, device)
            except Exception as error:  # the other rows can still be replayed
                result = {"error": _one_line(error), "traceback": traceback.format_exc()}
            report({"row": row.id, "seconds": time.perf_counter() - began, **result})
            _give_back(device)
        return {"files": [], "steps": STEPS * len(self._rows)}


def _replay(row: Row, device: DeviceSession) -> dict[str, Any]:
    kind = DENOISERS[normal_name(row.family)]
    plain = _measure(row, kind, device, scratch=False)
    if not plain["scratch"]:
        return plain
    _give_back(device)
    most = _measure(row, kind, device, scratch=True)
    high = {f"high_{name}": most[name] for name in ("peak_allocated_bytes", "peak_reserved_bytes")}
    return plain | high


def _measure(row: Row, kind: DenoiserKind, device: DeviceSession, scratch: bool) -> dict[str, Any]:
    """Build and train; `scratch` says whether operators take the most scratch memory they may need."""
    cudnn = torch.cuda.get_device_capability()[0] in (9, 10)
    mode = Scratch(cudnn) if scratch else nullcontext()
    with device.scope(), mode:
        readings, told = _train(row, kind, device)
    peaks = {
        name: max(getattr(reading, name) for reading in readings)
        for name in ("peak_allocated_bytes", "peak_reserved_bytes")
    }
    has_scratch = cudnn or "UNet" in kind.class_name
    return told | peaks | {
        "scratch": has_scratch,
        "mean_allocated_bytes": readings[-1].allocated_bytes,
        "steps": [asdict(reading) for reading in readings],
    }  # fmt: skip


def _train(row: Row, kind: DenoiserKind, device: DeviceSession) -> tuple[list[loops.Reading], dict[str, Any]]:
    torch.empty(1, device=device.torch_device)  # the source's first touch of the card: one small segment
    model, told = build_model(row)
    residents = loading.load_residents(model, kind, device) if row.is_peft_benchmark else None
    if residents is None:
        place(model, device.torch_device)
    model.train()
    device.empty_cache()
    device.reset_peak()
    readings = list(_loop(row, kind, model, residents, device))
    return readings, told


def _loop(
    row: Row, kind: DenoiserKind, model: Any, residents: Residents | None, device: DeviceSession
) -> Iterator[loops.Reading]:
    def read() -> loops.Reading:
        counted = device.statistics()
        return loops.Reading(
            counted["allocated_bytes.all.current"],
            counted["allocated_bytes.all.peak"],
            counted["reserved_bytes.all.peak"],
        )

    if residents is not None:
        after = getattr(model.base_model, "update_and_allocate", None) if hasattr(model, "base_model") else None
        # AdaLoRA prunes ranks from its 100th step on.
        steps = [1, 2, 3, 150, 151, 152] if after else range(1, STEPS + loops.EVALUATE_BEFORE_LAST + 1)

        def evaluate() -> None:
            loading.evaluate(model, residents, device)

        return loops.train_benchmark(model, residents.cached, row.batch, after, list(steps), read, evaluate)
    batch = Batch(
        row.batch, row.height // kind.latent_factor, row.width // kind.latent_factor, _maker(row, device)
    )
    return loops.train_autocast(model, kind, batch, row.optimizer, range(STEPS), read)


def _maker(row: Row, device: DeviceSession) -> Any:
    dtype = getattr(torch, row.base_dtype)

    def make(*shape: int, integer: bool = False, boolean: bool = False) -> torch.Tensor:
        kind = torch.int64 if integer else torch.bool if boolean else dtype
        return torch.zeros(shape, dtype=kind, device=device.torch_device)

    return make


def _give_back(device: DeviceSession) -> None:
    """Free what a row left, the matrix library's workspaces too, so that the next row begins on an empty card."""
    for _ in itertools.repeat(None, 2):
        gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    device.empty_cache()
    device.reset_peak()


def _one_line(error: Exception) -> str:
    if isinstance(error, AdapterError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
