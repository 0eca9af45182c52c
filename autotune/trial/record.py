"""Recording a trial with PyTorch's own memory history: what an Account and a memory snapshot are made from.

Owns the switching on and off of the history, and the marks that tell where in it a phase began and whose an
address was. Off unless asked for. Must never allocate on the device, so that a recorded trial peaks as any other.
"""

import pickle
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autotune.device.session import DeviceSession, Placed
from autotune.files import write_atomically
from autotune.memory.account import GRADIENTS, OPTIMIZER, WEIGHTS, Account
from autotune.trial.protocol import Recording
from autotune.trial.replay import Journal, account_of
from autotune.trial.workload import Session

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Recorder:
    """Records nothing: what a trial has unless it was asked for more, or its device has no such history."""

    def watched(self, device: DeviceSession) -> DeviceSession:
        """`device` as the workload gets it."""
        return device

    def meet(self, session: Session) -> None:
        """`session` is open: it can tell from now on whose its tensors are."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside is phase `name`."""
        yield

    def finish(self) -> Account | None:
        """End the recording. Call it when the session is closed."""
        return None

    def write(self) -> None:
        """Write the snapshot, if one was asked for. Raises DiskError."""


def start_recorder(device: DeviceSession, recording: Recording | None) -> Recorder:
    """A recorder that runs already; a silent one without a `recording`, or where PyTorch keeps no history that
    can be marked: on the virtual GPU, and before torch 2.10."""
    import torch

    marks = hasattr(torch._C, "_cuda_setMemoryMetadata")
    if recording is None or device.torch_device.type != "cuda" or not marks:
        return Recorder()
    return HistoryRecorder(device, recording)


class HistoryRecorder(Recorder):
    """Records the allocator's history of one device from now on until `finish`."""

    def __init__(self, device: DeviceSession, recording: Recording) -> None:
        """Stacks are kept for a snapshot only: they take most of the time."""
        import torch

        self._device = device
        self._path = Path(recording.snapshot) if recording.snapshot else None
        self._session: Session | None = None
        self._journal = Journal()
        self._mark = 0
        self._phase = ""
        self._content = b""
        context: Any = "all" if self._path else None
        torch.cuda.memory._record_memory_history("all", context=context, stacks="python")
        self._segments = torch.cuda.memory._snapshot()["segments"]
        self._hooks = _hook_optimizers(self._before_step, self._after_step)

    def watched(self, device: DeviceSession) -> DeviceSession:
        """`device`, whose placed modules are known to be weights."""
        return cast("DeviceSession", _WatchedDevice(device, self))

    def meet(self, session: Session) -> None:
        """See Recorder."""
        self._session = session

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """See Recorder."""
        self._phase = name
        begin = self._next_mark()
        try:
            yield
        finally:
            self._note({})
            self._phase = ""
            self._journal.phases.append((name, begin, self._next_mark()))

    def note_module(self, module: "nn.Module") -> None:
        """`module` was placed: it is weights, but for what the session calls otherwise."""
        self._note({WEIGHTS: _tensors_of(module)})

    def finish(self) -> Account | None:
        """The account; None where there can be none, as when the device can't be read any more (a poisoned
        context): the trial itself is worth more, so the reason goes to the log."""
        try:
            self._return_workspaces()
            return self._read()
        except Exception:
            traceback.print_exc()
            return None
        finally:
            self._stop()

    def write(self) -> None:
        """Write PyTorch's own snapshot, as `torch.cuda.memory._dump_snapshot` would, in one go."""
        if self._path and self._content:
            write_atomically(self._path, self._content)

    def _before_step(self, optimizer: "Optimizer", *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._note({GRADIENTS: [parameter.grad for parameter in parameters if parameter.grad is not None]})

    def _after_step(self, optimizer: "Optimizer", *_: Any) -> None:
        self._note({OPTIMIZER: tensors_in(optimizer.state)})

    def _note(self, tensors: "Mapping[str, Iterable[Tensor]]") -> None:
        """Say whose these `tensors` are, and whose all are that the session names: its word counts more."""
        mark = self._next_mark()
        name = getattr(self._session, "tensors", None)
        for told in (tensors, name() if name else {}):
            claims = [(category, _addresses(group)) for category, group in told.items()]
            self._journal.claims[mark] += claims

    def _next_mark(self) -> int:
        import torch

        self._mark += 1
        torch._C._cuda_setMemoryMetadata(f"{self._mark} {self._phase}".strip())
        return self._mark

    def _return_workspaces(self) -> None:
        """Have cuBLAS free its workspaces: what is freed meanwhile was theirs."""
        import torch

        begin = self._next_mark()
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        self._journal.workspaces = range(begin, self._next_mark())

    def _read(self) -> Account:
        import torch

        snapshot = torch.cuda.memory._snapshot()
        if self._path:
            self._content = pickle.dumps(snapshot)
        events = snapshot["device_traces"][self._device.torch_device.index or 0]
        return account_of(self._segments, events, self._journal)

    def _stop(self) -> None:
        import torch

        self._hooks.close()
        self._session = None
        torch._C._cuda_setMemoryMetadata("")
        torch.cuda.memory._record_memory_history(None)


class _WatchedDevice:
    """A device session that tells the recorder what is placed; in all else the session itself."""

    def __init__(self, device: DeviceSession, recorder: HistoryRecorder) -> None:
        self._device = device
        self._recorder = recorder

    def place(self, thing: Placed) -> Placed:
        import torch

        placed = self._device.place(thing)
        if isinstance(placed, torch.nn.Module):
            self._recorder.note_module(placed)
        return placed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def tensors_in(values: object) -> "Iterator[Tensor]":
    """The tensors inside dictionaries, lists and quantisation states, however deep."""
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from tensors_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
    elif type(values).__name__ == "QuantState":  # bitsandbytes: scales and tables beside a quantised weight
        yield from tensors_in(vars(values))


def _tensors_of(module: "nn.Module") -> "Iterator[Tensor]":
    for parameter in module.parameters():
        yield parameter
        yield from tensors_in(getattr(parameter, "quant_state", None))
    yield from module.buffers()


def _addresses(tensors: "Iterable[Tensor]") -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.device.type == "cuda"]


def _hook_optimizers(before: Any, after: Any) -> ExitStack:
    """Hear of every step of every optimizer: between the two, all gradients are there and then all state is."""
    from torch.optim import optimizer

    stack = ExitStack()
    stack.callback(optimizer.register_optimizer_step_pre_hook(before).remove)
    stack.callback(optimizer.register_optimizer_step_post_hook(after).remove)
    return stack
