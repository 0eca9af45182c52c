"""Which card the null GPU is: a catalogue entry, or any size and compute capability.

Owns the figures and their spellings. Must never invent a figure for a named card: those are the catalogue's.
"""

import re
from dataclasses import dataclass, replace
from functools import partial

from autotune.device.budget import DEFAULT_CONTEXT_BYTES
from autotune.device.catalogue import Card, MultiprocessorLimits, find_card, load_catalogue, multiprocessor_limits
from autotune.errors import DeviceError
from autotune.units import format_size, parse_size, spell_size

DEFAULT_CAPABILITY = (8, 6)
_SIZED = re.compile(r"\s*(?P<size>\d[\d.]*\s*[a-zA-Z]*)\s*(?:@\s*(?P<major>\d+)\.(?P<minor>\d)\s*)?")


@dataclass(frozen=True)
class NullCard:
    """A card that computes nothing: what PyTorch asks of a card, and what cuDNN and the driver take.

    `context_low_bytes`..`context_high_bytes` is what a process's CUDA context takes; `context_bytes` is what the
    null card really takes off its free memory for each process. `convolution_workspace_bytes` is what cuDNN asks
    for at every convolution.
    """

    name: str
    slug: str
    total_bytes: int
    compute_capability: tuple[int, int]
    sm_count: int
    limits: MultiprocessorLimits
    context_low_bytes: int
    context_high_bytes: int
    context_bytes: int = 0
    convolution_workspace_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> "NullCard":
        """`rtx-3060-12gb` or another name of the catalogue, `12GiB@8.6` (size and compute capability), `12GiB`
        (8.6). Raises DeviceError with the nearest names or the known capabilities."""
        sized = _SIZED.fullmatch(text)
        if sized is None and "@" in text:
            raise DeviceError(f"card {text!r} is not SIZE@CAPABILITY.", "Write for example 12GiB@8.6.")
        if sized is None:
            return cls.of(find_card(text))
        capability = (int(sized["major"]), int(sized["minor"])) if sized["major"] else DEFAULT_CAPABILITY
        try:
            total_bytes = parse_size(sized["size"])
        except ValueError as error:
            raise DeviceError(f"card {text!r}: {error}.") from None
        return cls.sized(total_bytes, capability)

    @classmethod
    def of(cls, card: Card) -> "NullCard":
        """The card of a catalogue entry."""
        return cls(
            name=card.names[0],
            slug=card.slug,
            total_bytes=card.total_bytes,
            compute_capability=card.compute_capability,
            sm_count=card.sm_count,
            limits=card.limits,
            context_low_bytes=card.context.low_bytes,
            context_high_bytes=card.context.high_bytes,
        )

    @classmethod
    def sized(cls, total_bytes: int, capability: tuple[int, int]) -> "NullCard":
        """A card of no maker: the SM count is that of the catalogue's card of this capability nearest in size."""
        limits = multiprocessor_limits(capability)
        alike = [card for card in load_catalogue() if card.compute_capability == capability]
        nearest = min(alike, key=lambda card: abs(card.total_bytes - total_bytes), default=None)
        low, high = DEFAULT_CONTEXT_BYTES
        return cls(
            name=f"Null GPU {format_size(total_bytes)}",
            slug=f"{spell_size(total_bytes)}@{capability[0]}.{capability[1]}",
            total_bytes=total_bytes,
            compute_capability=capability,
            sm_count=nearest.sm_count if nearest else 64,
            limits=limits,
            context_low_bytes=nearest.context.low_bytes if nearest else low,
            context_high_bytes=nearest.context.high_bytes if nearest else high,
        )

    def resized(self, total_bytes: int) -> "NullCard":
        """The same card with another amount of memory."""
        return replace(self, total_bytes=total_bytes)

    def with_multiprocessors(self, sm_count: int) -> "NullCard":
        """The same card with `sm_count` multiprocessors."""
        return replace(self, sm_count=sm_count)

    def with_context(self, context_bytes: int) -> "NullCard":
        """The same card whose contexts really take `context_bytes`."""
        return replace(self, context_bytes=context_bytes)

    def with_convolution_workspace(self, workspace_bytes: int) -> "NullCard":
        """The same card whose cuDNN asks for `workspace_bytes` at every convolution."""
        return replace(self, convolution_workspace_bytes=workspace_bytes)

    def encode(self) -> str:
        """The figures as the libraries read them (`Card` in native/core.h, in its order)."""
        clean = partial(re.sub, r"[|;]", " ")
        figures = (
            self.total_bytes,
            self.context_bytes,
            self.convolution_workspace_bytes,
            *self.compute_capability,
            self.sm_count,
            self.limits.shared_bytes,
            self.limits.block_shared_bytes,
            self.limits.threads,
        )
        return "|".join([clean(self.name), *map(str, figures)])
