"""Z-Image: a transformer over one sequence of picture and caption, told of captions by a layer of Qwen3.

Owns its call, whose time runs backwards and whose answer has the other sign. Stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.families.chat import chat_layers
from trainer.families.components import Components, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import FlowRule
from trainer.families.transformer import TransformerFamily, zeros

_LENGTH = 512


@dataclass(frozen=True)
class ZImage(TransformerFamily):
    """Z-Image. Only the tokens of a caption enter the sequence, padded to a multiple of 32 by the transformer."""

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """The last but one hidden states of at most 512 tokens."""
        (hidden,), lengths = chat_layers(components, captions, (-2,), _LENGTH, thinking=True)
        return Conditioning(hidden, lengths=lengths)

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family; every caption is as long as may be."""
        width = components.denoiser.config.cap_feat_dim
        return Conditioning(zeros(batch, _LENGTH, width, device=device, dtype=dtype), lengths=(_LENGTH,) * batch)

    def predict(
        self,
        components: Components,
        noisy: Tensor,
        levels: Tensor,
        conditioning: Conditioning,
        size_ids: Tensor | None,
    ) -> Tensor:
        """See Family."""
        assert conditioning.lengths is not None
        dtype = base_dtype(components.denoiser)
        hidden = conditioning.hidden.to(dtype)
        answers: list[Tensor] = components.denoiser(
            list(noisy.to(dtype).unsqueeze(2).unbind()),
            1 - levels,
            [row[:length] for row, length in zip(hidden, conditioning.lengths, strict=True)],
            return_dict=False,
        )[0]
        return -torch.stack(answers).squeeze(2)


ZIMAGE = ZImage(
    name="zimage",
    title="Z-Image",
    variants=("z-image",),
    parts={
        "transformer": "ZImageTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "Qwen3Model",
    },
    blocks=("noise_refiner", "context_refiner", "layers"),
    architecture="z-image",
    guidance=5.0,  # the pipeline says 4 and counts from the answer to the caption
    rule=FlowRule(shift=6.0),
)

FAMILIES: dict[str, Family] = {"zimage": ZIMAGE}
