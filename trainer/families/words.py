"""Tokenizers of the large text encoders (T5, Qwen, Gemma): the model's own, or one that only counts.

None is shipped: their vocabularies take megabytes, and ids matter to nobody where there are no weights. Owns the
stand-in, whose ids have the right range, length and padding. It must never be used with a model's own weights.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from autotune.errors import ModelError
from trainer.families.components import Components, TextEncoder, Tokenizer

_CHARACTERS = 4  # of English text in a token of these vocabularies, about
_RESERVED = 2  # padding and end


@dataclass
class Batch:
    """Ids and mask, both (B, L)."""

    input_ids: Tensor
    attention_mask: Tensor


@dataclass(frozen=True)
class CountingTokenizer:
    """Every four characters are one token, whose id is a hash; padding is id 0 at the end, id 1 ends a caption."""

    vocabulary: int

    def __call__(
        self, text: list[str], *, padding: str, max_length: int, truncation: bool, return_tensors: str
    ) -> Batch:
        """Ids and mask (B, max_length) on the host."""
        rows = [[*self._ids(caption)[: max_length - 1], 1] for caption in text]
        ids = torch.tensor([row + [0] * (max_length - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (max_length - len(row)) for row in rows])
        return Batch(ids, mask)

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        """The caption between marks, as a chat model's template puts it."""
        return f"<|im_start|>user\n{messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n"

    def _ids(self, caption: str) -> list[int]:
        pieces = [caption[start : start + _CHARACTERS] for start in range(0, len(caption), _CHARACTERS)]
        return [zlib.crc32(piece.encode()) % (self.vocabulary - _RESERVED) + _RESERVED for piece in pieces]


def words_tokenizer(encoder: TextEncoder, folder: Path | None, name: str) -> Tokenizer:
    """The tokenizer `name` of the model in `folder`, padding at the end; without a folder one that only counts.

    Raises ModelError when it can't be read, or has more tokens than `encoder`.
    """
    if folder is None:
        return CountingTokenizer(encoder.config.vocab_size)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder / name, local_files_only=True, padding_side="right")
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise ModelError(f"the tokenizer in {folder / name} can't be read: {error}.", _WAY_OUT) from None
    if len(tokenizer) > encoder.config.vocab_size:
        sizes = f"{len(tokenizer):,} tokens, and the text encoder knows {encoder.config.vocab_size:,}"
        raise ModelError(f"the tokenizer in {folder / name} has {sizes}.", _WAY_OUT)
    found: Tokenizer = tokenizer
    return found


def word_ids(tokenizer: Tokenizer, captions: Sequence[str], length: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Ids and mask (B, length) of `captions` on the host, and how many tokens of each are no padding."""
    batch = tokenizer(
        list(captions), padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    )
    return batch.input_ids, batch.attention_mask, tuple(batch.attention_mask.sum(dim=1).tolist())


def masked_hidden(components: Components, captions: Sequence[str], length: int) -> Tensor:
    """The first text encoder's last hidden states (B, `length`, D) of `captions`, with zeros for padding."""
    encoder = components.text_encoders[0]
    ids, mask, _ = word_ids(components.tokenizers[0], captions, length)
    shown = mask.to(encoder.device)
    hidden: Tensor = encoder(ids.to(encoder.device), attention_mask=shown).last_hidden_state
    return hidden * shown.unsqueeze(-1)


def chat_prompts(tokenizer: Any, captions: Sequence[str], *, thinking: bool) -> list[str]:
    """`captions` as the first word of a user to a chat model, in the tokenizer's own template."""
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": caption}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        for caption in captions
    ]


_WAY_OUT = "Download that folder of the model again."
