"""Precision of a run: dtypes, autocast and the gradient scaler, owned here for every device alike.

accelerate is not asked for mixed precision because it silently trains fp16 configs in float32 on a CPU, and
the virtual GPU is one.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

_DTYPES = {"no": torch.float32, "float": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Precision:
    """How a run computes: `weights` of the frozen base, autocast to it unless float32, a scaler for fp16."""

    mode: str  # no | fp16 | bf16

    @property
    def weights(self) -> torch.dtype:
        """The dtype of the frozen base and of autocast."""
        return dtype_of(self.mode)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Mixed precision on `device`; nothing under float32."""
        if self.mode == "no":
            return nullcontext()
        return torch.autocast(device.type, dtype=self.weights)

    def scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """A gradient scaler, enabled only under fp16: bf16 has float32's range."""
        return torch.amp.GradScaler(device.type, enabled=self.mode == "fp16")


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype behind kohya's names `no`, `float`, `fp16` and `bf16`."""
    return _DTYPES[name]
