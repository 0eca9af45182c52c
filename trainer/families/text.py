"""Captions to conditioning, by the family's own rule. Owns nothing but the call."""

from collections.abc import Sequence

from trainer.families.components import Components
from trainer.families.conditioning import Conditioning
from trainer.families.family import get_family

__all__ = ["Conditioning", "encode_prompts"]


def encode_prompts(components: Components, captions: Sequence[str], clip_skip: int | None = None) -> Conditioning:
    """Encode `captions` with the text encoders, on the device where these are. Errors as the family's."""
    return get_family(components.family).encode_prompts(components, captions, clip_skip)
