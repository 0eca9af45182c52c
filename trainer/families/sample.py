"""A picture from a prompt with the very modules in training. Owns the sampling loop and the modules' turns.

No second pipeline is loaded: text encoders, denoiser and VAE take turns on the device, one at a time, so that
sampling needs less memory than training. It must leave no trace: modules, modes and random state end as
they were.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from PIL import Image
from torch import Tensor, nn

from autotune.device.session import DeviceSession
from autotune.errors import ConfigError
from autotune.ladder.plan import Size
from trainer.families.components import Components
from trainer.families.conditioning import Conditioning
from trainer.families.denoise import predict_noise
from trainer.families.family import get_family
from trainer.families.text import encode_prompts
from trainer.families.vae import decode_latents


def sample_image(
    components: Components,
    prompt: str,
    size: Size,
    steps: int,
    seed: int,
    device: DeviceSession,
    *,
    resident: Sequence[nn.Module] = (),
    negative_prompt: str = "",
    clip_skip: int | None = None,
    guidance: float | None = None,
    check: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Image.Image:
    """A picture of `size` (width, height; multiples of the family's step) after `steps` steps; equal seeds give
    equal noise. `guidance` is the family's usual unless given; at 1 nothing is guided.

    Called inside the device's scope. `resident` are the modules that are on the device now: they step aside
    for each other's turn and are back at the end. Errors as `decode_latents`, and torch.OutOfMemoryError.
    """
    family = get_family(components.family)
    guidance = family.guidance if guidance is None else guidance
    _check(size, steps, family.size_step)
    # Painting is a function of its own: what it made must be gone when the resident models come back.
    with torch.no_grad(), _left_as_found(components, device, resident):
        return _paint(
            components, (prompt, negative_prompt), size, steps, seed, device, clip_skip, guidance, check, progress
        )


def _check(size: Size, steps: int, step_pixels: int) -> None:
    if any(side % step_pixels or side < 64 for side in size):
        raise ConfigError(
            f"a sample of {size[0]}x{size[1]} pixels can't be made.", f"Use multiples of {step_pixels} from 64 on."
        )
    if not 1 <= steps <= 999:
        raise ConfigError(f"sample_steps {steps} is outside 1..999.", "Use about 20.")


@contextmanager
def _left_as_found(components: Components, device: DeviceSession, resident: Sequence[nn.Module]) -> Iterator[None]:
    modes = {part: part.training for module in components.modules for part in module.modules()}
    try:
        for module in resident:
            device.evict(module)
        device.empty_cache()  # training's cached segments fit no picture's tensors: both would be reserved
        for module in components.modules:
            module.eval()
        yield
    except torch.OutOfMemoryError as error:
        # Its frames hold what sampling had made, which would take the room of the models that come back now.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        for part, training in modes.items():
            part.training = training
        device.empty_cache()
        for module in resident:
            device.place(module)


def _paint(
    components: Components,
    prompts: tuple[str, str],
    size: Size,
    steps: int,
    seed: int,
    device: DeviceSession,
    clip_skip: int | None,
    guidance: float,
    check: bool,
    progress: Callable[[int, int], None],
) -> Image.Image:
    with _turn(device, *components.text_encoders):
        used = prompts if guidance != 1 else prompts[:1]
        told = [encode_prompts(components, [prompt], clip_skip) for prompt in used]
    with _turn(device, components.denoiser):
        latents = _denoise(components, told, size, steps, seed, device, guidance, progress)
    with _turn(device, components.vae):
        pixels = decode_latents(components.vae, latents, codec=get_family(components.family).codec, check=check)
    return _to_image(device, pixels)


@contextmanager
def _turn(device: DeviceSession, *modules: nn.Module) -> Iterator[None]:
    """`modules` are on the device inside, and off it again afterwards."""
    try:
        for module in modules:
            device.place(module)
        yield
    finally:
        for module in modules:
            device.evict(module)
        device.empty_cache()  # what this turn leaves fits no tensor of the next: SDXL's VAE would add 4 GB to it


def _denoise(
    components: Components,
    told: Sequence[Conditioning],
    size: Size,
    steps: int,
    seed: int,
    device: DeviceSession,
    guidance: float,
    progress: Callable[[int, int], None],
) -> Tensor:
    family = get_family(components.family)
    with device.host():
        sampler = family.rule.sampler(components.scheduler, steps)
    latents, size_ids = _start(components, size, seed, device)
    for number, level in enumerate(sampler.levels):
        batch_level = device.place(level.reshape(1))
        # One after the other, not as a batch of two: half the activations, for sampling must not be what
        # runs out of memory.
        wanted, *unwanted = (predict_noise(components, latents, batch_level, c, size_ids).float() for c in told)
        guided = unwanted[0] + guidance * (wanted - unwanted[0]) if unwanted else wanted
        latents = sampler.step(number, guided, latents)
        progress(number + 1, steps)
    return latents


def _start(components: Components, size: Size, seed: int, device: DeviceSession) -> tuple[Tensor, Tensor | None]:
    """The first latents, pure noise from the seed, and the size numbers of an uncropped picture."""
    family = get_family(components.family)
    with device.host():
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn((1, *family.latent_shape(components, size)), generator=generator)
        size_ids = family.size_ids(size, (0, 0), size)
    return device.place(noise), None if size_ids is None else device.place(size_ids)


def _to_image(device: DeviceSession, pixels: Tensor) -> Image.Image:
    levels = ((pixels[0] + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    with device.host():
        array = device.evict(levels).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(array)
