"""Optimizers of published runs, by the tensors they keep and make: the arithmetic need not be right.

Owns the state and the temporaries of each. Must never be used to train anything.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def make_optimizer(name: str, parameters: Sequence[Tensor]) -> Any:
    """The optimizer a row names. Raises KeyError for one that has no replay."""
    return {"adamw": _adamw, "adamw_bf16": CompensatedAdamW, "optimi-lion": CompensatedLion}[name.lower()](
        parameters
    )


class CompensatedAdamW:
    """SimpleTuner's `adamw_bf16`: two moments and the rounding error carried along, all in bf16, one parameter
    at a time."""

    STATES = 3

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._states: dict[Tensor, tuple[Tensor, ...]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """One update, with the temporaries of the largest moment of it: the root, a copy and a noisy sum."""
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            if parameter not in self._states:
                self._states[parameter] = tuple(torch.zeros_like(parameter) for _ in range(self.STATES))
            moment, square, shift = self._states[parameter]
            _add_stochastically(moment, parameter.grad)
            root = square.sqrt()
            _add_stochastically(shift, root)
            before = parameter.clone()
            _add_stochastically(parameter, shift)
            _add_stochastically(shift, before.sub_(parameter))

    def zero_grad(self, set_to_none: bool) -> None:
        """Zero the gradients and keep them, or drop them."""
        for parameter in self._parameters:
            if parameter.grad is not None and not set_to_none:
                parameter.grad.zero_()
            elif set_to_none:
                parameter.grad = None


class CompensatedLion(CompensatedAdamW):
    """`optimi`'s Lion with Kahan summation, in its foreach version: one moment and one compensation, both in the
    parameter's precision, updated for all parameters at once."""

    STATES = 2

    @torch.no_grad()
    def step(self) -> None:
        """One update; the list of updates is the temporary."""
        trained = [parameter for parameter in self._parameters if parameter.grad is not None]
        for parameter in trained:
            if parameter not in self._states:
                self._states[parameter] = tuple(torch.zeros_like(parameter) for _ in range(self.STATES))
        moments = [self._states[parameter][0] for parameter in trained]
        shifts = [self._states[parameter][1] for parameter in trained]
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        updates = torch._foreach_lerp(moments, gradients, 0.1)
        torch._foreach_sign_(updates)
        torch._foreach_add_(shifts, updates)
        torch._foreach_copy_(gradients, trained)
        torch._foreach_add_(trained, shifts)


def _adamw(parameters: Sequence[Tensor]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-4)


def _add_stochastically(into: Tensor, other: Tensor) -> None:
    """Stochastic rounding: the sum in fp32, and integer noise of its size."""
    total = torch.randint_like(other, dtype=torch.int32, low=0, high=1 << 16)
    total.add_(other.to(torch.float32).view(dtype=torch.int32))
    into.copy_(total.view(dtype=torch.float32))
