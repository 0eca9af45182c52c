"""The tensor names of a LoRA file: what follows a module's name. Owns the two layouts in use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LoraLayout:
    """The endings of a module's two weights and its alpha; without one, the scale is in the second weight, since
    readers of the layout take alpha for equal to the rank."""

    down: str
    up: str
    alpha: str | None


KOHYA = LoraLayout(".lora_down.weight", ".lora_up.weight", ".alpha")
PEFT = LoraLayout(".lora_A.weight", ".lora_B.weight", None)
