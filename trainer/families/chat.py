"""Chat models (Qwen3) as text encoders: what of which layer is read. Owns no weights and no choice of layers."""

from collections.abc import Sequence

from torch import Tensor

from trainer.families.components import Components
from trainer.families.words import chat_prompts, word_ids


def chat_layers(
    components: Components, captions: Sequence[str], layers: Sequence[int], length: int, *, thinking: bool
) -> tuple[list[Tensor], tuple[int, ...]]:
    """The hidden states (B, `length`, D) before the `layers` (negative: from the end), of `captions` in the chat
    template, by the first text encoder; and how many tokens of each are no padding."""
    encoder, tokenizer = components.text_encoders[0], components.tokenizers[0]
    prompts = chat_prompts(tokenizer, captions, thinking=thinking)
    ids, mask, lengths = word_ids(tokenizer, prompts, length)
    output = encoder(
        input_ids=ids.to(encoder.device),
        attention_mask=mask.to(encoder.device),
        output_hidden_states=True,
        use_cache=False,
    )
    return [output.hidden_states[layer] for layer in layers], lengths
