"""A folder with a base model and pictures in it, and short ways to write and load configs there."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.config.loader import LoadedConfig, load_config

Load = Callable[..., LoadedConfig]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Load:
    """`load("train_batch_size = 2", "key=value")`: a kohya config with the required keys, and overrides."""

    def load_text(text: str, *overrides: str, name: str = "config.toml") -> LoadedConfig:
        path = folder / name
        path.write_text(text, encoding="utf-8")
        required = ("pretrained_model_name_or_path=model", "train_data_dir=pictures")
        return load_config([path], [*required, *overrides])

    return load_text


FIRST_TOML = """\
# Character LoRA, second try
[model]
pretrained_model_name_or_path = "model"
v2 = false
v_parameterization = false

[training]
output_dir = "out"
output_name = "character"
save_model_as = "safetensors"
max_train_epochs = 10
train_batch_size = 4          # as the guide says
gradient_accumulation_steps = 1
gradient_checkpointing = false
mixed_precision = "fp16"
save_precision = "fp16"
learning_rate = 1e-4
lr_scheduler = "cosine"
optimizer_type = "AdamW8bit"
max_grad_norm = 1.0
seed = 7

[network]
network_module = "networks.lora"
network_dim = 32
network_alpha = 16

[dataset]
train_data_dir = "pictures"
resolution = "512,512"
enable_bucket = true
bucket_no_upscale = true
"""
FIRST_JSON = """\
{
  "train_batch_size": 2,
  "gradient_accumulation_steps": 2,
  "gradient_checkpointing": true,
  "mixed_precision": "bf16",
  "resolution": "512,512",
  "enable_bucket": true,
  "max_train_epochs": 5,
  "save_every_n_epochs": 1,
  "sample_every_n_epochs": 0,
  "network_dim": 32,
  "network_alpha": 16,
  "clip_skip": 2,
  "cache_latents": true,
  "cache_text_encoder_outputs": true
}
"""
FIRST_YAML = """\
train_data_dir: pictures
metadata_path: pictures/metadata.csv
base_model: model
lora_rank: 16
lora_alpha: 8
batch_size: 2
fp16: true
output_dir: out
"""
GUI_JSON = """\
{
  "LoRA_type": "Standard",
  "additional_parameters": "",
  "bucket_no_upscale": true,
  "bucket_reso_steps": 64.0,
  "cache_latents": true,
  "caption_dropout_every_n_epochs": 0.0,
  "clip_skip": "2",
  "conv_dim": 1,
  "enable_bucket": true,
  "epoch": 3,
  "gradient_accumulation_steps": 1.0,
  "gradient_checkpointing": false,
  "learning_rate": "0.0001",
  "lr_scheduler": "cosine",
  "lr_warmup": "10",
  "max_resolution": "512,768",
  "max_token_length": "75",
  "max_train_epochs": "",
  "min_snr_gamma": 0,
  "mixed_precision": "bf16",
  "network_alpha": 64,
  "network_dim": 64,
  "noise_offset": "0.05",
  "num_cpu_threads_per_process": 2,
  "optimizer": "AdamW8bit",
  "optimizer_args": "",
  "output_name": "lora",
  "pretrained_model_name_or_path": "model",
  "save_every_n_epochs": 1,
  "save_precision": "fp16",
  "seed": "1234",
  "text_encoder_lr": "5e-05",
  "train_batch_size": 3,
  "train_data_dir": "pictures",
  "unet_lr": "0.0001",
  "v2": false,
  "xformers": true
}
"""


@pytest.fixture
def files(folder: Path) -> SimpleNamespace:
    """The files that the first users bring, written: `.toml`, `.json`, `.yaml`, `.gui`."""
    written = SimpleNamespace()
    (folder / "pictures" / "metadata.csv").write_text("filename,prompt\n")
    texts = {"toml": FIRST_TOML, "json": FIRST_JSON, "yaml": FIRST_YAML, "gui": GUI_JSON}
    names = {"toml": "config.toml", "json": "settings.json", "yaml": "lora.yaml", "gui": "gui.json"}
    for kind, text in texts.items():
        path = folder / names[kind]
        path.write_bytes(text.encode())
        setattr(written, kind, path)
    return written
