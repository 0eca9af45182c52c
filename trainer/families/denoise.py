"""What the denoiser predicts, by the family's own rule. Owns nothing but the call."""

from torch import Tensor

from trainer.families.components import Components
from trainer.families.conditioning import Conditioning
from trainer.families.family import get_family


def predict_noise(
    components: Components,
    noisy_latents: Tensor,
    levels: Tensor,
    conditioning: Conditioning,
    size_ids: Tensor | None = None,
) -> Tensor:
    """The denoiser's prediction, shaped like `noisy_latents` (B, C, h, w), at the noise `levels` (B,) of the
    family's rule; `size_ids` are those of the family (SDXL's six numbers), where it has any."""
    return get_family(components.family).predict(components, noisy_latents, levels, conditioning, size_ids)
