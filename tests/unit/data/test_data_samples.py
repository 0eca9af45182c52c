"""Every layout people have is read; whatever is left out is named; whatever is wrong says what is there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from autotune.errors import DataError
from trainer.config.schema import TrainConfig
from trainer.data.samples import Dataset, load_dataset

Draw = Callable[..., Path]
Configure = Callable[..., TrainConfig]


def captions_of(dataset: Dataset) -> list[tuple[str, str, int]]:
    return [(sample.path.name, sample.caption, sample.repeat) for sample in dataset.samples]


def note_with(dataset: Dataset, text: str) -> str:
    matching = [note for note in dataset.notes if text in note]
    assert len(matching) == 1, dataset.notes
    return matching[0]


def test_kohya_folders_give_repeats_and_class_tokens(draw: Draw, configure: Configure) -> None:
    draw("2_cat/a.png", caption="a cat on a sofa\nsecond line")
    draw("2_cat/b.jpg")
    draw("1_blue dog/c.webp")
    dataset = load_dataset(configure())
    assert captions_of(dataset) == [
        ("c.webp", "blue dog", 0),
        ("a.png", "a cat on a sofa", 0),
        ("a.png", "a cat on a sofa", 1),
        ("b.jpg", "cat", 0),
        ("b.jpg", "cat", 1),
    ]
    assert [sample.index for sample in dataset.samples] == list(range(5))
    assert note_with(dataset, "class token").startswith("2 images have no .txt caption file")
    assert "a.txt" in note_with(dataset, "only the first is used")


def test_folders_without_a_number_are_ignored_by_name(draw: Draw, configure: Configure) -> None:
    draw("1_cat/a.png", caption="x")
    draw("CROP/b.png")
    draw("0_none/c.png")
    draw("loose.png")
    dataset = load_dataset(configure())
    assert [sample.path.name for sample in dataset.samples] == ["a.png"]
    ignored = note_with(dataset, "ignored folders")
    assert "0_none (1 images, but 0 repeats)" in ignored
    assert "CROP (1 images, but no N_ before its name" in ignored
    assert "1 images directly in" in note_with(dataset, "are ignored beside")


def test_pictures_too_deep_or_of_another_kind_are_named(draw: Draw, configure: Configure, tmp_path: Path) -> None:
    draw("1_cat/a.png", caption="x")
    draw("1_cat/more/b.png")
    (tmp_path / "1_cat/c.heic").write_bytes(b"x")
    (tmp_path / "1_cat/d.GIF").write_bytes(b"x")
    dataset = load_dataset(configure())
    assert note_with(dataset, "inside concept folders").endswith("1_cat/more.")
    assert "1 .gif, 1 .heic" in note_with(dataset, "not used")


def test_a_leaf_folder_counts_each_picture_once_with_a_note(draw: Draw, configure: Configure) -> None:
    draw("cats/a.png", caption="one")
    draw("cats/b.png")
    dataset = load_dataset(configure(train_data_dir=str(draw("cats/c.png", caption="three").parent)))
    assert captions_of(dataset) == [("a.png", "one", 0), ("b.png", "", 0), ("c.png", "three", 0)]
    assert "each counts once" in note_with(dataset, "holds the images itself")
    assert "1 train with an empty caption" in note_with(dataset, "no .txt caption")


def test_a_leaf_folder_named_for_kohya_keeps_its_repeats(draw: Draw, configure: Configure) -> None:
    leaf = draw("3_cat/a.png").parent
    dataset = load_dataset(configure(train_data_dir=str(leaf)))
    assert captions_of(dataset) == [("a.png", "cat", 0), ("a.png", "cat", 1), ("a.png", "cat", 2)]


def test_extensions_count_in_any_case_and_hidden_files_never(
    draw: Draw, configure: Configure, tmp_path: Path
) -> None:
    for name in ("a.PNG", "b.Jpg", "c.jpeg", "d.BMP", "e.webp"):
        draw(name)
    for name in ("._a.png", ".hidden.png", "notes.md"):
        (tmp_path / name).write_bytes(b"x")
    draw("__MACOSX/f.png")
    dataset = load_dataset(configure())
    assert [sample.path.name for sample in dataset.samples] == ["a.PNG", "b.Jpg", "c.jpeg", "d.BMP", "e.webp"]


def test_linked_pictures_and_folders_are_followed(draw: Draw, configure: Configure, tmp_path: Path) -> None:
    real = draw("elsewhere/a.png")
    data = tmp_path / "data"
    (data / "1_cat").mkdir(parents=True)
    (data / "1_cat" / "link.png").symlink_to(real)
    (data / "2_dog").symlink_to(real.parent, target_is_directory=True)
    dataset = load_dataset(configure(train_data_dir=str(data)))
    assert [sample.caption for sample in dataset.samples] == ["cat", "dog", "dog"]


def test_the_configured_caption_file_wins_and_the_other_kind_is_hinted(draw: Draw, configure: Configure) -> None:
    picture = draw("1_cat/a.png", caption="from txt")
    picture.with_suffix(".caption").write_text("from caption")
    draw("1_cat/b.png", caption="only txt")
    dataset = load_dataset(configure(caption_extension="caption"))
    assert [sample.caption for sample in dataset.samples] == ["from caption", "cat"]
    assert note_with(dataset, "no .caption caption file").endswith("1 have a .txt file instead.")
    assert [s.caption for s in load_dataset(configure()).samples] == ["from txt", "only txt"]


@pytest.mark.parametrize(
    ("data", "caption", "note"),
    [
        (b"\xef\xbb\xbfa cat", "a cat", ""),
        ("a cat".encode("utf-16"), "a cat", ""),
        ("一只猫坐在沙发上".encode("gbk"), "一只猫坐在沙发上", "read as gbk"),
        ("рыжий кот сидит на диване".encode("cp1251"), "рыжий кот сидит на диване", "read as cp1251"),
        ("ein Mädchen grüßt".encode("cp1252"), "ein Mädchen grüßt", "read as cp1252"),
        (b"\r\n  \r\nsecond line\r\n", "second line", ""),
        (b"", "", "are empty"),
    ],
)
def test_captions_are_read_in_the_encoding_they_have(
    draw: Draw, configure: Configure, data: bytes, caption: str, note: str
) -> None:
    draw("1_cat/a.png").with_suffix(".txt").write_bytes(data)
    dataset = load_dataset(configure())
    assert dataset.samples[0].caption == caption
    if note:
        assert "a.txt" in note_with(dataset, note)
    else:
        assert not any("UTF-8" in line for line in dataset.notes)


def test_a_folder_called_after_a_date_is_refused_before_it_fills_the_memory(
    draw: Draw, configure: Configure
) -> None:
    draw("20240131_cats/a.png")
    with pytest.raises(DataError, match=r"20240131_cats asks for 20,240,131 repeats"):
        load_dataset(configure())


def test_a_wrong_path_names_the_nearest_folder_and_what_it_holds(
    draw: Draw, configure: Configure, tmp_path: Path
) -> None:
    draw("cats/a.png")
    with pytest.raises(DataError) as caught:
        load_dataset(configure(train_data_dir=str(tmp_path / "catz" / "deep")))
    assert f"nearest folder that does is {tmp_path}, with cats" in caught.value.fact


def test_a_file_is_not_a_folder(draw: Draw, configure: Configure) -> None:
    with pytest.raises(DataError, match="is a file"):
        load_dataset(configure(train_data_dir=str(draw("a.png"))))


def test_an_empty_folder_says_so(configure: Configure) -> None:
    with pytest.raises(DataError, match="the folder is empty"):
        load_dataset(configure())


def test_a_folder_without_images_says_what_it_has(draw: Draw, configure: Configure, tmp_path: Path) -> None:
    draw("cats/a.png")
    (tmp_path / "1_dogs").mkdir()
    for name in ("a.txt", "b.txt", "movie.mp4"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError) as caught:
        load_dataset(configure())
    assert "1 .mp4, 2 .txt, folder 1_dogs (no images directly in it), folder cats (1 images" in caught.value.fact
    assert "rename it 10_cats" in caught.value.way_out


def test_sizes_are_those_of_the_upright_picture(draw: Draw, configure: Configure) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a.jpg", "b.png", "c.webp"):
        draw(f"1_cat/{name}", (64, 48), exif=exif)
    assert {sample.size for sample in load_dataset(configure()).samples} == {(48, 64)}


def test_every_broken_picture_is_listed_at_once(draw: Draw, configure: Configure, tmp_path: Path) -> None:
    whole = draw("1_cat/a.png", (300, 200))
    (tmp_path / "1_cat/empty.png").write_bytes(b"")
    (tmp_path / "1_cat/page.jpg").write_text("<!DOCTYPE html><html>404</html>")
    (tmp_path / "1_cat/gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "1_cat/cut.png").write_bytes(whole.read_bytes()[:-60])
    with pytest.raises(DataError) as caught:
        load_dataset(configure())
    for row in ("4 of 5", "empty.png (empty: 0 bytes)", "page.jpg (not an image but a web page", "cut.png"):
        assert row in caught.value.fact
    assert "gone.png (a link to a file that is gone)" in caught.value.fact


def test_pictures_below_the_step_are_left_out_with_a_reason(draw: Draw, configure: Configure) -> None:
    draw("1_cat/a.png", (128, 128))
    draw("1_cat/b.png", (60, 40))
    config = configure(enable_bucket=True, bucket_no_upscale=True)
    dataset = load_dataset(config)
    assert [(sample.index, sample.path.name) for sample in dataset.samples] == [(0, "a.png")]
    assert "(b.png)" in note_with(dataset, "below bucket_reso_steps (64 pixels)")


def test_nothing_left_after_leaving_out_is_an_error(draw: Draw, configure: Configure) -> None:
    draw("1_cat/b.png", (60, 40))
    with pytest.raises(DataError, match="all 1 images have a side below"):
        load_dataset(configure(enable_bucket=True, bucket_no_upscale=True))


def test_moved_bucket_limits_are_told(draw: Draw, configure: Configure) -> None:
    draw("1_cat/a.png")
    dataset = load_dataset(configure(enable_bucket=True, min_bucket_reso=768))
    assert note_with(dataset, "buckets for 512x512")


def test_names_in_any_script_are_read(draw: Draw, configure: Configure, tmp_path: Path) -> None:
    draw("daten für Käthe/2_кот/猫 一.png", caption="a cat")
    dataset = load_dataset(configure(train_data_dir=str(tmp_path / "daten für Käthe")))
    assert captions_of(dataset)[1] == ("猫 一.png", "a cat", 1)


def test_loading_changes_no_file(draw: Draw, configure: Configure, tmp_path: Path) -> None:
    draw("1_cat/a.png", caption="x")
    draw("CROP/b.png")
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    shutil.copytree(tmp_path, copy)
    load_dataset(configure())
    contents = [
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()} for root in (tmp_path, copy)
    ]
    assert contents[0] == contents[1]
