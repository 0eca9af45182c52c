"""What a family can't do is said before anything runs, and what it can do is left alone."""

from typing import Any

import pytest

from autotune.errors import ConfigError
from trainer.config.schema import TrainConfig
from trainer.families.family import check_sizes, family_names, get_family, trainable_config

READ_ONLY = ("flux2", "pixart", "zimage", "qwenimage", "chroma", "auraflow", "wan")


def config_with(**settings: Any) -> TrainConfig:
    return TrainConfig(pretrained_model_name_or_path="base", train_data_dir="photos", **settings)


@pytest.mark.parametrize("name", family_names())
def test_a_text_encoder_that_is_only_read_is_not_trained_and_can_be_cached(name: str) -> None:
    config = config_with(cache_text_encoder_outputs=True)
    family = get_family(name)
    trained = trainable_config(family, config)
    assert trained.trains_text_encoder == (name not in READ_ONLY)
    assert trained.caches_text == (name in READ_ONLY)
    assert any("is only read" in note for note in family.notes(config)) == (name in READ_ONLY)


def test_text_encoders_alone_leave_nothing_to_train_where_they_are_only_read() -> None:
    config = config_with(network_train_text_encoder_only=True)
    with pytest.raises(ConfigError, match=r"nothing is left to train: FLUX\.2-klein"):
        trainable_config(get_family("flux2"), config)
    assert trainable_config(get_family("flux1"), config) is config


@pytest.mark.parametrize(("name", "size", "suits"), [("sd1", (520, 512), True), ("flux1", (520, 512), False)])
def test_sizes_that_latents_do_not_divide_are_refused(name: str, size: tuple[int, int], suits: bool) -> None:
    family = get_family(name)
    if suits:
        check_sizes(family, [(512, 512), size])
        return
    with pytest.raises(ConfigError, match=r"520x512 pixels don't suit FLUX\.1.*multiples of 16"):
        check_sizes(family, [(512, 512), size])


def test_settings_without_effect_are_named() -> None:
    config = config_with(clip_skip=2, min_snr_gamma=5.0, network_train_unet_only=True)
    assert [note.split(" = ")[0] for note in get_family("flux1").notes(config)] == ["clip_skip", "min_snr_gamma"]
    assert [note.split(" = ")[0] for note in get_family("pixart").notes(config)] == ["clip_skip"]
    assert [note.split(" = ")[0] for note in get_family("sdxl").notes(config)] == ["clip_skip"]
    assert get_family("sd1").notes(config) == []
