"""What a denoiser is told of its captions. Owns the shape of that knowledge; computes none of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Conditioning:
    """What the denoiser is told: `hidden` (B, L, D), `pooled` (B, P) where the family has it, and the number of
    real tokens of each caption (`lengths`, counted from the first) where the family tells them from padding.

    Lengths are host integers: a mask that has to be read back from a device would stall it.
    """

    hidden: Tensor
    pooled: Tensor | None = None
    lengths: tuple[int, ...] | None = None

    @classmethod
    def stack(cls, parts: Sequence["Conditioning"]) -> "Conditioning":
        """One conditioning of all the samples of `parts`, in order."""
        pooled = [part.pooled for part in parts if part.pooled is not None]
        lengths = tuple(length for part in parts for length in part.lengths or ())
        return cls(
            torch.cat([part.hidden for part in parts]), torch.cat(pooled) if pooled else None, lengths or None
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "Conditioning":
        """This conditioning with `change` applied to each tensor (moving it, say)."""
        pooled = None if self.pooled is None else change(self.pooled)
        return Conditioning(change(self.hidden), pooled, self.lengths)
