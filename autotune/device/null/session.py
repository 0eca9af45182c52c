"""The null GPU inside a worker: PyTorch's CUDA device, whose memory is real and whose arithmetic is absent.

Owns what differs from a card: the context is a figure instead of a measurement, and models that have no memory
yet (on `meta`) get theirs here. Only workers import this module, in an environment made by `environment`.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autotune.device.cuda import CudaSession
from autotune.device.null.card import NullCard
from autotune.device.null.environment import CARDS
from autotune.device.session import Evidence, Placed
from autotune.errors import DeviceError

Change = Callable[[Tensor], Tensor]


class NullSession(CudaSession):
    """A null card opened in this process; see DeviceSession for the contract.

    Every number read back is zero. `evict` of a module gives its memory up for good and leaves it on `meta`, so
    that no model ever needs host memory; what `place` makes of it next time has no values either.
    """

    evidence = Evidence.FORECAST

    def __init__(self, card: NullCard) -> None:
        """Open the card this process was started on. Raises DeviceError if it was started without one."""
        if CARDS not in os.environ:
            raise DeviceError(
                f"null:{card.slug} can't be opened: this process was not started on a null card.",
                "Workers are started so by themselves; other programs need `autotune dryrun`.",
            )
        super().__init__(0, (card.context_low_bytes, card.context_high_bytes))
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":  # the driver's pools keep other counters, which are not modelled
            raise DeviceError(
                f"null:{card.slug} forecasts PyTorch's own allocator only, not {backend}.",
                "Take backend: out of PYTORCH_CUDA_ALLOC_CONF.",
            )
        self.name = f"null:{card.slug}"
        self.card = card

    def place(self, thing: Placed) -> Placed:
        """Move a module in place, or a tensor as a copy, to the card. May raise torch.OutOfMemoryError.

        A module's trainable parameters stay the objects they are: optimizers hold them.
        """
        if isinstance(thing, nn.Module):
            return convert(thing, self._on_card)
        return self._on_card(thing)

    def evict(self, thing: Placed) -> Placed:
        """A module to `meta`, in place; a tensor as a copy of zeros to the host."""
        if isinstance(thing, nn.Module):
            return convert(thing, lambda tensor: tensor.to("meta"))
        return thing.to("cpu")

    def context_bytes(self) -> int:
        """What a context takes at most on this card: the safe end of the interval, as none is there to measure."""
        return self.card.context_high_bytes

    def _on_card(self, tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return torch.empty_like(tensor, device=self.torch_device)
        return tensor.to(self.torch_device)


def convert(module: nn.Module, change: Change) -> nn.Module:
    """Change every parameter and buffer of `module` in place; what is shared stays shared.

    Trainable parameters stay the objects they are, for optimizers and graphs hold them, and keep to the host and
    the card, between which `data` can be set. Frozen ones are replaced, so that they may go to `meta` and back.
    """
    done: dict[int, Tensor] = {}
    with torch.no_grad():
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is None:
                    continue
                if parameter.requires_grad:
                    parameter.data = _kept(parameter, change)
                else:
                    part._parameters[name] = _shared(
                        done, parameter, lambda p: nn.Parameter(change(p.data), False)
                    )
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = _shared(done, buffer, change)
    return module


def _kept(parameter: nn.Parameter, change: Change) -> Tensor:
    values = change(parameter.detach())
    return parameter.detach().to("cpu") if values.is_meta else values


def _shared(done: dict[int, Tensor], tensor: Tensor, change: Change) -> Any:
    if id(tensor) not in done:
        done[id(tensor)] = change(tensor)
    return done[id(tensor)]
