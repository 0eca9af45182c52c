"""Text in any encoding is read without an error, and Unicode always exactly."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.data.text import decode_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff\x00"), max_size=40)


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reading_fail(data: bytes) -> None:
    text, encoding = decode_text(data)
    assert isinstance(text, str)
    assert encoding


@given(TEXTS)
def test_utf8_comes_back_exactly_with_or_without_a_mark(text: str) -> None:
    assert decode_text(text.encode("utf-8")) == (text, "utf-8")
    assert decode_text(text.encode("utf-8-sig")) == (text, "utf-8")


@given(TEXTS)
def test_utf16_with_a_mark_comes_back_exactly(text: str) -> None:
    assert decode_text(text.encode("utf-16")) == (text, "utf-16")
