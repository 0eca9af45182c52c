"""What the U-Net predicts and what it should: noise or velocity. Owns the call, per family; keeps no
state."""

import torch
from diffusers import DDPMScheduler
from torch import Tensor

from autotune.errors import ModelError
from autotune.ladder.plan import Size
from trainer.families.load import Components
from trainer.families.text import Conditioning


def predict_noise(
    components: Components,
    noisy_latents: Tensor,
    timesteps: Tensor,
    conditioning: Conditioning,
    time_ids: Tensor | None = None,
) -> Tensor:
    """The U-Net's prediction (B, 4, h, w) for `noisy_latents` at `timesteps` (B,); SDXL needs `time_ids`
    (B, 6).

    Inputs are taken in the U-Net's own precision; what autocast makes of them is the caller's choice.
    """
    dtype = components.unet.conv_in.weight.dtype
    added = None
    if conditioning.pooled is not None:
        added = {"text_embeds": conditioning.pooled.to(dtype), "time_ids": time_ids}
    prediction: Tensor = components.unet(
        noisy_latents.to(dtype),
        timesteps,
        encoder_hidden_states=conditioning.hidden.to(dtype),
        added_cond_kwargs=added,
        return_dict=False,
    )[0]
    return prediction


def training_target(scheduler: DDPMScheduler, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
    """What the prediction is compared with: `noise`, or the velocity for a v-prediction model."""
    kind = scheduler.config.prediction_type
    if kind == "epsilon":
        return noise
    if kind == "v_prediction":
        velocity: Tensor = scheduler.get_velocity(latents, noise, timesteps)
        return velocity
    raise ModelError(f"the model predicts {kind!r}.", "Only epsilon and v_prediction models can be trained.")


def time_ids_for(original_size: Size, crop_top_left: tuple[int, int], target_size: Size) -> Tensor:
    """SDXL's six numbers as (1, 6) in float32: original height and width, crop top and left, target height
    and width.

    Sizes are (width, height) in pixels, as everywhere else here; SDXL's own order is height first.
    """
    (width, height), (target_width, target_height) = original_size, target_size
    return torch.tensor([[height, width, *crop_top_left, target_height, target_width]], dtype=torch.float32)
