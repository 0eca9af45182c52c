"""A picture from a prompt with the very modules in training. Owns the sampling loop and the modules' turns.

No second pipeline is loaded: text encoders, U-Net and VAE take turns on the device, one at a time, so that
sampling needs less memory than training. It must leave no trace: modules, modes and random state end as
they were.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from diffusers import DDIMScheduler
from PIL import Image
from torch import Tensor, nn

from autotune.device.session import DeviceSession
from autotune.errors import ConfigError
from autotune.ladder.plan import Size
from trainer.families.denoise import predict_noise, time_ids_for
from trainer.families.load import Components
from trainer.families.text import Conditioning, encode_prompts
from trainer.families.vae import decode_latents

GUIDANCE = 7.5


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
    guidance: float = GUIDANCE,
    check: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Image.Image:
    """A picture of `size` (width, height; multiples of 8) after `steps` DDIM steps; equal seeds give equal
    noise.

    Called inside the device's scope. `resident` are the modules that are on the device now: they step aside
    for each other's turn and are back at the end. Errors as `decode_latents`, and torch.OutOfMemoryError.
    """
    _check(size, steps)
    # Painting is a function of its own: what it made must be gone when the resident models come back.
    with torch.no_grad(), _left_as_found(components, device, resident):
        return _paint(
            components, (prompt, negative_prompt), size, steps, seed, device, clip_skip, guidance, check, progress
        )


def _check(size: Size, steps: int) -> None:
    if any(side % 8 or side < 64 for side in size):
        raise ConfigError(
            f"a sample of {size[0]}x{size[1]} pixels can't be made.", "Use multiples of 8 from 64 on."
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
        wanted, unwanted = (encode_prompts(components, [prompt], clip_skip) for prompt in prompts)
    with _turn(device, components.unet):
        latents = _denoise(components, wanted, unwanted, size, steps, seed, device, guidance, progress)
    with _turn(device, components.vae):
        pixels = decode_latents(components.vae, latents, check=check)
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


def _denoise(
    components: Components,
    wanted: Conditioning,
    unwanted: Conditioning,
    size: Size,
    steps: int,
    seed: int,
    device: DeviceSession,
    guidance: float,
    progress: Callable[[int, int], None],
) -> Tensor:
    with device.host():
        scheduler = _sampler(components, steps)
    latents, time_ids = _start(components, size, seed, device)
    for done, timestep in enumerate(scheduler.timesteps, 1):
        batch_timestep = device.place(timestep.reshape(1))
        # One after the other, not as a batch of two: half the activations, for sampling must not be what
        # runs out of memory.
        kept = predict_noise(components, latents, batch_timestep, wanted, time_ids).float()
        dropped = predict_noise(components, latents, batch_timestep, unwanted, time_ids).float()
        guided = dropped + guidance * (kept - dropped)
        latents = scheduler.step(guided, int(timestep), latents, return_dict=False)[0]
        progress(done, steps)
    return latents


def _start(components: Components, size: Size, seed: int, device: DeviceSession) -> tuple[Tensor, Tensor | None]:
    """The first latents, pure noise from the seed, and SDXL's time ids of an uncropped picture."""
    channels = components.unet.config.in_channels
    with device.host():
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn((1, channels, size[1] // 8, size[0] // 8), generator=generator)
        time_ids = time_ids_for(size, (0, 0), size) if components.family == "sdxl" else None
    return device.place(noise), None if time_ids is None else device.place(time_ids)


def _sampler(components: Components, steps: int) -> DDIMScheduler:
    """DDIM on the training schedule. A schedule of zero terminal SNR must start at its last step
    (arXiv:2305.08891)."""
    config = components.scheduler.config
    zero_snr = bool(config.get("rescale_betas_zero_snr"))
    scheduler = DDIMScheduler.from_config(
        config,
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
        timestep_spacing="trailing" if zero_snr else "leading",
    )
    scheduler.set_timesteps(steps)
    return scheduler


def _to_image(device: DeviceSession, pixels: Tensor) -> Image.Image:
    levels = ((pixels[0] + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    with device.host():
        array = device.evict(levels).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(array)
