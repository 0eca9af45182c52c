"""Pictures as pixels: opened, turned upright, made RGB, fitted into a bucket. Owns the rules on pixel values.

Sizes and pixels come from the same orientation, so a bucket always fits the picture that is trained. Must
never write to a picture, and must never load torch until pixels are asked for as a tensor.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps

from trainer.config.schema import Size

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.samples import Sample

_SIDEWAYS = {5, 6, 7, 8}  # EXIF orientations that swap width and height
_WHITE = (255, 255, 255, 255)


@dataclass(frozen=True)
class CropGeometry:
    """How a picture was fitted, for SDXL's time ids. Sizes are (width, height), the crop is (top, left).

    The crop is measured in pixels of the resized picture, as in SDXL's own training.
    """

    original_size: Size
    resized_size: Size
    crop_top_left: tuple[int, int]
    target_size: Size


def crop_geometry(size: Size, bucket: Size, flip: bool = False) -> CropGeometry:
    """How a picture of `size` fits `bucket`: resized to cover it, cropped at the centre, mirrored."""
    (width, height), (target_width, target_height) = size, bucket
    if width * target_height > height * target_width:
        resized = (max(target_width, round(width * target_height / height)), target_height)
    else:
        resized = (target_width, max(target_height, round(height * target_width / width)))
    spare = resized[0] - target_width
    left = spare - spare // 2 if flip else spare // 2
    return CropGeometry(size, resized, ((resized[1] - target_height) // 2, left), bucket)


def load_pixels(sample: "Sample", bucket: Size, flip: bool) -> "Tensor":
    """The picture as float32 (3, height, width) in [-1, 1], fitted into `bucket` (width, height)."""
    import torch

    rgb = fit_picture(read_rgb(sample.path), bucket)
    if flip:
        rgb = rgb.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    values = torch.from_numpy(np.array(rgb, dtype=np.float32)).permute(2, 0, 1)
    return (values / 127.5 - 1.0).contiguous()


def fit_picture(picture: Image.Image, bucket: Size) -> Image.Image:
    """`picture` resized with Lanczos to cover `bucket` and cropped at the centre to exactly that size."""
    geometry = crop_geometry(picture.size, bucket)
    top, left = geometry.crop_top_left
    if picture.size != geometry.resized_size:
        picture = picture.resize(geometry.resized_size, Image.Resampling.LANCZOS)
    return picture.crop((left, top, left + bucket[0], top + bucket[1]))


def read_size(path: Path) -> Size:
    """(width, height) of the upright picture, from the file's header. Raises whatever Pillow raises."""
    with Image.open(path) as image:
        width, height = image.size
        sideways = image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
        return (height, width) if sideways else (width, height)


def read_rgb(path: Path) -> Image.Image:
    """The first frame, upright, in 8-bit RGB on white. Raises whatever Pillow raises for a broken file."""
    with Image.open(path) as image:
        return to_rgb(image)


def to_rgb(image: Image.Image) -> Image.Image:
    """An opened picture, upright, in 8-bit RGB: transparency on white, 16-bit greys scaled, no CMYK."""
    upright = ImageOps.exif_transpose(image)
    if has_alpha(upright):
        layer = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, _WHITE), layer).convert("RGB")
    if upright.mode == "F" or upright.mode.startswith("I"):
        return _scale_deep(upright).convert("RGB")
    return upright.convert("RGB")


def has_alpha(image: Image.Image) -> bool:
    """Whether the picture has an alpha channel or a transparent colour."""
    return image.has_transparency_data and not image.mode.startswith("I")


def is_animated(image: Image.Image) -> bool:
    """Whether there are more frames than one. The extra views in a phone's MPO photograph are no frames."""
    return image.format != "MPO" and getattr(image, "n_frames", 1) > 1


def _scale_deep(image: Image.Image) -> Image.Image:
    """Greys of 16 bits to 8 bits (Pillow's own conversion cuts them off at 255), floats from [0, 1]."""
    values = np.asarray(image, dtype=np.float64)
    scale = 255.0 if image.mode == "F" else 255.0 / 65535.0
    return Image.fromarray(np.clip(np.rint(values * scale), 0, 255).astype(np.uint8))
