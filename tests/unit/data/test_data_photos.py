"""The demo photographs are real pictures with captions and licences, and load from every layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from autotune.errors import DiskError
from autotune.testing.photos import PHOTOS, Layout, list_photos, write_demo_dataset
from trainer.config.schema import TrainConfig
from trainer.data.checks import check_images
from trainer.data.samples import load_dataset

Configure = Callable[..., TrainConfig]


def test_there_are_at_least_twelve_small_photographs_each_with_a_caption_and_a_licence() -> None:
    licences = (PHOTOS / "LICENSES.md").read_text()
    photos = list_photos()
    assert len(photos) >= 12
    assert len({caption for _, caption in photos}) == len(photos)
    for photo, caption in photos:
        with Image.open(photo) as picture:
            assert 300 <= max(picture.size) <= 640
        assert len(caption.split()) >= 5
        assert f"| {photo.name} |" in licences
    assert sum(file.stat().st_size for file in PHOTOS.iterdir()) < 1_500_000


@pytest.mark.parametrize("layout", ["kohya", "flat", "csv"])
def test_every_layout_loads_to_the_same_samples(tmp_path: Path, configure: Configure, layout: Layout) -> None:
    folder = write_demo_dataset(tmp_path / "new" / layout, layout)
    dataset = load_dataset(configure(train_data_dir=str(folder)))
    expected = [(photo.name, caption) for photo, caption in list_photos()]
    assert [(sample.path.name, sample.caption) for sample in dataset.samples] == expected
    assert check_images(dataset.paths) == ()


def test_kohya_repeats_are_in_the_folders_name(tmp_path: Path, configure: Configure) -> None:
    folder = write_demo_dataset(tmp_path / "demo", "kohya", repeats=3)
    dataset = load_dataset(configure(train_data_dir=str(folder)))
    assert len(dataset.samples) == 3 * len(list_photos())


def test_a_folder_with_something_in_it_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DiskError, match="is not empty"):
        write_demo_dataset(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
