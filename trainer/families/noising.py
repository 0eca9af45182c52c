"""How latents are made noisy, what the denoiser should answer, and the way back from noise to a picture.

Owns the two rules in use, DDPM (noise or velocity) and flow matching. Draws nothing at random: a sample's
timestep comes in as a number.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from autotune.errors import ModelError
from trainer.loss import min_snr_weights

TIMESTEPS = 1000  # of every published schedule here


class Sampler(Protocol):
    """The way from noise to latents in a given number of steps."""

    levels: Tensor  # (steps,), on the host: the noise level that the denoiser is told at each step

    def step(self, number: int, prediction: Tensor, latents: Tensor) -> Tensor:
        """The latents after step `number` (from 0), given the denoiser's float32 `prediction` for `latents`."""
        ...


class NoiseRule(Protocol):
    """A rule of training and sampling; `schedule` is the figures that it reads, a scheduler of diffusers."""

    prediction_type: str | None  # what modelspec calls it; None where the schedule tells

    def schedule(self, config: Mapping[str, Any]) -> Any:
        """The figures in a scheduler's `config`; absent ones are the rule's usual."""
        ...

    def levels(self, schedule: Any, timesteps: Tensor) -> Tensor:
        """Noise levels (B,) of uniformly drawn `timesteps` (B,) in [0, num_train_timesteps), on the host."""
        ...

    def add_noise(self, schedule: Any, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """`latents` (B, C, h, w) made noisy at `levels` (B,), in float32."""
        ...

    def target(self, schedule: Any, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """What the prediction for the noisy latents is compared with."""
        ...

    def min_snr_weights(self, schedule: Any, levels: Tensor, gamma: float) -> Tensor | None:
        """Weights (B,) of the losses that cap the signal-to-noise ratio at `gamma`; None where there are none."""
        ...

    def sampler(self, schedule: Any, steps: int) -> Sampler:
        """A sampler of `steps` steps, made on the host."""
        ...

    def bring_home(self, schedule: Any, move: Callable[[Tensor], Tensor]) -> None:
        """`move` (to the host) what training left of the schedule on a device."""
        ...


class DdpmRule:
    """Noise by a table of 1,000 timesteps; the denoiser predicts the noise, or the velocity."""

    prediction_type: str | None = None

    def __init__(self, figures: Mapping[str, Any]) -> None:
        """`figures` are those of the family's published schedule."""
        self._figures = {**figures, "rescale_betas_zero_snr": False}

    def schedule(self, config: Mapping[str, Any]) -> DDPMScheduler:
        """See NoiseRule."""
        figures = {name: config.get(name, default) for name, default in self._figures.items()}
        return DDPMScheduler(**figures, clip_sample=False)

    def levels(self, schedule: DDPMScheduler, timesteps: Tensor) -> Tensor:
        """The timesteps themselves."""
        return timesteps

    def add_noise(self, schedule: DDPMScheduler, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """See NoiseRule."""
        noisy: Tensor = schedule.add_noise(latents, noise, levels)
        return noisy

    def target(self, schedule: DDPMScheduler, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """`noise`, or the velocity for a v-prediction model."""
        kind = schedule.config.prediction_type
        if kind == "epsilon":
            return noise
        if kind == "v_prediction":
            velocity: Tensor = schedule.get_velocity(latents, noise, levels)
            return velocity
        raise ModelError(f"the model predicts {kind!r}.", "Only epsilon and v_prediction models can be trained.")

    def min_snr_weights(self, schedule: DDPMScheduler, levels: Tensor, gamma: float) -> Tensor:
        """Hang et al. 2023 (arXiv:2303.09556)."""
        velocity = schedule.config.prediction_type == "v_prediction"
        return min_snr_weights(schedule.alphas_cumprod, levels, gamma, v_prediction=velocity)

    def sampler(self, schedule: DDPMScheduler, steps: int) -> "Sampler":
        """DDIM on the training schedule."""
        return _DdimSampler(schedule, steps)

    def bring_home(self, schedule: DDPMScheduler, move: Callable[[Tensor], Tensor]) -> None:
        """diffusers moves the table to where it is used, for good."""
        schedule.alphas_cumprod = move(schedule.alphas_cumprod)


class FlowRule:
    """Flow matching: noisy = (1 - s) x + s noise, and the denoiser predicts the velocity, noise - x."""

    prediction_type: str | None = "flow"

    def __init__(self, shift: float = 1.0) -> None:
        """`shift` moves levels towards noise where the schedule itself names none."""
        self._shift = shift

    def schedule(self, config: Mapping[str, Any]) -> FlowMatchEulerDiscreteScheduler:
        """See NoiseRule."""
        count = config.get("num_train_timesteps", TIMESTEPS)
        return FlowMatchEulerDiscreteScheduler(count, shift=config.get("shift", self._shift))

    def levels(self, schedule: FlowMatchEulerDiscreteScheduler, timesteps: Tensor) -> Tensor:
        """Logit-normal levels (Esser et al. 2024, arXiv:2403.03206), shifted as the schedule says: float32 in
        (0, 1)."""
        share = (timesteps.double() + 0.5) / schedule.config.num_train_timesteps
        return _shifted(torch.sigmoid(torch.special.ndtri(share)), schedule.config.shift).float()

    def add_noise(self, schedule: Any, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """See NoiseRule."""
        share = levels.reshape(-1, 1, 1, 1)
        return (1 - share) * latents + share * noise

    def target(self, schedule: Any, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """The velocity from the picture to the noise."""
        return noise - latents

    def min_snr_weights(self, schedule: Any, levels: Tensor, gamma: float) -> None:
        """There are none: the velocity's loss is weighted by the choice of levels."""
        return

    def sampler(self, schedule: FlowMatchEulerDiscreteScheduler, steps: int) -> "Sampler":
        """Euler steps of equal length before the shift."""
        return _EulerSampler(schedule.config.shift, steps)

    def bring_home(self, schedule: Any, move: Callable[[Tensor], Tensor]) -> None:
        """Nothing of it goes anywhere."""


class _DdimSampler:
    """A schedule of zero terminal SNR must start at its last step (arXiv:2305.08891)."""

    def __init__(self, schedule: DDPMScheduler, steps: int) -> None:
        zero_snr = bool(schedule.config.get("rescale_betas_zero_snr"))
        self._scheduler = DDIMScheduler.from_config(
            schedule.config,
            clip_sample=False,
            set_alpha_to_one=False,
            steps_offset=1,
            timestep_spacing="trailing" if zero_snr else "leading",
        )
        self._scheduler.set_timesteps(steps)
        self.levels: Tensor = self._scheduler.timesteps

    def step(self, number: int, prediction: Tensor, latents: Tensor) -> Tensor:
        stepped: Tensor = self._scheduler.step(prediction, int(self.levels[number]), latents, return_dict=False)[0]
        return stepped


class _EulerSampler:
    """From level 1 to 0; the lengths of the steps are kept as numbers, so that none is read from a device."""

    def __init__(self, shift: float, steps: int) -> None:
        evenly = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        levels = _shifted(evenly, shift)
        self._levels = levels.tolist()
        self.levels = levels[:-1].float()

    def step(self, number: int, prediction: Tensor, latents: Tensor) -> Tensor:
        length: float = self._levels[number + 1] - self._levels[number]
        return latents + length * prediction


def _shifted(levels: Tensor, shift: float) -> Tensor:
    return shift * levels / (1 + (shift - 1) * levels)
