"""A component's module from the name of its class and its config, of diffusers or transformers.

Owns which classes of transformers are text encoders here, with their config classes. Reads no file and no weight.
"""

from collections.abc import Mapping
from typing import Any

import diffusers
import transformers
from torch import nn

Config = Mapping[str, Any]

_TEXT_CONFIGS = {
    "CLIPTextModel": "CLIPTextConfig",
    "CLIPTextModelWithProjection": "CLIPTextConfig",
    "T5EncoderModel": "T5Config",
    "UMT5EncoderModel": "UMT5Config",
    "Qwen3Model": "Qwen3Config",
    "Qwen2_5_VLTextModel": "Qwen2_5_VLTextConfig",
}
# A text encoder that isn't trained must say the same of a caption each time, in whichever mode it is. And T5's
# encoder has one embedding under two names, whatever `tie_word_embeddings` says of the head, which it lacks.
_T5 = {"dropout_rate": 0.0, "tie_word_embeddings": True}
_ALWAYS = {"T5EncoderModel": _T5, "UMT5EncoderModel": _T5}


def make_part(kind: str, config: Config) -> nn.Module:
    """A module of the class called `kind` with the figures of `config`, with weights as the class starts them, on
    the device that is the default now."""
    if kind in _TEXT_CONFIGS:
        config_class: Any = getattr(transformers, _TEXT_CONFIGS[kind])
        figures = config_class.from_dict({**config, **_ALWAYS.get(kind, {})})
        encoder: nn.Module = getattr(transformers, kind)(figures)
        return encoder
    part: nn.Module = getattr(diffusers, kind).from_config(dict(config))
    return part
