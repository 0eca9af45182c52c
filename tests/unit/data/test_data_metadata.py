"""metadata.csv is read as people's tools write it; what has two meanings is refused with line and fix."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import DataError
from trainer.config.schema import TrainConfig
from trainer.data.metadata import Row, locate_images
from trainer.data.samples import Dataset, load_dataset

Draw = Callable[..., Path]
Configure = Callable[..., TrainConfig]

EXPECTED = [("a.png", "a cat, sitting"), ("b.png", "a dog")]


@pytest.fixture(autouse=True)
def pictures(draw: Draw) -> None:
    draw("a.png", caption="not this one")
    draw("b.png")


def rows_of(dataset: Dataset) -> list[tuple[str, str]]:
    return [(sample.path.name, sample.caption) for sample in dataset.samples]


def load_table(configure: Configure, tmp_path: Path, table: str | bytes) -> Dataset:
    data = table.encode() if isinstance(table, str) else table
    (tmp_path / "metadata.csv").write_bytes(data)
    return load_dataset(configure())


PLAIN = 'filename,prompt\na.png,"a cat, sitting"\nb.png,a dog\n'


@pytest.mark.parametrize(
    ("table", "note"),
    [
        (PLAIN, ""),
        (PLAIN.replace("\n", "\r\n"), ""),
        (PLAIN.replace("\n", "\n\n  \n"), ""),
        (PLAIN.replace("filename,prompt", "File_Name , Text"), ""),
        (PLAIN.replace("filename,prompt", '"image","caption"'), ""),
        (b"\xef\xbb\xbf" + PLAIN.encode(), ""),
        (PLAIN.encode("utf-16"), ""),
        (PLAIN.encode("utf-16-le"), ""),
        (PLAIN.replace("a.png", ".\\a.png"), ""),
        (PLAIN.replace("a.png", "a"), ""),
        ('prompt,filename\n"a cat, sitting",a.png\na dog,b.png\n', ""),
        ('filename,width,prompt\na.png,64,"a cat, sitting"\nb.png,64,a dog\n', ""),
        ('filename,prompt\n"a cat, sitting",a.png\na dog,b.png\n', "columns swapped"),
        (PLAIN.replace("filename,prompt\n", ""), "no header"),
        ('"a cat, sitting",a.png\na dog,b.png\n', "no header"),
        ("filename,prompt\na.png,a cat, sitting\nb.png,a dog\n", "unquoted commas in line 2"),
        ("prompt,filename\na cat, sitting,a.png\na dog,b.png\n", "unquoted commas in line 2"),
        ("filename，prompt\na.png，a cat, sitting\nb.png，a dog\n", "full-width commas"),
        ('"filename";"prompt"\n"a.png";"a cat, sitting"\n"b.png";"a dog"\n', "semicolons"),
        ("filename\tprompt\na.png\ta cat, sitting\nb.png\ta dog\n", "tabs"),
    ],
)
def test_a_table_with_one_meaning_is_accepted(
    configure: Configure, tmp_path: Path, table: str | bytes, note: str
) -> None:
    dataset = load_table(configure, tmp_path, table)
    assert rows_of(dataset) == EXPECTED
    doubts = [line for line in dataset.notes if line.startswith("metadata.csv:")]
    assert len(doubts) == bool(note), dataset.notes
    assert all(note in line for line in doubts)


@pytest.mark.parametrize(
    ("table", "problem", "fix"),
    [
        ("", "is empty", "filename,prompt"),
        ("filename,prompt\n", "no rows", "filename,prompt"),
        ("name,words\na.png,a cat\n", "line 1: the header 'name,words' names no file column", "file_name"),
        (
            "\nfilename,words\na.png,a cat\n",
            "line 2: the header 'filename,words' names no caption",
            "caption",
        ),
        ("filename,prompt\na.png,a cat\nb.png\n", "line 3: 'b.png' has 1 of 2 columns", "cat.png"),
        ("filename,prompt\n,a cat\n", "line 2: there is no file name", "cat.png"),
        ('filename,prompt\na.png,"a cat\nb.png,a dog\n', "line 2: the quotes (\") don't pair up", "12"),
        ('filename,prompt\na.png,"a "big" cat"\n', "line 2: the quotes (\") don't pair up", "double each"),
        ("filename,w,prompt\na.png,1,a cat, big\n", "line 2: 4 columns where the header has 3", "quotes"),
        ("filename,prompt\na.png,one, b.png\n", "line 2: 3 columns", "quotes"),
    ],
)
def test_a_table_with_two_meanings_names_line_and_fix(
    configure: Configure, tmp_path: Path, table: str, problem: str, fix: str
) -> None:
    with pytest.raises(DataError) as caught:
        load_table(configure, tmp_path, table)
    assert problem in caught.value.fact
    assert fix in caught.value.way_out


def test_every_row_without_its_picture_is_listed(configure: Configure, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_table(configure, tmp_path, "filename,prompt\nx.png,x\na.png,a\ny.png,y\n")
    assert "2 of 3 images are not in" in caught.value.fact
    assert "x.png (line 2), y.png (line 4)" in caught.value.fact


def test_a_file_name_longer_than_any_can_be_is_a_missing_picture(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 1 images are not in"):
        locate_images(tmp_path / "metadata.csv", [Row(2, "a cat, " * 60, "a.png")], [tmp_path])


def test_a_caption_may_span_lines_inside_quotes(configure: Configure, tmp_path: Path) -> None:
    dataset = load_table(configure, tmp_path, 'filename,prompt\na.png,"a cat\non a sofa"\nb.png,a dog\n')
    assert rows_of(dataset) == [("a.png", "a cat on a sofa"), ("b.png", "a dog")]


def test_pictures_without_a_row_and_empty_captions_are_counted(configure: Configure, tmp_path: Path) -> None:
    dataset = load_table(configure, tmp_path, "filename,prompt\na.png,\n")
    assert rows_of(dataset) == [("a.png", "")]
    assert any("1 captions are empty (line 2)" in note for note in dataset.notes)
    assert any("1 images have no row" in note and "(b.png)" in note for note in dataset.notes)


def test_names_are_relative_to_the_table_or_the_data_folder(
    configure: Configure, draw: Draw, tmp_path: Path
) -> None:
    draw("data/2_cat/c.png")
    draw("tables/d.png")
    table = tmp_path / "tables" / "mine.csv"
    table.write_text(f"filename,prompt\n2_cat/c.png,in data\nd.png,beside\n{tmp_path / 'a.png'},absolute\n")
    dataset = load_dataset(configure(train_data_dir=str(tmp_path / "data"), metadata_path=str(table)))
    assert rows_of(dataset) == [
        ("c.png", "in data"), ("c.png", "in data"), ("d.png", "beside"), ("a.png", "absolute"),
    ]  # fmt: skip


def test_a_picture_with_two_rows_trains_with_both(configure: Configure, tmp_path: Path) -> None:
    dataset = load_table(configure, tmp_path, "filename,prompt\na.png,one\na.png,two\nb.png,x\n")
    assert rows_of(dataset)[:2] == [("a.png", "one"), ("a.png", "two")]
    assert any("1 rows name an image that another row has" in note for note in dataset.notes)


def test_a_table_that_is_not_there_is_an_error(configure: Configure, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a file"):
        load_dataset(configure(metadata_path=str(tmp_path / "none.csv")))


def test_a_table_in_gbk_is_read_with_a_note(configure: Configure, tmp_path: Path) -> None:
    dataset = load_table(configure, tmp_path, "filename,prompt\na.png,一只猫\nb.png,一只狗坐着\n".encode("gbk"))
    assert rows_of(dataset)[0] == ("a.png", "一只猫")
    assert any("read as gbk" in note for note in dataset.notes)
