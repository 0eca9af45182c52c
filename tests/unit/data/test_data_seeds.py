"""A sample's randomness depends on (seed, step, sample, purpose) and nothing else."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainer.config.schema import TrainConfig
from trainer.data.samples import Sample
from trainer.data.seeds import caption_for, draw_uniform, flip_for, sample_seed

SEEDS = st.integers(0, 2**63 - 1)


def config_of(**values: Any) -> TrainConfig:
    return TrainConfig(pretrained_model_name_or_path="m", train_data_dir="d", **values)


def sample_of(caption: str) -> Sample:
    return Sample(0, Path("a.png"), caption, (512, 512), 0)


def test_the_seed_never_changes_between_releases() -> None:
    assert sample_seed(42, 7, 3, "noise") == 5779186773025001826


@given(st.integers(), st.integers(), st.integers(0), st.text(max_size=8))
def test_a_seed_fits_every_generator(seed: int, step: int, index: int, purpose: str) -> None:
    assert 0 <= sample_seed(seed, step, index, purpose) < 2**63


def test_every_part_of_the_key_matters() -> None:
    keys = [(1, 2, 3, "noise"), (2, 2, 3, "noise"), (1, 3, 3, "noise"), (1, 2, 4, "noise"), (1, 2, 3, "flip")]
    assert len({sample_seed(*key) for key in keys}) == len(keys)
    assert sample_seed(1, 23, 4, "noise") != sample_seed(12, 3, 4, "noise")


def test_draws_are_uniform() -> None:
    draws = [draw_uniform(sample_seed(0, 0, index, "x"), "y") for index in range(4000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert 0.47 < sum(draws) / len(draws) < 0.53


def test_flips_happen_half_of_the_time_and_only_when_asked() -> None:
    flips = [flip_for(config_of(flip_aug=True), sample_seed(0, 0, i, "flip")) for i in range(2000)]
    assert 900 < sum(flips) < 1100
    assert not any(flip_for(config_of(), sample_seed(0, 0, i, "flip")) for i in range(100))


@given(SEEDS)
def test_a_caption_is_left_as_it_is_by_default(seed: int) -> None:
    assert caption_for(sample_of("a cat,  sitting"), config_of(), seed) == "a cat,  sitting"


@given(SEEDS, st.integers(0, 6))
def test_shuffling_keeps_every_tag_and_the_first_ones_in_place(seed: int, keep: int) -> None:
    tags = ["cat", "green eyes", "sofa", "window", "photo"]
    config = config_of(shuffle_caption=True, keep_tokens=keep)
    shuffled = caption_for(sample_of(", ".join(tags)), config, seed).split(", ")
    assert sorted(shuffled) == sorted(tags)
    assert shuffled[:keep] == tags[:keep]
    assert ", ".join(shuffled) == caption_for(sample_of(", ".join(tags)), config, seed)


def test_shuffling_reaches_every_order() -> None:
    config = config_of(shuffle_caption=True)
    assert len({caption_for(sample_of("a, b, c"), config, seed) for seed in range(200)}) == 6


def test_captions_are_dropped_at_the_given_rate() -> None:
    config = config_of(caption_dropout_rate=0.25)
    dropped = [caption_for(sample_of("cat"), config, seed) == "" for seed in range(2000)]
    assert 430 < sum(dropped) < 570
    assert caption_for(sample_of("cat"), config_of(caption_dropout_rate=1.0), 5) == ""
