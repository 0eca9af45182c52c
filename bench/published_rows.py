"""Published statements "this fits N GB" and "this ran out", with the settings they state, as data.

Owns the transcription: one entry a statement, by the row number of the collection it comes from. What a source
leaves unsaid stays unsaid here, as every value it may have had. Must never hold a value chosen after a forecast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_CACHED = {"cache_latents": True, "cache_text_encoder_outputs": True, "sample_at_end": False}
_LATENTS = {"cache_latents": True, "cache_text_encoder_outputs": False, "sample_at_end": False}


@dataclass(frozen=True)
class Statement:
    """What a source says: on this card these settings fitted, or ran out of memory.

    `settings` are trainer settings. `unsaid` maps a setting the source leaves open to the values it may have had:
    where they give different verdicts the statement is undetermined. `adapted` says what stands in for what.
    """

    number: int
    source: str
    text: str
    family: str
    gpu: str
    fits: bool
    settings: Mapping[str, Any]
    unsaid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    adapted: str = ""
    takes_more: bool = False
    """What stands in takes more memory than what ran: then only a verdict that it fits says anything."""


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        13, "kohya sd-scripts documentation, train_SDXL-en", "SDXL LoRA fits 8 GB (10 recommended)",
        "sdxl", "rtx-3070-8gb", True,
        {"resolution": 1024, "train_batch_size": 1, "network_dim": 8, "optimizer_type": "AdamW8bit",
         "gradient_checkpointing": True, "mixed_precision": "fp16", **_CACHED},
        {"network_dim": (4, 8), "mixed_precision": ("fp16", "bf16")},
    ),
    Statement(
        14, "kohya sd-scripts issue 661", "SDXL LoRA r256, U-Net only, fits an RTX 3080 Ti",
        "sdxl", "rtx-3080-ti-12gb", True,
        {"resolution": 1024, "train_batch_size": 1, "network_dim": 256, "optimizer_type": "AdamW8bit",
         "gradient_checkpointing": True, "mixed_precision": "bf16", **_CACHED},
        adapted="AdamW8bit with fp32 adapters, which takes more than its Adafactor with bf16 ones",
        takes_more=True,
    ),
    Statement(
        15, "kohya sd-scripts issue 648", "SDXL LoRA r16 with both text encoders runs out on 12 GB",
        "sdxl", "rtx-3060-12gb", False,
        {"resolution": 1024, "train_batch_size": 2, "network_dim": 16, "optimizer_type": "AdamW8bit",
         "gradient_checkpointing": True, "mixed_precision": "fp16", "network_train_unet_only": False, **_LATENTS},
    ),
    Statement(
        16, "diffusers README_sdxl", "SDXL DreamBooth LoRA r4 takes less than 16 GB",
        "sdxl", "rtx-4080-16gb", True,
        {"resolution": 1024, "train_batch_size": 1, "network_dim": 4, "optimizer_type": "AdamW8bit",
         "gradient_checkpointing": True, "mixed_precision": "fp16", **_CACHED},
    ),
    Statement(
        17, "kohya_ss issue 1184", "SDXL LoRA fits an RTX 3080 10 GB at 1024 px, batch 2",
        "sdxl", "rtx-3080-10gb", True,
        {"resolution": 1024, "train_batch_size": 2, "network_dim": 16, "gradient_checkpointing": True,
         "mixed_precision": "fp16", **_CACHED},
        {"optimizer_type": ("AdamW", "AdamW8bit"), "network_dim": (8, 128)},
    ),
    Statement(
        18, "kohya_ss issue 2315", "SDXL LoRA at 1280 px, batch 3, takes 13 GB of 16",
        "sdxl", "rtx-4080-16gb", True,
        {"resolution": 1280, "train_batch_size": 3, "network_dim": 16, "mixed_precision": "bf16",
         "optimizer_type": "AdamW8bit", **_CACHED},
        {"gradient_checkpointing": (True, False)},
    ),
    Statement(
        19, "comfyUI-Realtime-Lora issue 22", "SDXL LoRA at batch 4 runs out on an RTX 5090",
        "sdxl", "rtx-5090-32gb", False,
        {"resolution": 1024, "train_batch_size": 4, "network_dim": 16, "mixed_precision": "bf16",
         "optimizer_type": "AdamW8bit", **_CACHED},
        {"gradient_checkpointing": (True, False)},
    ),
    Statement(
        20, "kohya_ss issue 3296", "SDXL LoRA at batch 4 fills an RTX 5090 and spills",
        "sdxl", "rtx-5090-32gb", False,
        {"resolution": 1024, "train_batch_size": 4, "network_dim": 16, "mixed_precision": "bf16",
         "optimizer_type": "AdamW", **_CACHED},
        {"gradient_checkpointing": (True, False)},
    ),
    Statement(
        21, "diffusers documentation, training/lora", "SD 1.5 LoRA r4 fits an RTX 2080 Ti",
        "sd1", "rtx-2080-ti-11gb", True,
        {"resolution": 512, "train_batch_size": 1, "network_dim": 4, "optimizer_type": "AdamW",
         "gradient_checkpointing": False, "mixed_precision": "fp16", "cache_latents": False,
         "cache_text_encoder_outputs": False, "sample_at_end": False},
    ),
    Statement(
        22, "ngwaifoong92, LoRA with diffusers", "SD 1.x LoRA r4 at batch 2 fits 12 GB",
        "sd1", "rtx-3060-12gb", True,
        {"resolution": 512, "train_batch_size": 2, "network_dim": 4, "optimizer_type": "AdamW",
         "gradient_checkpointing": False, "mixed_precision": "fp16", **_LATENTS},
    ),
    Statement(
        23, "kohya_ss issue 2474", "SD 1.5 LoRA fits a card of 5 GB",
        "sd1", "5GiB@6.1", True,
        {"resolution": 512, "train_batch_size": 1, "network_dim": 16, "optimizer_type": "AdamW8bit",
         "gradient_checkpointing": True, "mixed_precision": "fp16", **_LATENTS},
        {"network_dim": (8, 128)},
    ),
    Statement(
        24, "LoRA_Easy issue 14", "SD 1.5 LoRA at batch 6 fits 12 GB",
        "sd1", "rtx-3060-12gb", True,
        {"resolution": 512, "train_batch_size": 6, "network_dim": 16, "optimizer_type": "AdamW8bit",
         "mixed_precision": "fp16", **_LATENTS},
        {"gradient_checkpointing": (True, False), "network_train_unet_only": (True, False)},
    ),
    Statement(
        25, "kohya sd-scripts documentation, train_network", "SD 1.5 LoRA works on 8 GB",
        "sd1", "rtx-3070-8gb", True,
        {"resolution": 512, "train_batch_size": 1, "network_dim": 16, "optimizer_type": "AdamW8bit",
         "mixed_precision": "fp16", **_LATENTS},
        {"gradient_checkpointing": (True, False), "network_train_unet_only": (True, False)},
    ),
    Statement(
        26, "kohya_ss issue 1202", "SD 1.5 LoRA at 768 px in fp32 runs out on a GTX 1660 Super",
        "sd1", "6GiB@7.5", False,
        {"resolution": 768, "train_batch_size": 1, "network_dim": 16, "optimizer_type": "AdamW",
         "mixed_precision": "no", **_LATENTS},
        {"gradient_checkpointing": (True, False)},
    ),
    Statement(
        30, "kohya sd-scripts pull request 1374", "FLUX.1 LoRA r128 in bf16 takes 44.18 GB on an A6000",
        "flux1", "a6000-48gb", True,
        {"resolution": 1024, "train_batch_size": 1, "network_dim": 128, "optimizer_type": "AdamW8bit",
         "gradient_checkpointing": True, "mixed_precision": "bf16", **_CACHED},
        adapted="AdamW8bit, which takes more than its Adafactor",
        takes_more=True,
    ),
)  # fmt: skip
"""Statements about families we train. Left out, with the reason: 1, 2 (no batch size), 3 to 6, 9 and 35 (rows of
`forecast_accuracy`), 10 and 12 (fp8 base), 11 (OneTrainer's own layers), 27 and 28 (families of their own), 29 (no
validation, nf4 base), 31 and 34 (figures without a card), 32 and 33 (full fine-tuning)."""
