"""What the null GPU can't see of a run's memory, as named parts with intervals.

On the null GPU every byte that PyTorch asks for is counted by PyTorch's own code. Left out is what NVIDIA's
libraries decide by themselves: the CUDA context, and scratch memory that cuDNN plans ask for. Each part here has
one physical meaning and says where its bounds come from. Must never hold a constant fitted to a single
measurement, and must never count what the null GPU has counted already.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from autotune.device.catalogue import ContextOverhead
from autotune.memory.interval import Interval
from autotune.units import MIB

CONTEXT = "CUDA context"
CONVOLUTION = "cuDNN convolution workspace"
ATTENTION = "cuDNN attention workspace"
CACHE_SLACK = "allocator segments"

_LARGE_SEGMENT_BYTES = 20 * MIB
_SEGMENT_STEP_BYTES = 2 * MIB


class Metric(Enum):
    """Which memory a figure is about. Figures of different metrics are never compared."""

    ALLOCATED = "max_memory_allocated"
    RESERVED = "max_memory_reserved"
    PROCESS = "process"
    """What nvidia-smi shows for the process: reserved memory and everything outside PyTorch's allocator."""

    @classmethod
    def parse(cls, text: str) -> "Metric":
        """The metric that `text` begins with or names. Raises ValueError with the known names."""
        wanted = text.strip().lower()
        for metric in (cls.ALLOCATED, cls.RESERVED):
            if wanted.startswith(metric.value):
                return metric
        if "nvidia-smi" in wanted or "nvml" in wanted or wanted.startswith("process"):
            return cls.PROCESS
        known = ", ".join([*(metric.value for metric in cls), "nvidia-smi"])
        raise ValueError(f"metric {text!r} is not known (known: {known})")


@dataclass(frozen=True)
class Part:
    """Memory that a forecast adds to what the null GPU counted: what it is, how much, and the grounds for it."""

    name: str
    interval: Interval
    basis: str


@dataclass(frozen=True)
class Convolution:
    """The tensors of one convolution in bytes, all in the precision it runs in: input, weight and output."""

    input_bytes: int
    weight_bytes: int
    output_bytes: int

    @property
    def layout_copy_bytes(self) -> int:
        """One copy of each tensor: what a plan needs that wants another memory layout than it was given."""
        return self.input_bytes + self.weight_bytes + self.output_bytes


@dataclass(frozen=True)
class Attention:
    """One attention call: batch, heads, queries, and channels of a head."""

    batch: int
    heads: int
    queries: int
    head_dim: int

    @property
    def gradient_scratch_bytes(self) -> int:
        """Sum of the queries' gradient in fp32 and one fp32 figure per query, as flash attention's backward pass
        needs them (the algorithm accumulates over blocks of keys)."""
        return 4 * self.batch * self.heads * self.queries * (self.head_dim + 1)


def context_part(context: ContextOverhead) -> Part:
    """The CUDA context, driver and loaded kernels of one process on a card: the catalogue's interval."""
    return Part(CONTEXT, Interval(context.low_bytes, context.high_bytes), context.basis)


def convolution_part(convolutions: Iterable[Convolution]) -> Part:
    """Scratch of the convolution that needs most of it.

    cuDNN's tensor-core kernels work on channels-last tensors. Given another layout a plan first copies its
    tensors; one such copy of input, weight and output at a time is the upper bound, because a convolution's
    workspace is freed when it returns. A plan that takes the layout as it is needs none: the lower bound.
    """
    most = max((convolution.layout_copy_bytes for convolution in convolutions), default=0)
    basis = "none, up to one copy of the largest convolution's input, weight and output in another memory layout"
    return Part(CONVOLUTION, Interval(0, most), basis)


def attention_part(attentions: Iterable[Attention], compute_capability: tuple[int, int]) -> Part:
    """Scratch of the largest backward pass of attention on cards where PyTorch prefers cuDNN's.

    Those are compute capability 9.x and 10.x (PyTorch 2.13, `sdp_utils.cpp`); on others PyTorch's own kernels
    run, whose scratch the null GPU counts.
    """
    prefers_cudnn = compute_capability[0] in (9, 10)
    most = max((attention.gradient_scratch_bytes for attention in attentions), default=0) if prefers_cudnn else 0
    return Part(
        ATTENTION,
        Interval(0, most),
        "none, up to the fp32 sums that flash attention's backward pass keeps for the largest call",
    )


def reserved_part(scratch: Interval) -> Part:
    """What `scratch`, once taken through PyTorch's allocator, may add to its segments beyond its own size.

    A request below 10 MiB that finds no room opens a segment of 20 MiB, a larger one a segment of whole 2 MiB
    steps (c10/cuda/CUDACachingAllocator.cpp). Nothing is added where nothing is taken.
    """
    if scratch.high_bytes == 0:
        return Part(CACHE_SLACK, Interval(0, 0), "no scratch memory is taken")
    small = scratch.high_bytes < _LARGE_SEGMENT_BYTES // 2
    most = _LARGE_SEGMENT_BYTES - scratch.high_bytes if small else _SEGMENT_STEP_BYTES
    return Part(CACHE_SLACK, Interval(0, most), "segments of 20 MiB below 10 MiB, else steps of 2 MiB")


def unseen_parts(
    metric: Metric,
    context: ContextOverhead,
    compute_capability: tuple[int, int],
    convolutions: Sequence[Convolution] = (),
    attentions: Sequence[Attention] = (),
) -> tuple[Part, ...]:
    """Every part to add to a null GPU's figure of `metric`, for a phase that runs these convolutions and
    attention calls. Parts that are nothing on this card or in this metric are left out.

    cuBLASLt needs no part: since PyTorch 2.9 it shares the cuBLAS workspace, which the allocator holds and the
    null GPU counts. The two cuDNN parts don't add up: an operator's scratch is freed before the next begins.
    """
    scratch = [convolution_part(convolutions), attention_part(attentions, compute_capability)]
    parts = [max(scratch, key=lambda part: part.interval.high_bytes)]
    if metric is not Metric.ALLOCATED:
        parts.append(reserved_part(parts[0].interval))
    if metric is Metric.PROCESS:
        parts.append(context_part(context))
    return tuple(part for part in parts if part.interval.high_bytes > 0)


def forecast_interval(counted_bytes: int, parts: Iterable[Part]) -> Interval:
    """What the null GPU counted and what it can't see, together."""
    return Interval.total(part.interval for part in parts) + counted_bytes
