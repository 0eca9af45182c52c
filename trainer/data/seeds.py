"""Per-sample randomness: seeds and draws that depend on (seed, step, sample) and on nothing else.

Owns the derivation of seeds and what is drawn from them on the host: flips and caption changes. Must never
use a global generator, the order of calls or the batch split: a sample keeps its draws however its batch is
cut.
"""

import hashlib
from typing import TYPE_CHECKING

from trainer.config.schema import TrainConfig

if TYPE_CHECKING:
    from trainer.data.samples import Sample

_SEED_BITS = 63


def sample_seed(seed: int, step: int, sample_index: int, purpose: str) -> int:
    """The 63-bit seed of one sample at one step for one `purpose` (`noise`, `timestep`, `flip`, `caption`).

    Stable over Python versions, machines and processes (BLAKE2b of the four values); 0 <= seed < 2**63, so
    that every generator, torch's included, accepts it.
    """
    return _hash_to_int(f"{seed}/{step}/{sample_index}/{purpose}")


def draw_uniform(seed: int, purpose: str) -> float:
    """A number in [0, 1) that depends on `seed` and `purpose` alone."""
    return (_hash_to_int(f"{seed}/{purpose}") >> 10) / (1 << (_SEED_BITS - 10))


def flip_for(config: TrainConfig, seed: int) -> bool:
    """Whether the picture is mirrored: half of the time with flip_aug, never without it."""
    return config.flip_aug and draw_uniform(seed, "flip") < 0.5


def caption_for(sample: "Sample", config: TrainConfig, seed: int) -> str:
    """The caption to train `sample` with, after caption_dropout_rate, shuffle_caption and keep_tokens.

    Dropout gives the empty caption. Shuffling reorders the comma-separated tags after the first
    `keep_tokens`. `seed` is the sample's seed for the purpose `caption`: the same seed gives the same
    caption.
    """
    if draw_uniform(seed, "caption dropout") < config.caption_dropout_rate:
        return ""
    return _shuffle_tags(sample.caption, config.keep_tokens, seed) if config.shuffle_caption else sample.caption


def _shuffle_tags(caption: str, keep_tokens: int, seed: int) -> str:
    tags = [tag.strip() for tag in caption.split(",")]
    kept, rest = tags[:keep_tokens], tags[keep_tokens:]
    order = sorted(range(len(rest)), key=lambda place: _hash_to_int(f"{seed}/tag/{place}"))
    return ", ".join(kept + [rest[place] for place in order])


def _hash_to_int(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)
