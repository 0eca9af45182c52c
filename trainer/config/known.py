"""The key names people write. Owns the tables: other names for our settings, keys we know and don't honour
yet (with what happens instead), and keys that only steer an interface or a launcher; no logic but
look-ups.

Sources: the arguments of kohya sd-scripts' train_network.py, the saved settings of the kohya_ss GUI, and the
lora-scripts-style YAML files found in public repositories.
"""

import difflib

from trainer.config.schema import TrainConfig

FIELDS = frozenset(TrainConfig.model_fields)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Other names for one of our settings, accepted in every dialect.
ALIASES: dict[str, str] = {
    **dict.fromkeys(("base_model", "base_model_path", "pretrained_model", "pretrained_model_path",
                     "model_path"), "pretrained_model_name_or_path"),
    **dict.fromkeys(("vae_path",), "vae"),
    **dict.fromkeys(("data_dir", "image_dir", "images_dir", "dataset_dir", "train_dir"), "train_data_dir"),
    **dict.fromkeys(("metadata", "metadata_file", "metadata_csv"), "metadata_path"),
    **dict.fromkeys(("caption_extention", "caption_ext"), "caption_extension"),
    **dict.fromkeys(("max_resolution", "image_size"), "resolution"),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size"), "train_batch_size"),
    **dict.fromkeys(("gradient_accumulation", "grad_accum_steps", "accumulation_steps"),
                    "gradient_accumulation_steps"),
    "use_gradient_checkpointing": "gradient_checkpointing",
    "precision": "mixed_precision",
    "optimizer": "optimizer_type",
    "weight_decay": "optimizer_weight_decay",
    "lr": "learning_rate",
    "scheduler": "lr_scheduler",
    "warmup_steps": "lr_warmup_steps",
    **dict.fromkeys(("max_norm", "clip_grad_norm"), "max_grad_norm"),
    **dict.fromkeys(("epoch", "epochs", "num_epochs", "max_epochs", "num_train_epochs"), "max_train_epochs"),
    **dict.fromkeys(("max_steps", "train_steps"), "max_train_steps"),
    "snr_gamma": "min_snr_gamma",
    **dict.fromkeys(("lora_rank", "lora_dim", "rank", "network_rank"), "network_dim"),
    "lora_alpha": "network_alpha",
    **dict.fromkeys(("output_path", "save_dir"), "output_dir"),
    **dict.fromkeys(("lora_name", "output_file"), "output_name"),
    "save_epochs": "save_every_n_epochs",
    **dict.fromkeys(("save_steps", "checkpointing_steps"), "save_every_n_steps"),
    **dict.fromkeys(("sample_prompt", "validation_prompt"), "sample_prompts"),
    "log_dir": "logging_dir",
}  # fmt: skip

# Keys known and not honoured yet: what happens instead, and the values under which nothing is lost.
KNOWN: dict[str, str] = {
    # network
    "scale_weight_norms": "weight norms are not limited",
    "network_dropout": "no dropout in the LoRA",
    "rank_dropout": "no dropout in the LoRA",
    "rank_dropout_scale": "no dropout in the LoRA",
    "module_dropout": "no dropout in the LoRA",
    "conv_dim": "3x3 convolutions get no LoRA",
    "conv_alpha": "3x3 convolutions get no LoRA",
    "block_dims": "every block has the rank network_dim",
    "block_alphas": "every block has network_alpha",
    "conv_block_dims": "3x3 convolutions get no LoRA",
    "conv_block_alphas": "3x3 convolutions get no LoRA",
    "block_lr": "every block learns at unet_lr",
    "block_lr_zero_threshold": "every block learns at unet_lr",
    "down_lr_weight": "every block learns at unet_lr",
    "mid_lr_weight": "every block learns at unet_lr",
    "up_lr_weight": "every block learns at unet_lr",
    "loraplus_lr_ratio": "both halves of a LoRA learn at one rate",
    "loraplus_unet_lr_ratio": "both halves of a LoRA learn at one rate",
    "loraplus_text_encoder_lr_ratio": "both halves of a LoRA learn at one rate",
    "network_weights": "the LoRA starts fresh",
    "lora_network_weights": "the LoRA starts fresh",
    "dim_from_weights": "the rank is network_dim",
    "base_weights": "the base model is used as it is",
    "base_weights_multiplier": "the base model is used as it is",
    "dora_wd": "a plain LoRA is trained",
    "train_norm": "norm layers are not trained",
    # memory and precision
    "full_fp16": "the LoRA stays in 32 bits, only the frozen base is in mixed_precision",
    "full_bf16": "the LoRA stays in 32 bits, only the frozen base is in mixed_precision",
    "fp8_base": "the base model stays in mixed_precision",
    "fp8_base_unet": "the base model stays in mixed_precision",
    "cpu_offload_checkpointing": "checkpoints stay on the device",
    "blocks_to_swap": "all blocks stay on the device",
    "fused_backward_pass": "backward and the optimizer step stay apart",
    "fused_optimizer_groups": "backward and the optimizer step stay apart",
    "blockwise_fused_optimizers": "backward and the optimizer step stay apart",
    "torch_compile": "nothing is compiled",
    "deepspeed": "DeepSpeed is not used",
    "no_token_padding": "captions are padded to 77 tokens",
    # data
    "reg_data_dir": "no regularisation pictures are used",
    "prior_loss_weight": "no regularisation pictures are used",
    "in_json": "captions come from train_data_dir or metadata_path",
    "dataset_config": "the pictures come from train_data_dir",
    "color_aug": "colours are not changed",
    "random_crop": "pictures are cropped in the middle",
    "face_crop_aug_range": "pictures are cropped in the middle",
    "alpha_mask": "the whole picture counts",
    "masked_loss": "the whole picture counts",
    "conditioning_data_dir": "the whole picture counts",
    "caption_tag_dropout_rate": "no tags are dropped",
    "caption_dropout_every_n_epochs": "captions are dropped only at caption_dropout_rate",
    "caption_prefix": "captions are used as written",
    "caption_suffix": "captions are used as written",
    "secondary_separator": "captions are used as written",
    "enable_wildcard": "captions are used as written",
    "weighted_captions": "captions are used as written",
    "keep_tokens_separator": "keep_tokens says how many tags stay in front",
    "shuffle_caption_per_epoch": "shuffle_caption says whether tags are shuffled",
    "max_token_length": "captions are cut at 75 tokens",
    "token_warmup_min": "all tags are used from the start",
    "token_warmup_step": "all tags are used from the start",
    "dataset_repeats": "repeats come from the folder names",
    "cache_info": "the folder is read anew each time",
    "skip_cache_check": "caches are always checked",
    "validation_split": "no pictures are held back",
    "validate_every_n_steps": "no pictures are held back",
    "validate_every_n_epochs": "no pictures are held back",
    # recipe
    "lr_scheduler_type": "lr_scheduler names the schedule",
    "lr_scheduler_args": "the schedule takes only its cycles and power",
    "lr_decay_steps": "the schedule decays to the last step",
    "lr_scheduler_timescale": "the schedule takes only its cycles and power",
    "lr_scheduler_min_lr_ratio": "the schedule ends at its own minimum",
    "learning_rate_te": "text_encoder_lr sets the rate of the text encoders",
    "learning_rate_te1": "text_encoder_lr sets the rate of the text encoders",
    "learning_rate_te2": "text_encoder_lr sets the rate of the text encoders",
    "text_encoder_lr1": "text_encoder_lr sets the rate of the text encoders",
    "text_encoder_lr2": "text_encoder_lr sets the rate of the text encoders",
    "stop_text_encoder_training": "the text encoders learn to the end",
    "stop_text_encoder_training_pct": "the text encoders learn to the end",
    "noise_offset_random_strength": "noise_offset is used as written",
    "adaptive_noise_scale": "noise_offset is used as written",
    "multires_noise_iterations": "plain noise is used",
    "ip_noise_gamma": "plain noise is used",
    "ip_noise_gamma_random_strength": "plain noise is used",
    "debiased_estimation_loss": "the loss is weighted only by min_snr_gamma",
    "scale_v_pred_loss_like_noise_pred": "the loss is weighted only by min_snr_gamma",
    "v_pred_like_loss": "the loss is weighted only by min_snr_gamma",
    "zero_terminal_snr": "the noise schedule is the model's own",
    "loss_type": "the loss is the mean squared error",
    "min_timestep": "all 1000 timesteps are drawn",
    "max_timestep": "all 1000 timesteps are drawn",
    # output and resuming
    "resume": "training starts from the first step",
    "resume_from_checkpoint": "training starts from the first step",
    "resume_from_huggingface": "training starts from the first step",
    "initial_epoch": "training starts from the first step",
    "initial_step": "training starts from the first step",
    "skip_until_initial_step": "training starts from the first step",
    "save_state": "no training state is saved for it",
    "save_state_on_train_end": "no training state is saved for it",
    "save_state_to_huggingface": "nothing is uploaded",
    "save_n_epoch_ratio": "save_every_n_epochs says when to save",
    "save_last_n_epochs": "every saved file is kept",
    "save_last_n_epochs_state": "every saved file is kept",
    "save_last_n_steps": "every saved file is kept",
    "save_last_n_steps_state": "every saved file is kept",
    "no_metadata": "metadata is always written",
    "sample_sampler": "pictures are sampled with the trainer's own sampler",
    "sample_at_first": "the first picture comes after training began",
    "validation_epochs": "sample_every_n_epochs says when to sample",
    "huggingface_repo_id": "nothing is uploaded",
    "huggingface_token": "nothing is uploaded",
    "async_upload": "nothing is uploaded",
    "wandb_api_key": "logs stay on this machine",
    "use_wandb": "logs stay on this machine",
    "log_with": "logs stay on this machine",
    "additional_parameters": "command-line arguments in it are not read",
}

# Values under which a known key asks for nothing, beyond 0, false, empty and null.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "prior_loss_weight": (1, 1.0),
    "max_token_length": (75, "75", 77, "77"),
    "loss_type": ("l2",),
    "max_timestep": (1000, "1000"),
    "base_weights_multiplier": (1, 1.0),
    "validation_split": (0.0,),
}

# Keys that steer an interface, a launcher or another model family: nothing in a LoRA run hangs on them.
INTERFACE = _words("""
LoRA_type LyCORIS_preset ae apply_t5_attn_mask bypass_mode clip_g clip_l constrain conv_alphas conv_dims
decompose_both discrete_flow_shift disable_mmap_load_safetensors double_blocks_to_swap dynamo_backend
dynamo_mode dynamo_use_dynamic dynamo_use_fullgraph enable_all_linear extra_accelerate_launch_args factor
gpu_ids guidance_scale highvram huber_c huber_scale huber_schedule img_attn_dim img_mlp_dim img_mod_dim
in_dims lowram lowvram log_config log_prefix log_tracker_config log_tracker_name logit_mean logit_std
main_process_port max_data_loader_n_workers mem_eff_save mode_scale model_list model_prediction_type
multi_gpu multires_noise_discount num_cpu_threads_per_process num_machines num_processes
persistent_data_loader_workers rescaled save_as_bool save_clip save_t5xxl sdxl single_blocks_to_swap
split_mode split_qkv t5xxl t5xxl_device t5xxl_dtype t5xxl_max_token_length timestep_sampling
tokenizer_cache_dir train_blocks train_double_block_indices train_on_input train_single_block_indices
train_lora_ggpo txt_attn_dim txt_mlp_dim txt_mod_dim unit use_cp use_scalar use_tucker wandb_run_name
weighting_scheme folders config console_log_level console_log_file console_log_simple
noise_offset_type project_name description comment version author
""")  # fmt: skip
_INTERFACE_PREFIXES = ("flux1_", "flux_", "sd3_", "metadata_", "huggingface_", "lumina_", "ggpo_")

# Keys read by rules of their own (see meanings.py); here so that spelling help knows them.
SPECIAL = _words("""
v2 network_module network_args optimizer_args use_8bit_adam fp16 bf16 xformers sdpa mem_eff_attn
enable_xformers_memory_efficient_attention cache_latents_to_disk cache_text_encoder_outputs_to_disk
train_text_encoder task_type
""")  # fmt: skip
_MEANT = FIELDS | ALIASES.keys() | SPECIAL | KNOWN.keys()


def is_interface(key: str) -> bool:
    """Whether the key steers an interface, a launcher or another family only."""
    return key in INTERFACE or (key.startswith(_INTERFACE_PREFIXES) and key not in _MEANT)


def is_known(key: str) -> bool:
    """Whether the key is in any of the tables."""
    return is_interface(key) or key in _MEANT


def is_neutral(key: str, value: object) -> bool:
    """Whether the value asks for nothing, so that not honouring the key loses nothing."""
    empty = (
        value in (None, "", False, 0, "0", "false", "no", "none")
        if not isinstance(value, list | dict)
        else not value
    )
    return empty or value in NEUTRAL.get(key, ())


def suggestion(key: str) -> str:
    """ ": did you mean X?" for a key that looks like one we know, else nothing."""
    close = difflib.get_close_matches(key.strip().lower().replace("-", "_"), sorted(_MEANT), 1, 0.72)
    return f": did you mean {close[0]}?" if close else ""
