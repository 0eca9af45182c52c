"""The training loss, one number per sample, so that any split of a batch sums to the same."""

import torch
from torch import Tensor
from torch.nn import functional


def sample_losses(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each sample in float32: (B, C, H, W) twice -> (B,)."""
    errors = functional.mse_loss(prediction.float(), target.float(), reduction="none")
    return errors.mean(dim=(1, 2, 3))


def min_snr_weights(alphas_cumprod: Tensor, timesteps: Tensor, gamma: float, *, v_prediction: bool) -> Tensor:
    """Weights (B,) that cap the signal-to-noise ratio at `gamma` (Hang et al. 2023, arXiv:2303.09556)."""
    kept = alphas_cumprod.to(timesteps.device)[timesteps]
    ratio = kept / (1 - kept)
    capped = torch.clamp(ratio, max=gamma)
    return capped / (ratio + 1) if v_prediction else capped / ratio
