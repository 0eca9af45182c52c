"""A workload that misbehaves on request: its plan's `trouble` knob says how. For tests of what watches it."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from autotune.device.session import DeviceSession
from autotune.errors import DataError
from autotune.ladder.plan import Plan, Recipe
from autotune.trial.workload import Job, Report
from autotune.units import MIB


class Trouble(IntEnum):
    """What goes wrong, and where."""

    NONE = 0
    OOM_OPEN = 1
    OOM_BEFORE = 2
    OOM_FORWARD = 3
    OOM_BACKWARD = 4
    OOM_OPTIMIZER = 5
    OOM_AFTER = 6
    OOM_WRAPPED = 7  # behind a ValueError
    LEAK = 8
    CRASH = 9
    USER_ERROR = 10
    PRINT = 11
    HANG = 12
    BITSANDBYTES = 13  # its C macro: a line on stderr and exit(1)


MORE_THAN_THERE_IS = 1 << 28  # 256 MiB: the tests' virtual GPU has 64
LEAKED: list[Tensor] = []


def create(config: Mapping[str, Any]) -> "Troubled":
    return Troubled()


class Troubled:
    def job(self) -> Job:
        return Job("troubled", {"family": "troubled"}, Recipe(plan_with(Trouble.NONE), effective_batch=4))

    def open(self, plan: Plan, device: DeviceSession) -> "TroubledSession":
        return TroubledSession(Trouble(plan["trouble"]), device)

    def train(self, plan: Plan, device: DeviceSession, report: Report) -> Mapping[str, Any]:
        """Starts a grandchild, tells its number, and then does what `trouble` says."""
        grandchild = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        report({"phase": "train", "grandchild": grandchild.pid})
        with device.scope():
            TroubledSession(Trouble(plan["trouble"]), device).step()
        grandchild.communicate(b"\n")
        return {"files": [], "steps": 1}


def plan_with(trouble: Trouble, batch_size: int = 4) -> Plan:
    return Plan.of(batch_size=batch_size, trouble=int(trouble))


class TroubledSession:
    phases_before: Sequence[str] = ("prepare",)
    phases_after: Sequence[str] = ("sample",)

    def __init__(self, trouble: Trouble, device: DeviceSession) -> None:
        self.trouble = trouble
        self.device = device
        self.model = device.place(nn.Linear(64, 64))
        self.optimizer = Greedy(self.model.parameters(), trouble)
        self.inputs = torch.ones(8, 64)
        if trouble is Trouble.OOM_OPEN:
            _take_too_much()
        if trouble is Trouble.LEAK:
            LEAKED.append(torch.ones(MIB))

    def run_phase(self, name: str) -> None:
        if (name, self.trouble) in (("prepare", Trouble.OOM_BEFORE), ("sample", Trouble.OOM_AFTER)):
            _take_too_much()

    def step(self) -> None:
        self._misbehave()
        self.optimizer.zero_grad()
        hidden = Pass.apply(self.model(self.inputs), self.trouble)
        hidden.square().mean().backward()
        self.optimizer.step()

    def close(self) -> None:
        del self.model, self.optimizer, self.inputs

    def _misbehave(self) -> None:
        match self.trouble:
            case Trouble.PRINT:
                print("printed by a library")
                os.write(1, b'{"kind":"outcome","id":1}\n')
                subprocess.run(["echo", "printed by a child"], check=True)
            case Trouble.HANG:
                threading.Event().wait()
            case Trouble.BITSANDBYTES:
                os.write(2, b"Error out of memory at line 88 in file /src/csrc/ops.cu\n")
                os._exit(1)
            case Trouble.CRASH:
                _crash()
            case Trouble.USER_ERROR:
                raise DataError("image cat.png is broken.", "Replace it.")
            case Trouble.OOM_WRAPPED:
                _wrap_oom()


class Greedy(torch.optim.SGD):
    """An optimizer that may ask for too much in its second step, as one does that makes its state late."""

    def __init__(self, parameters: Any, trouble: Trouble) -> None:
        super().__init__(parameters, lr=0.1)
        self.trouble = trouble
        self.steps_done = 0

    def step(self, closure: Any = None) -> Any:
        self.steps_done += 1
        if self.trouble is Trouble.OOM_OPTIMIZER and self.steps_done == 2:
            _take_too_much()
        return super().step(closure)


class Pass(torch.autograd.Function):
    """The identity, that may ask for too much on its way forward or back."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, trouble: Trouble) -> Tensor:
        ctx.trouble = trouble
        if trouble is Trouble.OOM_FORWARD:
            _take_too_much()
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.trouble is Trouble.OOM_BACKWARD:
            _take_too_much()
        return grad, None


def _take_too_much() -> None:
    torch.empty(MORE_THAN_THERE_IS, dtype=torch.uint8)


def _crash() -> None:
    try:
        {}["latents"]
    except KeyError as error:
        raise RuntimeError("the batch can't be built") from error


def _wrap_oom() -> None:
    try:
        _take_too_much()
    except RuntimeError as error:
        raise ValueError("the batch can't be built") from error
