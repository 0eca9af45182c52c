"""PixArt-Sigma: a transformer that predicts noise, told of captions by T5. Owns its call. Stateless."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.families.components import Components, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import TIMESTEPS, DdpmRule
from trainer.families.transformer import TransformerFamily, token_mask, zeros
from trainer.families.words import word_ids

_LENGTH = 300
_SCHEDULE = {
    "num_train_timesteps": TIMESTEPS,
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "prediction_type": "epsilon",
}


@dataclass(frozen=True)
class PixArt(TransformerFamily):
    """PixArt-Sigma, whose answer holds a variance that training leaves out."""

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """T5's last hidden states of 300 tokens, of which padding is not attended to."""
        t5 = components.text_encoders[0]
        ids, mask, lengths = word_ids(components.tokenizers[0], captions, _LENGTH)
        hidden = t5(ids.to(t5.device), attention_mask=mask.to(t5.device)).last_hidden_state
        return Conditioning(hidden, lengths=lengths)

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family."""
        width = components.denoiser.config.caption_channels
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
        dtype = base_dtype(components.denoiser)
        answer: Tensor = components.denoiser(
            noisy.to(dtype),
            encoder_hidden_states=conditioning.hidden.to(dtype),
            timestep=levels.expand(len(noisy)),
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            encoder_attention_mask=token_mask(conditioning, noisy.device).long(),
            return_dict=False,
        )[0]
        return answer[:, : noisy.shape[1]]


PIXART = PixArt(
    name="pixart",
    title="PixArt-Sigma",
    variants=("pixart-sigma",),
    parts={
        "transformer": "PixArtTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "T5EncoderModel",
    },
    blocks=("transformer_blocks",),
    architecture="pixart-sigma",
    guidance=4.5,
    rule=DdpmRule(_SCHEDULE),
    vae_needs_float32=True,
)

FAMILIES: dict[str, Family] = {"pixart": PIXART}
