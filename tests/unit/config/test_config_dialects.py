"""Dialects: told apart by content, translated key by key, foreign ones refused with one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import ConfigError
from trainer.config.dialects import Dialect, translate
from trainer.config.documents import Syntax, read_document
from trainer.config.loader import LoadedConfig, load_config

Load = Callable[..., LoadedConfig]


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml", ".txt", ""])
def test_content_decides_not_the_name(files: SimpleNamespace, folder: Path, suffix: str) -> None:
    expected = {"toml": Syntax.TOML, "json": Syntax.JSON, "yaml": Syntax.YAML, "gui": Syntax.JSON}
    for kind, syntax in expected.items():
        copy = folder / f"copy{suffix}"
        copy.write_bytes(getattr(files, kind).read_bytes())
        assert read_document(copy).syntax is syntax


def test_each_dialect_is_recognised(files: SimpleNamespace) -> None:
    def dialect(path: Path) -> Dialect:
        return translate(read_document(path)).dialect

    assert dialect(files.toml) is Dialect.KOHYA
    assert dialect(files.json) is Dialect.KOHYA
    assert dialect(files.yaml) is Dialect.LORA_SCRIPTS
    assert dialect(files.gui) is Dialect.GUI


def test_gui_settings_mean_what_the_gui_means(files: SimpleNamespace) -> None:
    loaded = load_config([files.gui])
    config = loaded.config
    assert config.resolution == ((512, 768),)
    assert (config.train_batch_size, config.gradient_accumulation_steps) == (3, 1)
    assert config.max_train_epochs == 3
    assert config.lr_warmup_steps == pytest.approx(0.10)
    assert (config.learning_rate, config.text_encoder_lr) == (1e-4, 5e-5)
    assert (config.clip_skip, config.min_snr_gamma, config.noise_offset) == (2, None, 0.05)
    assert config.optimizer_type == "AdamW8bit"
    assert config.seed == 1234
    assert [note for note in loaded.notes if "num_cpu_threads_per_process" in note]


def gui(files: SimpleNamespace, **changes: Any) -> LoadedConfig:
    values = json.loads(files.gui.read_text()) | changes
    files.gui.write_text(json.dumps({key: value for key, value in values.items() if value != "LEFT OUT"}))
    return load_config([files.gui])


@pytest.mark.parametrize("kind", ["LyCORIS/LoHa", "LyCORIS/LoKr", "kohya LoCon", "kohya DyLoRA", "LoRA-FA"])
def test_gui_adapters_other_than_lora_are_refused(files: SimpleNamespace, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"LoRA_type = {kind} is not a plain LoRA"):
        gui(files, LoRA_type=kind)


@pytest.mark.parametrize("kind", ["Standard", "kohya LoRA", "standard"])
def test_gui_plain_lora_passes(files: SimpleNamespace, kind: str) -> None:
    assert gui(files, LoRA_type=kind).config.network_dim == 64


@pytest.mark.parametrize("changes", [{"LoRA_type": "Flux1"}, {"flux1_checkbox": True}, {"sd3_checkbox": True}])
def test_gui_other_families_are_refused(files: SimpleNamespace, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a family this version does not have"):
        gui(files, **changes)


def test_gui_zero_rates_mean_the_general_rate(files: SimpleNamespace) -> None:
    config = gui(files, unet_lr=0, text_encoder_lr=0).config
    assert (config.unet_lr, config.text_encoder_lr) == (None, None)


def test_gui_zero_text_encoder_rate_trains_the_unet_only(files: SimpleNamespace) -> None:
    config = gui(files, text_encoder_lr=0).config
    assert not config.trains_text_encoder
    assert config.trains_unet


def test_gui_steps_win_over_its_epoch_slider_with_a_note(files: SimpleNamespace) -> None:
    loaded = gui(files, max_train_steps=1000)
    assert loaded.config.max_train_epochs is None
    assert loaded.config.max_train_steps == 1000
    assert any("epoch = 3 is not used" in note for note in loaded.notes)


def test_gui_multires_noise_switches_the_offset_off(files: SimpleNamespace) -> None:
    loaded = gui(files, noise_offset_type="Multires", multires_noise_iterations=8)
    assert loaded.config.noise_offset == 0
    assert any("noise_offset = 0.05 is off" in note for note in loaded.notes)
    assert any("multires_noise_iterations = 8: plain noise" in note for note in loaded.notes)


def test_gui_sdxl_switches_count_only_with_sdxl(files: SimpleNamespace) -> None:
    keys = {"sdxl_no_half_vae": True, "sdxl_cache_text_encoder_outputs": True, "text_encoder_lr": 0}
    on, off = gui(files, sdxl=True, **keys).config, gui(files, sdxl=False, **keys).config
    assert (on.no_half_vae, on.cache_text_encoder_outputs) == (True, True)
    assert (off.no_half_vae, off.cache_text_encoder_outputs) == (False, False)


def test_gui_seed_zero_and_empty_mean_any(files: SimpleNamespace) -> None:
    assert gui(files, seed=0).config.seed == 42
    assert gui(files, seed="").config.seed == 42


def test_gui_settings_of_a_whole_model_training_are_refused_until_a_rank_is_given(
    files: SimpleNamespace,
) -> None:
    left_out = {"LoRA_type": "LEFT OUT", "network_dim": "LEFT OUT", "network_alpha": "LEFT OUT"}
    with pytest.raises(ConfigError, match=r"LoRA only.*--set network_dim=16"):
        gui(files, **left_out)
    assert load_config([files.gui], ["network_dim=16"]).config.network_dim == 16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"training_method": "LORA", "model_type": "STABLE_DIFFUSION_15"}', "OneTrainer"),
        ('{"--model_family": "sdxl", "--lora_rank": 16}', "SimpleTuner"),
        ('{"model_family": "flux", "lora_rank": 16}', "SimpleTuner"),
        ("job: extension\nconfig:\n  name: a\n  process:\n    - type: sd_trainer\n", "ai-toolkit"),
        ("[general]\nshuffle_caption = true\n[[datasets]]\nresolution = 512\n", "dataset_config"),
        ("[general]\nenable_bucket = true\n", "dataset_config"),
        ("task_type: text-generation\nbase_model: m\nlora_rank: 8\n", "language-model"),
        ("task_type: CAUSAL_LM\nbase_model: m\nlora_rank: 8\n", "language-model"),
        ("base_model: m\nsequence_len: 2048\nadapter: lora\n", "language-model"),
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\n", "accelerate"),
        ("[general_args.args]\nseed = 1\n", "LoRA Easy Training"),
        ('{"name": "app", "version": "1"}'.replace("version", "scripts"), "no training setting"),
    ],
)
def test_files_of_other_programs_are_refused_by_name(folder: Path, text: str, said: str) -> None:
    path = folder / "other"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config([path])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_picture_task_passes(load: Load) -> None:
    assert load("task_type: text-to-image\nlora_rank: 8\n").config.network_dim == 8


def test_any_section_names_melt_and_deeper_tables_are_named(load: Load) -> None:
    loaded = load(
        "[anything at all]\nseed = 3\n[a.b]\nnetwork_dim = 8\n".replace("[anything at all]", '["anything at all"]')
    )
    assert loaded.config.seed == 3
    assert loaded.config.network_dim == 4
    assert "config.toml: [a.b] is a table in a table: not read" in loaded.notes


def test_precision_switches_are_one_setting(load: Load) -> None:
    assert load("fp16: false\nbf16: true\n").config.mixed_precision == "bf16"
    assert load("bf16: true\nfp16: false\n").config.mixed_precision == "bf16"
    assert load("fp16: false\n").config.mixed_precision == "no"
    with pytest.raises(ConfigError, match="both true"):
        load("fp16: true\nbf16: true\n")


def test_yaml_no_is_no_precision(load: Load) -> None:
    assert load("lora_rank: 8\nmixed_precision: no\n").config.mixed_precision == "no"
    assert load("%YAML 1.1\n---\nlora_rank: 8\nmixed_precision: no\n").config.mixed_precision == "no"


def test_yaml_rates_without_a_point_are_numbers(load: Load) -> None:
    assert load("lora_rank: 8\nlearning_rate: 1e-4\n").config.learning_rate == 1e-4
