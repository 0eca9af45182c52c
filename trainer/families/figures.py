"""The figures of a base model that is on this machine: from its config.json files, or from a header's shapes.

Owns the choice between the two. Must never read a weight.
"""

from pathlib import Path

from autotune.errors import ModelError
from trainer.families import layout
from trainer.families.architecture import (
    UNET_PREFIX,
    VAE_PREFIX,
    Config,
    Shapes,
    clip_config,
    open_clip_config,
    unet_config,
    vae_config,
)
from trainer.families.blank import configs_of_folder
from trainer.families.detect import detect_family
from trainer.families.header import read_header


def family_of_base(path: Path) -> str:
    """The family of the base model at `path`, also where only the layout of its file keeps it from being trained.
    Raises ModelError for any other that can't be trained."""
    found = detect_family(path, trainable=False, weights=False)
    return found.family if found.has_known_figures else detect_family(path, weights=False).family


def configs_of_base(path: Path, family: str) -> dict[str, Config]:
    """The configs by component of the base model of `family` at `path`, a diffusers folder or a single file.

    Raises ModelError for a file that is damaged, or of another family's shape.
    """
    if path.is_dir():
        return configs_of_folder(path, family)
    shapes = read_header(path).shapes
    try:
        return _configs_of_shapes(family, shapes)
    except KeyError as error:
        raise ModelError(
            f"{path} has no tensor {error.args[0]!r}, so it is no {family} checkpoint.", "Say another --family."
        ) from None


def _configs_of_shapes(family: str, shapes: Shapes) -> dict[str, Config]:
    if family not in ("sd1", "sdxl"):  # the families whose single files the trainer reads
        return {}
    configs = {"vae": vae_config(family, _below(shapes, VAE_PREFIX))}
    if family == "sd1":
        configs["text_encoder"] = clip_config(family, _text_shapes(shapes, layout.SD1_TEXT_PREFIX))
        return configs | {"unet": unet_config(family, _below(shapes, UNET_PREFIX))}
    configs["text_encoder"] = clip_config(family, _text_shapes(shapes, layout.SDXL_TEXT_PREFIX))
    configs["text_encoder_2"] = second = open_clip_config(_below(shapes, layout.SDXL_TEXT_2_PREFIX))
    return configs | {"unet": unet_config(family, _below(shapes, UNET_PREFIX), second["projection_dim"])}


def _text_shapes(shapes: Shapes, prefix: str) -> Shapes:
    """Some checkpoints leave `text_model.` out of the text encoder's names."""
    return _below(shapes, prefix) or _below(shapes, prefix.removesuffix("text_model."))


def _below(shapes: Shapes, prefix: str) -> Shapes:
    return {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
