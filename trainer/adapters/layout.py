"""The tensor names of a LoRA file: what follows a module's name. Owns the two layouts in use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LoraLayout:
    """The endings of a module's two weights and its alpha."""

    down: str
    up: str
    alpha: str = ".alpha"


KOHYA = LoraLayout(".lora_down.weight", ".lora_up.weight")
PEFT = LoraLayout(".lora_A.weight", ".lora_B.weight")
