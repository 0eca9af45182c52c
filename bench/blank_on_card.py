"""The forecast's workload on a device that computes: what a real card holds, against what the null GPU counted.

Owns one exception for the GPU check: the trainer's blank workload may run on a real card, its weights all zeros,
so that models of any size are measured without their files. Its bytes are real; its arithmetic means nothing. Must
never be used to train. Only workers import this module.
"""

from collections.abc import Mapping
from typing import Any

import torch

from autotune.device.null.session import convert
from autotune.device.session import DeviceSession, Evidence, Placed
from autotune.ladder.plan import Plan
from autotune.trial.workload import Job
from trainer import forecast
from trainer.workload import LoraTrial


def create(config: Mapping[str, Any]) -> "BlankOnCard":
    """The factory; `config` as `trainer.forecast.create`'s."""
    return BlankOnCard(forecast.create(config))


class BlankOnCard:
    """The blank workload, opened on a session that gives its models memory full of zeros."""

    def __init__(self, blank: forecast.BlankWorkload) -> None:
        """`blank` is what forecasts run."""
        self._blank = blank

    def job(self) -> Job:
        """The job as forecasts know it."""
        return self._blank.job()

    def open(self, plan: Plan, device: DeviceSession) -> LoraTrial:
        """A trial of `plan` on `device`. What the trial reports keeps the evidence of `device`."""
        return self._blank.open(plan, ZerosSession(device))


class ZerosSession:
    """`device`, but models on `meta` become zeros there, and nobody looks at values: they mean nothing.

    Zeros and not whatever memory holds: some buffers are indices.
    """

    evidence = Evidence.FORECAST

    def __init__(self, device: DeviceSession) -> None:
        """Everything but `place` and `evict` of modules is left to `device`."""
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def place(self, thing: Placed) -> Placed:
        """As NullSession: see there."""
        if isinstance(thing, torch.nn.Module):
            return convert(thing, self._on_device)
        return self._on_device(thing)

    def evict(self, thing: Placed) -> Placed:
        """As NullSession: modules go to `meta`."""
        if isinstance(thing, torch.nn.Module):
            return convert(thing, lambda tensor: tensor.to("meta"))
        return self._device.evict(thing)

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return torch.zeros_like(tensor, device=self._device.torch_device)
        return self._device.place(tensor)
