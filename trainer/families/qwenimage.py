"""Qwen-Image: a transformer over 2x2 squares of latents, told of captions by the text half of Qwen2.5-VL.

Owns its template, its call and its positions. Stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.families.components import Components, base_dtype
from trainer.families.conditioning import Conditioning
from trainer.families.family import Family
from trainer.families.noising import FlowRule
from trainer.families.transformer import TransformerFamily, pack, token_mask, unpack, zeros
from trainer.families.video import FrameCodec
from trainer.families.words import word_ids

_LENGTH = 512
# The instruction that the model was trained with. Its own tokens, 34 with the model's tokenizer, are left out.
_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
_TEMPLATE_LENGTH = 34


@dataclass(frozen=True)
class QwenImage(TransformerFamily):
    """Qwen-Image. The sequence is as long as the longest caption of a batch."""

    def encode_prompts(
        self, components: Components, captions: Sequence[str], clip_skip: int | None
    ) -> Conditioning:
        """The last hidden states of at most 512 tokens after the instruction."""
        encoder, tokenizer = components.text_encoders[0], components.tokenizers[0]
        prompts = [_TEMPLATE.format(caption) for caption in captions]
        ids, mask, lengths = word_ids(tokenizer, prompts, _TEMPLATE_LENGTH + _LENGTH)
        output = encoder(input_ids=ids.to(encoder.device), attention_mask=mask.to(encoder.device), use_cache=False)
        hidden = output.last_hidden_state[:, _TEMPLATE_LENGTH:]
        return Conditioning(hidden, lengths=tuple(max(1, length - _TEMPLATE_LENGTH) for length in lengths))

    def blank_conditioning(
        self, components: Components, batch: int, device: torch.device, dtype: torch.dtype
    ) -> Conditioning:
        """See Family; every caption is as long as may be."""
        width = components.denoiser.config.joint_attention_dim
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
        batch, _, height, width = noisy.shape
        assert conditioning.lengths is not None
        longest, shortest = max(conditioning.lengths), min(conditioning.lengths)
        mask = token_mask(conditioning, noisy.device)[:, :longest] if shortest < longest else None
        tokens: Tensor = components.denoiser(
            hidden_states=pack(noisy.to(dtype)),
            timestep=levels.to(dtype).expand(batch),
            encoder_hidden_states=conditioning.hidden[:, :longest].to(dtype),
            encoder_hidden_states_mask=mask,
            img_shapes=[[(1, height // 2, width // 2)]] * batch,
            return_dict=False,
        )[0]
        return unpack(tokens, height, width)


QWENIMAGE = QwenImage(
    name="qwenimage",
    title="Qwen-Image",
    variants=("qwen-image",),
    parts={
        "transformer": "QwenImageTransformer2DModel",
        "vae": "AutoencoderKLQwenImage",
        "text_encoder": "Qwen2_5_VLTextModel",
    },
    blocks=("transformer_blocks",),
    architecture="qwen-image",
    guidance=4.0,
    rule=FlowRule(shift=3.0),
    codec=FrameCodec(),
)

FAMILIES: dict[str, Family] = {"qwenimage": QWENIMAGE}
