"""The training loops of the two published sources, in the order they take and free memory.

Owns what a step computes and which tensors live until when: names that a loop's function keeps are alive when
memory is read and when the next step begins. Must never read a value back: on the null GPU there are none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from bench.replays.denoisers import Batch, DenoiserKind
from bench.replays.optimizers import make_optimizer

PROMPTS = 14
REPEATS = 1000
EVALUATE_BEFORE_LAST = 2


@dataclass(frozen=True)
class Reading:
    """Memory after one step."""

    allocated_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


Read = Callable[[], Reading]


@dataclass(frozen=True)
class Cached:
    """What the benchmark keeps on the card beside the denoiser: one entry a picture."""

    indices: torch.Tensor
    prompts: torch.Tensor
    text_ids: torch.Tensor
    latents: torch.Tensor


def train_benchmark(
    model: Any,
    cached: Cached,
    batch: int,
    after: Callable[[int], None] | None,
    steps: Sequence[int],
    read: Read,
    evaluate: Callable[[], None],
) -> Iterator[Reading]:
    """The PEFT image generation benchmark's loop over FLUX.2: no autocast, one 512-byte loss kept a step.

    `steps` are the numbers given to `after` once a step is done, for a method that has work of its own there.
    Between the last two of them `evaluate` runs: peaks are counted anew behind it, but on the segments it leaves.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    device = cached.latents.device
    losses = []
    for number in steps:
        chosen = cached.indices[:batch].to(device=device, dtype=torch.long)
        latents = cached.latents.index_select(0, chosen)
        prompt_embeds = cached.prompts.index_select(0, chosen)
        text_ids = cached.text_ids.index_select(0, chosen)
        image_ids = _image_ids(latents).to(device)
        noise = torch.randn_like(latents)
        timesteps = torch.empty(batch).to(device)
        sigmas = torch.empty(batch, 1, 1, 1, dtype=latents.dtype).to(device)
        noisy = (1.0 - sigmas) * latents + sigmas * noise
        packed = noisy.reshape(batch, latents.shape[1], -1).permute(0, 2, 1)
        optimizer.zero_grad(set_to_none=True)
        prediction = model(
            hidden_states=packed,
            timestep=timesteps / 1000,
            guidance=None,
            encoder_hidden_states=prompt_embeds,
            txt_ids=text_ids,
            img_ids=image_ids,
            return_dict=False,
        )[0]
        prediction = prediction[:, : packed.size(1)]
        prediction = _unpacked(prediction, image_ids, latents.shape[-2:])
        weighting = torch.ones_like(sigmas)
        target = noise - latents
        error = weighting.float() * (prediction.float() - target.float()) ** 2
        loss = torch.mean(error.reshape(batch, -1), 1).mean()
        del error
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if after:
            after(number)
        loss = loss.detach()
        losses.append(loss)
        yield read()
        if number == steps[max(len(steps) - EVALUATE_BEFORE_LAST, 1) - 1]:
            evaluate()


def train_autocast(
    model: Any, kind: DenoiserKind, batch: Batch, optimizer_name: str, steps: Sequence[int], read: Read
) -> Iterator[Reading]:
    """Adapter training of a denoiser alone under bf16 autocast, latents and embeddings coming from a cache.

    Gradients stay allocated between steps, as `zero_grad(set_to_none=False)` leaves them.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(optimizer_name, parameters)
    for _ in steps:
        inputs = kind.inputs(batch)
        latents, noise, target = (_like_latents(batch, kind) for _ in range(3))
        with torch.autocast(latents.device.type, dtype=torch.bfloat16):
            prediction = _first(model(**inputs, return_dict=False))
            if kind.learned_variance:
                prediction = prediction.chunk(2, dim=1)[0]
            loss = F.mse_loss(prediction.float(), _shaped(target, prediction).float(), reduction="none")
            loss = loss.mean(dim=list(range(1, loss.ndim))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        yield read()
        del latents, noise


def _image_ids(latents: torch.Tensor) -> torch.Tensor:
    batch, _, height, width = latents.shape
    axes = (torch.arange(1), torch.arange(height), torch.arange(width), torch.arange(1))
    return torch.cartesian_prod(*axes).unsqueeze(0).expand(batch, -1, -1)


def _unpacked(tokens: torch.Tensor, ids: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """(B, H*W, C) back to (B, C, H, W) by scattering each token to its place, as the pipeline does."""
    pictures = []
    for data, place in zip(tokens, ids, strict=True):
        flat = place[:, 1].to(torch.int64) * size[1] + place[:, 2].to(torch.int64)
        out = torch.zeros((size[0] * size[1], data.shape[1]), device=data.device, dtype=data.dtype)
        out.scatter_(0, flat.unsqueeze(1).expand(-1, data.shape[1]), data)
        pictures.append(out.view(*size, data.shape[1]).permute(2, 0, 1))
    return torch.stack(pictures, dim=0)


def _like_latents(batch: Batch, kind: DenoiserKind) -> torch.Tensor:
    latents: torch.Tensor = batch.make(batch.size, kind.latent_channels, batch.height, batch.width)
    return latents


def _first(output: Any) -> Any:
    """The prediction of a denoiser, stacked where it gives a list of pictures."""
    prediction: Any = output[0] if isinstance(output, tuple) else output
    return torch.stack(prediction) if isinstance(prediction, list) else prediction


def _shaped(target: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    return target.reshape(prediction.shape)
