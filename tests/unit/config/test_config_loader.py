"""load_config: the first users' files, precedence, origins, notes and required keys."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError, DataError, ModelError
from trainer.config.known import ALIASES, KNOWN, SPECIAL
from trainer.config.loader import LoadedConfig, load_config
from trainer.config.schema import TrainConfig

Load = Callable[..., LoadedConfig]


def test_the_kohya_toml_of_a_first_user_loads_whole(files: SimpleNamespace, folder: Path) -> None:
    loaded = load_config([files.toml])
    config = loaded.config
    assert config.pretrained_model_name_or_path == str(folder / "model")
    assert config.train_data_dir == str(folder / "pictures")
    assert (config.train_batch_size, config.network_dim, config.network_alpha) == (4, 32, 16.0)
    assert config.resolution == ((512, 512),)
    assert (config.optimizer_type, config.mixed_precision, config.seed) == ("AdamW8bit", "fp16", 7)
    assert config.output_dir == str(folder / "out")
    assert loaded.notes == ()
    assert loaded.origins["seed"] == str(files.toml)


def test_the_yaml_of_a_first_user_loads_whole(files: SimpleNamespace, folder: Path) -> None:
    loaded = load_config([files.yaml])
    config = loaded.config
    assert (config.network_dim, config.network_alpha, config.train_batch_size) == (16, 8.0, 2)
    assert config.mixed_precision == "fp16"
    assert config.metadata_path == str(folder / "pictures" / "metadata.csv")
    assert loaded.notes == ()


def test_a_later_file_wins_and_every_overridden_key_is_named_with_both_values(files: SimpleNamespace) -> None:
    loaded = load_config([files.toml, files.json])
    assert loaded.config.train_batch_size == 2
    assert loaded.config.max_train_epochs == 5
    overridden = {note.split()[1] for note in loaded.notes if " overrides " in note}
    assert overridden == {
        "train_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "mixed_precision",
        "max_train_epochs",
    }
    assert f"settings.json: train_batch_size = 2 overrides 4 from {files.toml}" in loaded.notes
    assert loaded.origins["train_batch_size"] == str(files.json)
    assert loaded.origins["learning_rate"] == str(files.toml)


def test_order_on_the_command_line_decides(files: SimpleNamespace) -> None:
    assert load_config([files.json, files.toml]).config.train_batch_size == 4


def test_a_setting_wins_over_files(files: SimpleNamespace) -> None:
    loaded = load_config([files.toml], ["train_batch_size=1", "resolution=448x640", "--network-dim=8"])
    assert loaded.config.train_batch_size == 1
    assert loaded.config.resolution == ((448, 640),)
    assert loaded.config.network_dim == 8
    assert loaded.origins["network_dim"] == "--set"


def test_an_empty_setting_goes_back_to_the_default(files: SimpleNamespace) -> None:
    loaded = load_config([files.toml], ["seed="])
    assert loaded.config.seed == 42
    assert "seed" not in loaded.origins


def test_a_setting_rescues_a_value_the_file_spells_wrongly(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"optimizer_type = Prodigy .* AdamW or AdamW8bit"):
        load('optimizer_type = "Prodigy"')
    assert load('optimizer_type = "Prodigy"', "optimizer_type=adamw8BIT").config.optimizer_type == "AdamW8bit"


def test_all_unreadable_values_are_named_at_once(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"train_batch_size = two .* lr_scheduler = adafactor"):
        load('train_batch_size = "two"\nlr_scheduler = "adafactor"')


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train_batch_size", "is not key=value"),
        ("=4", "is not key=value"),
        ("trian_batch_size=4", "did you mean train_batch_size?"),
        ("train_batch_size=many", "is not a number"),
        ("unit=3", "would have no effect"),
    ],
)
def test_a_setting_that_cannot_take_effect_is_an_error(load: Load, override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("seed = 1", override)
    assert said in str(caught.value)
    assert str(caught.value).startswith("--set")


def test_missing_required_keys_are_named_with_the_flags_that_give_them(folder: Path) -> None:
    path = folder / "config.toml"
    path.write_text("seed = 1")
    with pytest.raises(ConfigError) as caught:
        load_config([path])
    for part in (
        "pretrained_model_name_or_path",
        "train_data_dir",
        "config.toml",
        "--set train_data_dir=PATH",
    ):
        assert part in str(caught.value)


def test_missing_keys_have_the_name_of_the_files_dialect(folder: Path) -> None:
    path = folder / "a.yaml"
    path.write_text("lora_rank: 4\ntrain_data_dir: pictures\n")
    with pytest.raises(ConfigError, match="base_model is not set"):
        load_config([path])


def test_a_misspelt_required_key_and_a_dataset_config_are_told_with_the_missing_key(folder: Path) -> None:
    path = folder / "config.toml"
    path.write_text('pretrained_model_name_or_pth = "model"\ndataset_config = "data.toml"\n')
    with pytest.raises(ConfigError) as caught:
        load_config([path])
    assert "did you mean pretrained_model_name_or_path?" in str(caught.value)
    assert "dataset_config = data.toml" in str(caught.value)


def test_no_file_at_all_says_so() -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load_config([])


def test_duplicates_in_other_sections_win_with_a_note(load: Load) -> None:
    loaded = load("[a]\nseed = 1\n[b]\nseed = 2\n")
    assert loaded.config.seed == 2
    assert any("config.toml [b] seed: seed = 2 overrides 1 from config.toml [a] seed" in n for n in loaded.notes)


def test_unknown_keys_are_named_with_a_suggestion(load: Load) -> None:
    loaded = load("trian_batch_size = 4\nzzz = 1\n")
    assert "config.toml: unknown key 'trian_batch_size': did you mean train_batch_size?" in loaded.notes
    assert "config.toml: unknown key 'zzz': not used" in loaded.notes


@pytest.mark.parametrize(
    "line",
    [
        "scale_weight_norms = 1.0",
        "network_dropout = 0.1",
        "full_fp16 = true",
        "masked_loss = true",
        'reg_data_dir = "reg"',
        'network_args = ["conv_dim=8", "conv_alpha=4"]',
        "fp8_base = true",
        "max_token_length = 225",
        'resume = "state"',
        'loss_type = "huber"',
    ],
)
def test_keys_not_honoured_yet_say_what_happens_instead(load: Load, line: str) -> None:
    key = line.split(" ")[0]
    notes = [note for note in load(line).notes if note.startswith("config.toml: known, not used yet:")]
    assert notes
    assert key in notes[0]
    assert notes[0].count(":") >= 3


@pytest.mark.parametrize(
    "line", ["scale_weight_norms = 0", "full_fp16 = false", 'reg_data_dir = ""', "max_token_length = 75"]
)
def test_keys_that_ask_for_nothing_make_no_noise(load: Load, line: str) -> None:
    assert load(line).notes == ()


def test_attention_flags_say_what_is_used(load: Load) -> None:
    assert any("xformers" in note and "SDPA" in note for note in load("xformers = true").notes)
    assert any("sdpa" in note and "SDPA" in note for note in load("sdpa = true").notes)
    assert load("xformers = false").notes == ()


def test_old_names_are_read_and_named(load: Load) -> None:
    loaded = load('caption_extention = ".caption"')
    assert loaded.config.caption_extension == ".caption"
    assert "config.toml: caption_extention is read as caption_extension" in loaded.notes


def test_optimizer_arguments_become_settings(load: Load) -> None:
    loaded = load('optimizer_args = ["betas=0.9,0.99", "weight_decay=0.1", "eps=1e-6", "d0=1"]')
    assert loaded.config.optimizer_betas == (0.9, 0.99)
    assert (loaded.config.optimizer_weight_decay, loaded.config.optimizer_eps) == (0.1, 1e-6)
    assert any("d0=1" in note for note in loaded.notes)


def test_the_legacy_8bit_flag_counts(load: Load) -> None:
    assert load("use_8bit_adam = true").config.optimizer_type == "AdamW8bit"
    assert load("use_8bit_adam = false").config.optimizer_type == "AdamW"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("v2 = true", "Stable Diffusion 2"),
        ('network_module = "lycoris.kohya"', "networks.lora"),
        ('network_module = "networks.lora_flux"', "networks.lora"),
        ("train_batch_size = 0", "greater than or equal to 1"),
        ("learning_rate = nan", "finite"),
        ('save_model_as = "ckpt"', "safetensors"),
        ('output_name = "a/b"', "output_dir"),
        ("caption_dropout_rate = 5", "0.05"),
        ("seed = -5", "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(load: Load, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(line)
    assert said in str(caught.value)
    assert "config.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = SCALARS | st.lists(SCALARS, max_size=3)
KEYS = st.sampled_from(sorted(set(TrainConfig.model_fields) | ALIASES.keys() | SPECIAL | KNOWN.keys()))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
@example({"vae": 0})
def test_any_value_of_any_key_loads_or_is_one_line(load: Load, values: dict[str, Any]) -> None:
    said = ""
    try:
        load(json.dumps(values), name="settings.json")
    except (ConfigError, DataError, ModelError) as error:
        said = str(error)
    assert "\n" not in said


def test_loading_imports_no_torch_and_no_parser_it_does_not_need() -> None:
    code = (
        "import sys, trainer.config.loader, trainer.config.rewrite;"
        "print([m for m in ('torch', 'diffusers', 'tomlkit', 'ruamel.yaml') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
