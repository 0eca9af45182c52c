"""TrainConfig: everything a run may be told, under one canonical (kohya-style) name per setting.

Owns names, types and defaults. Reading files, spellings and dialects live beside it; nothing here does I/O.
Defaults follow kohya sd-scripts where it has the key, but for the few that are marked.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Size = tuple[int, int]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(BaseModel):
    """One training run. Paths are as the user wrote them, made absolute against the config file's folder
    when they are relative and exist there, else against the current folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # base model
    pretrained_model_name_or_path: str
    vae: str | None = None
    clip_skip: Annotated[int, Field(ge=1, le=12)] | None = None  # SD 1.x only: take the n-th last hidden state

    # data
    train_data_dir: str
    metadata_path: str | None = None  # metadata.csv with filename,prompt
    caption_extension: str = ".txt"  # kohya: ".caption"; the GUI and people mean .txt
    resolution: tuple[Size, ...] = ((512, 512),)  # (width, height)
    enable_bucket: bool = False
    min_bucket_reso: Count = 256
    max_bucket_reso: Count = 1024
    bucket_reso_steps: Count = 64
    bucket_no_upscale: bool = False
    flip_aug: bool = False
    shuffle_caption: bool = False
    keep_tokens: Annotated[int, Field(ge=0)] = 0
    caption_dropout_rate: Share = 0.0
    cache_latents: bool = True  # kohya: False; caching is what every guide turns on
    cache_text_encoder_outputs: bool = False
    vae_batch_size: Count = 1

    # recipe
    train_batch_size: Count = 1
    gradient_accumulation_steps: Count = 1
    gradient_checkpointing: bool = False
    mixed_precision: Literal["no", "fp16", "bf16"] = "no"
    no_half_vae: bool = False
    optimizer_type: Literal["AdamW", "AdamW8bit"] = "AdamW"
    optimizer_betas: tuple[Beta, Beta] = (0.9, 0.999)
    optimizer_eps: Positive = 1e-8
    optimizer_weight_decay: NotNegative = 1e-2
    learning_rate: NotNegative = 1e-4
    unet_lr: NotNegative | None = None
    text_encoder_lr: NotNegative | None = None
    lr_scheduler: Literal[
        "constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial"
    ] = "constant"
    lr_warmup_steps: NotNegative = 0  # steps, or a share of all steps when below 1
    lr_scheduler_num_cycles: Count = 1
    lr_scheduler_power: Positive = 1.0
    max_grad_norm: NotNegative = 1.0  # 0 turns clipping off
    max_train_epochs: Count | None = None
    max_train_steps: Count = 1600  # epochs win
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42  # kohya: random
    noise_offset: NotNegative = 0.0
    min_snr_gamma: Positive | None = None
    v_parameterization: bool = False

    # network
    network_dim: Count = 4
    network_alpha: Positive = 1.0
    network_train_unet_only: bool = False
    network_train_text_encoder_only: bool = False

    # output
    output_dir: str = "output"
    output_name: str = "lora"
    save_model_as: Literal["safetensors"] = "safetensors"
    save_precision: Literal["float", "fp16", "bf16"] = "float"
    save_every_n_epochs: Count | None = None
    save_every_n_steps: Count | None = None
    sample_every_n_epochs: Count | None = None
    sample_every_n_steps: Count | None = None
    sample_at_end: bool = True  # ours: one picture at the end tells more than a loss
    sample_prompts: tuple[str, ...] = ()  # empty: the first caption
    sample_steps: Count = 20
    logging_dir: str = "logs"
    training_comment: str | None = None

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step on one process."""
        return self.train_batch_size * self.gradient_accumulation_steps

    @property
    def unet_rate(self) -> float:
        """The denoiser's learning rate: its own, else the general one."""
        return self.learning_rate if self.unet_lr is None else self.unet_lr

    @property
    def text_encoder_rate(self) -> float:
        """The text encoders' learning rate: their own, else the general one."""
        return self.learning_rate if self.text_encoder_lr is None else self.text_encoder_lr

    @property
    def trains_text_encoder(self) -> bool:
        """Whether the text encoders get LoRA layers and gradients."""
        return not self.network_train_unet_only and self.text_encoder_rate != 0

    @property
    def caches_text(self) -> bool:
        """Whether captions are encoded once: asked for, and no text encoder trains."""
        return self.cache_text_encoder_outputs and not self.trains_text_encoder

    @property
    def trains_unet(self) -> bool:
        """Whether the denoiser gets LoRA layers and gradients."""
        return not self.network_train_text_encoder_only and self.unet_rate != 0
