"""What the virtual GPU costs: LoRA training steps under it, under a bare counting mode, and without either.

Owns the measurement only. A ratio is the median of the ratios of steps that took turns within one run, so that
a machine that slows down for a while slows all of them. Must never compare with the numbers of another run.
`python -m bench.virtual_cost` prints both cases as JSON.
"""

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.device.virtual import VirtualSession

ROOMY_BYTES = 1 << 40
LONG_STEP_MS = 200.0

Step = Callable[[], None]


@dataclass(frozen=True)
class VirtualCost:
    """How a training step under the virtual GPU compares.

    `over_counting` divides by the same step under a bare mode that only counts bytes, `over_plain` by the step
    without a mode. `operations` is what one step dispatches, `plain_step_ms` its median time without a mode.
    """

    over_counting: float
    over_plain: float
    operations: int
    plain_step_ms: float


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The least a mode can do to count bytes: run the operation and add up what its results hold."""

    total_bytes = 0
    operations = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run `func` and add the bytes of the tensors it returns."""
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        if isinstance(result, Tensor):
            self.total_bytes += result.nbytes
        elif isinstance(result, tuple | list):
            self.total_bytes += sum(item.nbytes for item in result if isinstance(item, Tensor))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in the virtual GPU's mode, or PyTorch adds a microsecond to every operation."""
        return False


def measure_short_step(rounds: int = 30) -> VirtualCost:
    """The hard case: thousands of tiny operations, where the time goes into dispatch. Lasts some seconds."""
    return _measure(lora_step(batch_size=1, latent_size=8), rounds)


def measure_long_step(rounds: int = 7) -> VirtualCost:
    """The usual case: a step of at least 200 ms, where the time goes into arithmetic. Lasts some ten seconds."""
    batch_size = 1
    while _milliseconds(step := lora_step(batch_size, latent_size=32), nullcontext()) < LONG_STEP_MS:
        batch_size *= 2
    return _measure(step, rounds)


def lora_step(batch_size: int, latent_size: int) -> Step:
    """A training step of LoRA rank 4 on a small U-Net of the SD 1.x kind: forward, backward, AdamW.

    It has run twice already, so that gradients, optimizer state and PyTorch's caches are there.
    """
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=latent_size,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
        norm_num_groups=8,
    ).requires_grad_(False)
    unet.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    trained = [parameter for parameter in unet.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    latents = torch.randn(batch_size, 4, latent_size, latent_size)
    timesteps, text = torch.arange(batch_size), torch.randn(batch_size, 77, 32)

    def step() -> None:
        noise = torch.randn_like(latents)
        predicted = unet(latents + noise, timesteps, text).sample
        torch.nn.functional.mse_loss(predicted, noise).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    return step


def _measure(step: Step, rounds: int) -> VirtualCost:
    counting = CountingMode()  # type: ignore[no-untyped-call]
    virtual = VirtualSession(ROOMY_BYTES)
    with counting:
        step()
    operations = counting.operations
    makers: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": nullcontext,
        "counting": lambda: counting,
        "virtual": virtual.scope,
    }
    times: dict[str, list[float]] = {name: [] for name in makers}
    for turn in range(rounds + 1):
        for name in _rotated(list(makers), turn):
            times[name].append(_milliseconds(step, makers[name]()))
    plain, counted, virtually = (series[1:] for series in times.values())  # the first turn warms up
    return VirtualCost(
        _median_ratio(virtually, counted), _median_ratio(virtually, plain), operations, median(plain)
    )


def _milliseconds(step: Step, context: AbstractContextManager[Any]) -> float:
    gc.collect()
    with context:
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1000


def _rotated(names: list[str], turns: int) -> list[str]:
    """`names` begun at another one each turn: none always goes first."""
    first = turns % len(names)
    return names[first:] + names[:first]


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return median(one / other for one, other in zip(above, below, strict=True))


if __name__ == "__main__":
    print(json.dumps({"short": asdict(measure_short_step()), "long": asdict(measure_long_step())}, indent=1))
