"""Preflight decodes every picture, names every problem at once, and touches nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from autotune.errors import DataError
from trainer.data.checks import check_images

Draw = Callable[..., Path]


def test_sound_pictures_give_no_notes(draw: Draw) -> None:
    assert check_images([draw("a.png"), draw("b.jpg"), draw("c.webp")]) == ()


def test_a_picture_whose_header_is_fine_but_whose_data_ends_early_is_found(draw: Draw) -> None:
    for name in ("a.jpg", "b.png", "c.bmp", "d.webp"):
        path = draw(name, (300, 200))
        path.write_bytes(path.read_bytes()[:-60])
        with pytest.raises(DataError, match=rf"{name} \(.*(truncated|damaged)"):
            check_images([path])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty: 0 bytes"),
        (b"\n<html>not found</html>", "a web page or XML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", "a HEIC photograph under the name .png"),
        (b"hello", "not an image, or one damaged at its start (bytes 68 65 6c 6c 6f)"),
    ],
)
def test_what_is_no_picture_is_called_what_it_is(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        check_images([path])
    assert reason in caught.value.fact


def test_a_decompression_bomb_is_refused_with_its_megapixels(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    path = draw("big.png", (2000, 1500))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    with pytest.raises(DataError, match=r"big\.png \(3 megapixels, over the limit of 2"):
        check_images([path])


def test_a_picture_between_pillows_warning_and_its_limit_is_fine(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    assert check_images([draw("large.png", (1500, 1000))]) == ()


def test_all_problems_come_in_one_error_and_no_file_is_changed(draw: Draw, tmp_path: Path) -> None:
    good = draw("a/good.png")
    bad = [tmp_path / "a" / "one.png", tmp_path / "b" / "two.jpg"]
    bad[1].parent.mkdir()
    for path in bad:
        path.write_bytes(b"junk")
    with pytest.raises(DataError) as caught:
        check_images([good, *bad])
    assert f"2 of 3 images can't be used, in {tmp_path}: a/one.png" in caught.value.fact
    assert "b/two.jpg" in caught.value.fact
    assert [path.read_bytes() for path in bad] == [b"junk", b"junk"]
    assert good.exists()


def test_transparency_and_animation_are_noted(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "moving.webp", save_all=True, append_images=frames[1:])
    assert check_images([tmp_path / "clear.png", tmp_path / "moving.webp"]) == (
        "1 images have transparency: it is filled with white (clear.png).",
        "1 images are animated: only the first frame is used (moving.webp).",
    )


def test_a_picture_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the file is gone"):
        check_images([tmp_path / "never.png"])
