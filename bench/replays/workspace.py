"""Scratch memory inside operators that the null GPU leaves out, taken where cuDNN would take it.

Owns a dispatch mode that, just before a convolution or cuDNN attention call runs, takes and frees as many bytes as
a rule says, so that the scratch meets the step's own peak. Must never keep memory.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.memory.unseen import Attention, Convolution

Rule = Callable[[Any, tuple[Any, ...]], int]
_aten = torch.ops.aten


class Scratch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes the most scratch memory each operator may need. `most_bytes` is the largest taken."""

    def __init__(self, cudnn_attention: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes = 0
        self._rules: dict[Any, Callable[[tuple[Any, ...], Any], int]] = {
            _aten.convolution.default: _forward_bytes,
            _aten.convolution_backward.default: _backward_bytes,
        }
        if cudnn_attention:
            backward = _aten._scaled_dot_product_cudnn_attention_backward.default
            self._rules[backward] = _attention_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        rule = self._rules.get(func)
        if rule is not None:
            size = rule(args, result)
            self.most_bytes = max(self.most_bytes, size)
            # Taken while inputs and results are both there, as during the kernel.
            torch.empty(size, dtype=torch.uint8, device=args[0].device)
        return result


def _forward_bytes(args: tuple[Any, ...], result: Any) -> int:
    return Convolution(args[0].nbytes, args[1].nbytes, result.nbytes).layout_copy_bytes


def _backward_bytes(args: tuple[Any, ...], result: Any) -> int:
    return Convolution(args[1].nbytes, args[2].nbytes, args[0].nbytes).layout_copy_bytes


def _attention_bytes(args: tuple[Any, ...], result: Any) -> int:
    batch, heads, queries, head_dim = args[1].shape
    return Attention(batch, heads, queries, head_dim).gradient_scratch_bytes
