"""What others would forecast for the same rows: a FakeTensor sum, PyTorch's MemTracker, a parameter count.

Owns the three methods, each as its users run it without a card: fake tensors on the CPU, no correction of ours.
Runs as a process of its own, `python -m bench.replays.baselines`, that reads rows as JSON lines and answers in
JSON lines. Must never use the null GPU.
"""

import _thread
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.replays import loops
from bench.replays.build import build_model
from bench.replays.denoisers import DENOISERS, Batch, normal_name
from bench.replays.rows import Row

_STATE_BYTES = {"adamw_bf16": 3 * 2, "optimi-lion": 2 * 2}
STEPS = 2
LONGEST_S = 300  # the tracker visits every parameter of a module at every call of it


def main() -> int:
    """Answer every row on stdin: `{"row": id, "fake": bytes or null, "tracker": ..., "formula": ...}`."""
    for line in sys.stdin:
        values = json.loads(line)
        row = Row(**{**values, "targets": tuple(values["targets"])})
        print(json.dumps({"row": row.id} | forecast(row)), flush=True)
    return 0


def forecast(row: Row) -> dict[str, int | str | None]:
    """Bytes by each method; None where the method can't run this workload, with its error under `*_error`."""
    found: dict[str, int | str | None] = {}
    methods: Mapping[str, Callable[[Row], int]] = {
        "fake": fake_tensor_sum,
        "tracker": tracked_peak,
        "formula": parameter_formula,
    }
    for name, method in methods.items():
        try:
            with _patience(LONGEST_S):
                found[name] = method(row)
        except KeyboardInterrupt:
            found |= {name: None, f"{name}_error": f"took longer than {LONGEST_S} s"}
        except Exception as error:  # the method fails on this row, which is its result
            found |= {
                name: None,
                f"{name}_error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
            }
    return found


def fake_tensor_sum(row: Row) -> int:
    """Most bytes of storages alive at once while the loop runs on fake tensors."""
    counter, (model, _) = LiveBytes(), build_model(row)
    with FakeTensorMode(allow_non_fake_inputs=True), counter:
        for _ in _steps(row, model, lambda model: None):
            pass
    return counter.most_bytes


def tracked_peak(row: Row) -> int:
    """The peak that `torch.distributed._tools.mem_tracker.MemTracker` finds for the same loop."""
    tracker, (model, _) = MemTracker(), build_model(row)
    with FakeTensorMode(allow_non_fake_inputs=True):
        steps = _steps(row, model, tracker.track_external)
        _pass_over_frozen(tracker, model)
        with tracker:
            for _ in steps:
                tracker.reset_mod_stats()  # it refuses a second step otherwise
    peaks = tracker.get_tracker_snapshot("peak")
    return max(sum(part for name, part in device.items() if str(name) == "Total") for device in peaks.values())


def parameter_formula(row: Row) -> int:
    """Weights, gradients and optimizer states in their precisions; activations are not counted."""
    model, _ = build_model(row)
    total: int = sum(tensor.nbytes for tensor in model.parameters())
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    per_parameter = _STATE_BYTES.get(row.optimizer.lower())
    for tensor in trained:
        states = 2 * tensor.nbytes if per_parameter is None else per_parameter * tensor.numel()
        total += tensor.nbytes + states
    return total


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operators make, until they die."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, int] = {}
        self.bytes = self.most_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self.bytes += self._alive[key]
        self.most_bytes = max(self.most_bytes, self.bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.bytes -= self._alive.pop(key, 0)


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside after `seconds`, as Ctrl-C would."""
    timer = threading.Timer(seconds, _thread.interrupt_main)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _steps(row: Row, model: Any, made: Callable[[Any], None]) -> Any:
    kind = DENOISERS[normal_name(row.family)]
    _fake(model)
    model.train()
    made(model)

    def read() -> loops.Reading:
        return loops.Reading(0, 0, 0)

    if row.is_peft_benchmark:
        cached = loops.Cached(
            torch.empty(loops.PROMPTS * loops.REPEATS, dtype=torch.int64),
            torch.empty(loops.PROMPTS, 512, 7680, dtype=torch.bfloat16),
            torch.empty(loops.PROMPTS, 512, 4, dtype=torch.int64),
            torch.empty(loops.PROMPTS, 128, 32, 32, dtype=torch.bfloat16),
        )
        return loops.train_benchmark(model, cached, row.batch, None, range(1, STEPS + 1), read, lambda: None)
    dtype = getattr(torch, row.base_dtype)

    def make(*shape: int, integer: bool = False, boolean: bool = False) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64 if integer else torch.bool if boolean else dtype)

    batch = Batch(row.batch, row.height // kind.latent_factor, row.width // kind.latent_factor, make)
    return loops.train_autocast(model, kind, batch, row.optimizer, range(STEPS), read)


def _pass_over_frozen(tracker: MemTracker, model: nn.Module) -> None:
    """Spare frozen parameters the hooks on gradients, which the tracker can't set on them and fails."""
    handles: Any = tracker._param_to_grad_hook_handles
    for parameter in model.parameters():
        if not parameter.requires_grad:
            handles[parameter] = (_NoHandle(), _NoHandle())


class _NoHandle:
    def remove(self) -> None:
        """There is no hook to take away."""


def _fake(model: nn.Module) -> None:
    """Every tensor of a model on `meta` as a fake tensor of the CPU: `to` can't do it under FakeTensorMode."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                module._parameters[name] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


if __name__ == "__main__":
    sys.exit(main())
