"""Small pictures on disk, and configs that point at them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

from trainer.config.schema import TrainConfig

# No deadline: a promise never depends on how busy the machine is.
settings.register_profile("steady", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

Draw = Callable[..., Path]
Configure = Callable[..., TrainConfig]


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    """Writes a picture of one colour: draw("10_cat/a.png", (64, 48), caption="a cat")."""

    def draw_one(name: str, size: tuple[int, int] = (64, 48), caption: str | None = None, **save: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (200, 100, 50)).save(path, **save)
        if caption is not None:
            path.with_suffix(".txt").write_text(caption, encoding="utf-8")
        return path

    return draw_one


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """A config on the temporary folder; keywords override."""

    def configure_one(**values: Any) -> TrainConfig:
        return TrainConfig(**{"pretrained_model_name_or_path": "m", "train_data_dir": str(tmp_path), **values})

    return configure_one
