"""Spellings: every way to write a value reads the same, and what means nothing is refused."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.schema import TrainConfig
from trainer.config.values import UNSET, SpellingFault, parse_value, shown

SIDES = st.integers(8, 2048)
SIZES = st.tuples(SIDES, SIDES)


@given(
    SIZES,
    st.sampled_from([",", "x", "X", ", ", " x ", "×", "*", " "]),
    st.sampled_from(["{}", "({})", "[{}]"]),
)
def test_every_spelling_of_a_pair_is_width_and_height(size: tuple[int, int], sep: str, frame: str) -> None:
    assert parse_value("resolution", frame.format(f"{size[0]}{sep}{size[1]}")) == (size,)
    assert parse_value("resolution", list(size)) == (size,)
    assert parse_value("resolution", [str(size[0]), float(size[1])]) == (size,)


@given(SIDES)
def test_one_number_is_a_square(side: int) -> None:
    for spelling in (side, str(side), float(side), f"{side}.0", [side]):
        assert parse_value("resolution", spelling) == ((side, side),)


@given(st.lists(SIZES, min_size=2, max_size=4, unique=True))
def test_several_resolutions_are_a_form_no_pair_has(sizes: list[tuple[int, int]]) -> None:
    text = ";".join(f"{width},{height}" for width, height in sizes)
    assert parse_value("resolution", text) == tuple(sizes)
    assert parse_value("resolution", [list(size) for size in sizes]) == tuple(sizes)
    assert parse_value("resolution", text.split(";")) == tuple(sizes)
    assert shown(tuple(sizes)) == text


def test_two_numbers_in_a_list_are_one_size_never_two_squares() -> None:
    assert parse_value("resolution", [512, 768]) == ((512, 768),)
    assert parse_value("resolution", "512;768") == ((512, 512), (768, 768))


@pytest.mark.parametrize(
    "raw", ["large", [512, 640, 768], [], {}, True, "0", -512, 1e9, "512,,x", math.nan, "5e999"]
)
def test_what_is_no_resolution_is_refused(raw: Any) -> None:
    with pytest.raises(SpellingFault):
        parse_value("resolution", raw)


@given(st.integers(1, 10**9))
def test_integers_come_as_text_and_floats_too(number: int) -> None:
    for spelling in (number, str(number), float(number), f"{number}.0", f" {number} "):
        assert parse_value("train_batch_size", spelling) == number


@given(st.floats(1e-9, 1e9))
def test_rates_come_as_text_too(number: float) -> None:
    assert parse_value("learning_rate", repr(number)) == number
    assert parse_value("learning_rate", f"{number:e}") == pytest.approx(number, rel=1e-6)


@pytest.mark.parametrize("raw", [1.5, "1.5", True, "a", [1], {}, 10**400, "1" * 5000, math.inf, "nan", 2**63])
def test_what_is_no_whole_number_is_refused(raw: Any) -> None:
    with pytest.raises(SpellingFault):
        parse_value("train_batch_size", raw)


def test_a_decimal_comma_is_refused_with_the_reason() -> None:
    with pytest.raises(SpellingFault) as caught:
        parse_value("learning_rate", "0,0001")
    assert "dot" in caught.value.way_out


@pytest.mark.parametrize("word", ["true", "True", "YES", "on", "1", 1, 1.0, True])
@pytest.mark.parametrize("other", ["false", "No", "OFF", "0", 0, 0.0, False])
def test_switches_have_many_words(word: Any, other: Any) -> None:
    assert parse_value("gradient_checkpointing", word) is True
    assert parse_value("gradient_checkpointing", other) is False


@pytest.mark.parametrize("raw", ["maybe", 2, [True], {}])
def test_what_is_neither_true_nor_false_is_refused(raw: Any) -> None:
    with pytest.raises(SpellingFault):
        parse_value("gradient_checkpointing", raw)


@pytest.mark.parametrize(
    ("raw", "precision"),
    [
        ("no", "no"),
        (False, "no"),
        ("FP16", "fp16"),
        ("bfloat16", "bf16"),
        ("fp32", "no"),
        ("float16", "fp16"),
    ],
)
def test_precision_has_many_names_and_yaml_no_is_no(raw: Any, precision: str) -> None:
    assert parse_value("mixed_precision", raw) == precision


def test_precision_true_is_refused() -> None:
    with pytest.raises(SpellingFault, match="not one"):
        parse_value("mixed_precision", True)


@pytest.mark.parametrize("raw", ["float", "fp32", "float32", "no"])
def test_saved_precision_float_has_many_names(raw: str) -> None:
    assert parse_value("save_precision", raw) == "float"


@pytest.mark.parametrize("key", sorted(TrainConfig.model_fields))
def test_empty_and_null_mean_unset_for_every_key(key: str) -> None:
    assert parse_value(key, "") is UNSET
    assert parse_value(key, "  ") is UNSET
    assert parse_value(key, None) is UNSET


@pytest.mark.parametrize("key", sorted(TrainConfig.model_fields))
@pytest.mark.parametrize("raw", [{"a": 1}, [[[[]]]], b"x", object(), math.nan, 10**400])
def test_hostile_values_are_refused_or_read_never_a_crash(key: str, raw: Any) -> None:
    reason = "read"
    try:
        parse_value(key, raw)
    except SpellingFault as fault:
        reason = fault.reason
    assert reason


@pytest.mark.parametrize("key", ["sample_every_n_epochs", "save_every_n_steps", "min_snr_gamma", "clip_skip"])
@pytest.mark.parametrize("zero", [0, "0", 0.0])
def test_zero_turns_periodic_and_optional_things_off(key: str, zero: Any) -> None:
    assert parse_value(key, zero) is None


@pytest.mark.parametrize("key", ["max_train_epochs", "max_train_steps", "vae_batch_size"])
def test_zero_epochs_and_steps_mean_unset(key: str) -> None:
    assert parse_value(key, 0) is UNSET


def test_zero_is_a_rate_and_a_seed() -> None:
    assert parse_value("text_encoder_lr", 0) == 0.0
    assert parse_value("seed", 0) == 0
    assert parse_value("seed", -1) is UNSET
    assert parse_value("seed", 1234.0) == 1234


def test_one_rate_for_all_text_encoders() -> None:
    assert parse_value("text_encoder_lr", [1e-5, "1e-5"]) == 1e-5
    with pytest.raises(SpellingFault, match="several"):
        parse_value("text_encoder_lr", [1e-5, 1e-6])


@pytest.mark.parametrize("raw", ["C:\new", "C:\temp", "a\x07b"])
def test_eaten_backslashes_are_noticed(raw: str) -> None:
    with pytest.raises(SpellingFault, match="backslashes"):
        parse_value("train_data_dir", raw)


def test_prompts_come_as_a_list_or_as_lines() -> None:
    assert parse_value("sample_prompts", "a cat\n\na dog\n") == ("a cat", "a dog")
    assert parse_value("sample_prompts", ["a cat", "a dog"]) == ("a cat", "a dog")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_shown_is_always_short_and_one_line(value: Any) -> None:
    text = shown(value)
    assert "\n" not in text
    assert len(text) < 2000


def test_shown_survives_an_alias_bomb() -> None:
    bomb: list[Any] = ["x"]
    for _ in range(60):
        bomb = [bomb] * 9
    assert len(shown(bomb)) < 2000
