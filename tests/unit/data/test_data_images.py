"""Pixels are what a viewer shows: upright, in colour, on white; and they fill their bucket exactly."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from trainer.data.images import CropGeometry, crop_geometry, load_pixels, read_rgb, read_size
from trainer.data.samples import Sample
from trainer.families.sd import SDXL

Draw = Callable[..., Path]
SIDES = st.integers(1, 3000)


def sample_of(path: Path) -> Sample:
    return Sample(0, path, "", read_size(path), 0)


def quadrants() -> Image.Image:
    """Red and green above blue and white, 64x48."""
    picture = Image.new("RGB", (64, 48), "white")
    for corner, colour in (((0, 0), "red"), ((32, 0), "lime"), ((0, 24), "blue")):
        picture.paste(colour, (*corner, corner[0] + 32, corner[1] + 24))
    return picture


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.booleans())
def test_the_resized_picture_covers_the_bucket_and_the_crop_lies_inside(
    size: tuple[int, int], bucket: tuple[int, int], flip: bool
) -> None:
    fitted = crop_geometry(size, bucket, flip)
    top, left = fitted.crop_top_left
    assert 0 <= left <= fitted.resized_size[0] - bucket[0]
    assert 0 <= top <= fitted.resized_size[1] - bucket[1]
    assert bucket[0] == fitted.resized_size[0] or bucket[1] == fitted.resized_size[1]


def test_time_ids_are_in_the_order_sdxl_was_trained_with() -> None:
    fitted = crop_geometry((1000, 500), (512, 512))
    assert fitted == CropGeometry((1000, 500), (1024, 512), (0, 256), (512, 512))
    ids = SDXL.size_ids(fitted.original_size, fitted.crop_top_left, (512, 640))
    assert ids.tolist() == [[500, 1000, 0, 256, 640, 512]]


def test_a_mirrored_crop_is_measured_from_the_mirrored_side() -> None:
    assert crop_geometry((101, 64), (64, 64)).crop_top_left == (0, 18)
    assert crop_geometry((101, 64), (64, 64), flip=True).crop_top_left == (0, 19)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png", "webp"])
def test_size_and_pixels_agree_on_what_is_upright(tmp_path: Path, orientation: int, extension: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{extension}"
    quadrants().save(path, exif=exif)
    upright = read_rgb(path)
    assert read_size(path) == upright.size == ((48, 64) if orientation >= 5 else (64, 48))
    red_corner = {1: 0, 2: 1, 3: 3, 4: 2, 5: 0, 6: 1, 7: 3, 8: 2}[orientation]
    where = (
        upright.size[0] * (1 + 2 * (red_corner % 2)) // 4,
        upright.size[1] * (1 + 2 * (red_corner // 2)) // 4,
    )
    red, green, blue = upright.getpixel(where)
    assert red > 200
    assert max(green, blue) < 60


def test_pixels_are_channels_first_between_minus_one_and_one(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    quadrants().save(path)
    pixels = load_pixels(sample_of(path), (64, 48), flip=False)
    assert (tuple(pixels.shape), str(pixels.dtype), pixels.is_contiguous()) == (
        (3, 48, 64),
        "torch.float32",
        True,
    )
    assert pixels[:, 5, 5].tolist() == [1.0, -1.0, -1.0]
    assert pixels[:, 40, 60].tolist() == [1.0, 1.0, 1.0]
    flipped = load_pixels(sample_of(path), (64, 48), flip=True)
    assert flipped.equal(pixels.flip(2))


def test_a_wide_picture_loses_its_sides_and_no_height(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    picture = Image.new("RGB", (300, 100), "red")
    picture.paste("lime", (100, 0, 200, 100))
    picture.save(path)
    pixels = load_pixels(sample_of(path), (64, 64), flip=False)
    assert pixels.shape == (3, 64, 64)
    assert pixels[1, :, 8:56].min() > 0.99
    assert pixels[0, :, 8:56].max() < -0.99


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB with a transparent colour"])
def test_transparency_becomes_white_not_what_was_hidden(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    if mode == "P":
        palette = Image.new("P", (8, 8), 0)
        palette.putpalette([255, 0, 0, 0, 255, 0])
        palette.save(path, transparency=0)
    elif mode == "RGBA":
        Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(path)
    elif mode == "LA":
        Image.new("LA", (8, 8), (0, 0)).save(path)
    else:
        Image.new("RGB", (8, 8), (255, 0, 0)).save(path, transparency=(255, 0, 0))
    assert read_rgb(path).getpixel((4, 4)) == (255, 255, 255)


def test_deep_greys_keep_their_brightness(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.full((8, 8), 32768, dtype=np.uint16)).save(path)
    assert read_rgb(path).getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [
        ("L", 100, (100, 100, 100)),
        ("1", 1, (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
    ],
)
def test_other_modes_become_rgb(
    tmp_path: Path, mode: str, colour: int | tuple[int, ...], seen: tuple[int, int, int]
) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (16, 16), colour).save(path)
    assert np.allclose(read_rgb(path).getpixel((8, 8)), seen, atol=3)


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    path = tmp_path / "a.webp"
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)
    assert read_rgb(path).getpixel((8, 8)) == (255, 0, 0)
