"""Rules across settings: conflicts are resolved and named, contradictions refused, paths made absolute."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import ConfigError, ModelError
from trainer.config.loader import LoadedConfig, load_config

Load = Callable[..., LoadedConfig]


def said(loaded: LoadedConfig, *parts: str) -> bool:
    return any(all(part in note for part in parts) for note in loaded.notes)


def test_cached_text_yields_to_trained_text_encoders(load: Load) -> None:
    loaded = load("cache_text_encoder_outputs = true")
    assert not loaded.config.cache_text_encoder_outputs
    assert said(loaded, "cache_text_encoder_outputs is off", "training the text encoders")


def test_cached_text_stays_when_only_the_unet_learns(load: Load) -> None:
    loaded = load("cache_text_encoder_outputs = true\nnetwork_train_unet_only = true")
    assert loaded.config.cache_text_encoder_outputs
    assert loaded.notes == ()


@pytest.mark.parametrize("line", ["shuffle_caption = true", "caption_dropout_rate = 0.1"])
def test_cached_text_yields_to_changing_captions(load: Load, line: str) -> None:
    loaded = load(f"cache_text_encoder_outputs = true\nnetwork_train_unet_only = true\n{line}")
    assert not loaded.config.cache_text_encoder_outputs
    assert said(loaded, "cache_text_encoder_outputs is off", line.split(" ")[0])


def test_epochs_win_over_steps_and_say_so(load: Load) -> None:
    loaded = load("max_train_epochs = 3\nmax_train_steps = 500")
    assert loaded.config.max_train_epochs == 3
    assert said(loaded, "max_train_steps = 500", "max_train_epochs = 3 wins")


def test_warm_up_of_a_constant_rate_says_it_has_no_effect(load: Load) -> None:
    assert said(load("lr_warmup_steps = 100"), "lr_warmup_steps = 100", "constant_with_warmup")
    assert not said(load('lr_warmup_steps = 100\nlr_scheduler = "cosine"'), "no effect")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("bucket_no_upscale = true", "enable_bucket = false"),
        ("max_bucket_reso = 2048", "enable_bucket = false"),
        ("keep_tokens = 2", "shuffle_caption = false"),
        ("vae_batch_size = 4\ncache_latents = false", "cache_latents = false"),
        ("text_encoder_lr = 5e-5\nnetwork_train_unet_only = true", "network_train_unet_only = true"),
        ("unet_lr = 5e-5\nnetwork_train_text_encoder_only = true", "network_train_text_encoder_only = true"),
        ('lr_scheduler_num_cycles = 3\nlr_scheduler = "cosine"', "lr_scheduler = cosine"),
        ('lr_scheduler_power = 2\nlr_scheduler = "linear"', "lr_scheduler = linear"),
    ],
)
def test_a_key_that_another_puts_out_of_action_says_so(load: Load, line: str, why: str) -> None:
    key = line.split(" ")[0]
    assert said(load(line), f"{key} = ", "has no effect", why)


def test_a_default_that_a_front_end_writes_out_is_no_news(load: Load) -> None:
    assert load("max_bucket_reso = 1024\nlr_scheduler_num_cycles = 1\nlr_scheduler_power = 1").notes == ()


def test_a_rank_without_alpha_says_its_scale(load: Load) -> None:
    assert said(load("network_dim = 32"), "network_alpha is not set", "1/32")


def test_alpha_zero_is_the_rank_as_in_kohya(load: Load) -> None:
    loaded = load("network_dim = 16\nnetwork_alpha = 0")
    assert loaded.config.network_alpha == 16.0
    assert said(loaded, "network_alpha = 0")


def test_sides_become_multiples_of_eight_with_a_note(load: Load) -> None:
    loaded = load('resolution = "512,650"')
    assert loaded.config.resolution == ((512, 648),)
    assert said(loaded, "512,650", "512,648")


def test_a_bucket_step_of_one_becomes_eight_with_a_note(load: Load) -> None:
    loaded = load("bucket_reso_steps = 1")
    assert loaded.config.bucket_reso_steps == 8
    assert said(loaded, "bucket_reso_steps = 1")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("resolution = 1536\nenable_bucket = true", "max_bucket_reso"),
        ("resolution = 128\nenable_bucket = true", "min_bucket_reso"),
        ("min_bucket_reso = 1024\nmax_bucket_reso = 512\nenable_bucket = true", "max_bucket_reso"),
        ("network_train_unet_only = true\nnetwork_train_text_encoder_only = true", "nothing to train"),
        ("learning_rate = 0", "learning_rate"),
        ("unet_lr = 0\ntext_encoder_lr = 0", "nothing to train"),
        ("network_train_unet_only = true\nunet_lr = 0", "nothing to train"),
    ],
)
def test_contradictions_are_refused(load: Load, text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(text)


def test_bucket_bounds_do_not_bind_without_upscaling(load: Load) -> None:
    text = "resolution = 1536\nenable_bucket = true\nbucket_no_upscale = true"
    assert load(text).config.resolution == ((1536, 1536),)


def test_a_rate_made_for_another_optimizer_is_named(load: Load) -> None:
    assert said(load("learning_rate = 1.0"), "learning_rate = 1.0", "AdamW")


def test_relative_paths_count_from_the_file_when_they_exist_there(folder: Path) -> None:
    project = folder / "project"
    (project / "base").mkdir(parents=True)
    path = project / "config.toml"
    path.write_text('pretrained_model_name_or_path = "base"\ntrain_data_dir = "pictures"\noutput_dir = "o"')
    config = load_config([path]).config
    assert config.pretrained_model_name_or_path == str(project / "base")
    assert config.train_data_dir == str(folder / "pictures")
    assert config.output_dir == str(folder / "o")
    assert Path(config.logging_dir).is_absolute()


def test_metadata_may_lie_beside_the_pictures(load: Load, folder: Path) -> None:
    (folder / "pictures" / "metadata.csv").write_text("filename,prompt\n")
    assert load('metadata_path = "metadata.csv"').config.metadata_path == str(folder / "pictures/metadata.csv")


def test_a_hub_name_says_it_needs_the_network(load: Load) -> None:
    with pytest.raises(ModelError, match=r"runwayml/stable-diffusion-v1-5 .*needs the network.*local folder"):
        load("seed = 1", "pretrained_model_name_or_path=runwayml/stable-diffusion-v1-5")


def test_a_folder_with_the_name_of_a_hub_model_is_that_folder(load: Load, folder: Path) -> None:
    (folder / "runwayml" / "stable-diffusion-v1-5").mkdir(parents=True)
    config = load("seed = 1", "pretrained_model_name_or_path=runwayml/stable-diffusion-v1-5").config
    assert config.pretrained_model_name_or_path == str(folder / "runwayml/stable-diffusion-v1-5")


@pytest.mark.parametrize("path", ["model/missing.safetensors", "model/deep/er/missing", "./nope"])
def test_a_wrong_path_names_the_nearest_folder_that_exists(load: Load, folder: Path, path: str) -> None:
    with pytest.raises(ModelError) as caught:
        load("seed = 1", f"pretrained_model_name_or_path={path}")
    parent = folder / "model" if path.startswith("model") else folder
    assert f"the nearest folder that exists is {parent}." in str(caught.value)


@pytest.mark.skipif("sys.platform == 'win32'", reason="there it is a path of this system")
def test_a_windows_path_elsewhere_says_so(load: Load) -> None:
    with pytest.raises(ModelError, match="Windows path"):
        load(
            "pretrained_model_name_or_path = 'C:\\models\\sd.safetensors'",
            "pretrained_model_name_or_path=D:/a/b",
        )


def test_prompts_may_stand_in_a_text_file(load: Load, folder: Path) -> None:
    (folder / "prompts.txt").write_text("# mine\na cat --w 512 --h 768\n\na dog\n")
    loaded = load('sample_prompts = "prompts.txt"')
    assert loaded.config.sample_prompts == ("a cat", "a dog")
    assert said(loaded, "sample_prompts --h --w")


def test_a_missing_prompt_file_is_an_error(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"prompts\.txt does not exist"):
        load('sample_prompts = "prompts.txt"')
