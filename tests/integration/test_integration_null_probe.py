"""A probe on a null card walks the whole ladder with PyTorch's own allocator, and says that it is a forecast."""

import json
import os

import pytest
from typer.testing import CliRunner

from autotune.cli.main import app

CONFIG = """
pretrained_model_name_or_path = "sd15.safetensors"
train_data_dir = "pictures"
output_dir = "out"
logging_dir = "logs"
resolution = 512
train_batch_size = 8
network_dim = 16
network_alpha = 16
mixed_precision = "bf16"
network_train_unet_only = true
cache_latents = true
cache_text_encoder_outputs = true
optimizer_type = "AdamW"
"""


@pytest.fixture
def answer(null_gpu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "config.toml").write_text(CONFIG)

    def probe(*options):
        arguments = ["probe", "-c", "config.toml", "--profiles", "kept", "--json", *options]
        done = CliRunner().invoke(app, arguments, env=dict(os.environ))
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return probe


def test_without_weights_or_pictures_the_walk_ends_on_a_plan_and_every_number_is_a_forecast(answer, tmp_path):
    told, screen = answer("--device", "null:rtx-3050-6gb", "--family", "sd1")
    assert told["evidence"] == "forecast"
    assert {trial["evidence"] for trial in told["trials"]} == {"forecast"}
    assert told["trials"][0]["verdict"] == "oom"
    assert told["trials"][0]["plan"]["batch_size"] == 8
    assert all(trial["step_ms"] is None for trial in told["trials"])
    assert told["chosen"]["batch_size"] < 8
    assert "scratch memory of NVIDIA's libraries" in screen
    assert "measured" not in screen
    profile = json.loads(next((tmp_path / "kept").glob("*/*.json")).read_text())
    assert profile["evidence"] == "forecast"
    assert profile["gpu"]["name"] == "NVIDIA GeForce RTX 3050"
    assert not (tmp_path / "out").exists()
