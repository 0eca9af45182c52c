"""Sizes are read as people write them, and never taken for something absurd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.units import GIB, MIB, parse_size, spell_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("2GiB", 2 * GIB),
        (" 700 mib ", 700 * MIB),
        ("12gb", 12 * 10**9),
        ("6g", 6 * GIB),
        ("12884901888", 12 * GIB),
    ],
)
def test_usual_spellings_are_understood(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


def test_a_small_number_lacks_its_unit() -> None:
    with pytest.raises(ValueError, match=r"'12' has no unit: write for example 12GiB"):
        parse_size("12")


@pytest.mark.parametrize("text", ["", "0", "0GiB", "-1GiB", "1.5.5GiB", "nan", "inf", "12XB", "١٢GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not understood"):
        parse_size(text)


@pytest.mark.parametrize("digits", [17, 400])
def test_more_than_any_device_has_is_refused(digits: int) -> None:
    with pytest.raises(ValueError, match="more than any device has"):
        parse_size("9" * digits + "GiB")


@given(st.integers(1, 1 << 50))
def test_a_spelled_size_reads_back(size_bytes: int) -> None:
    assert parse_size(spell_size(size_bytes)) == size_bytes
