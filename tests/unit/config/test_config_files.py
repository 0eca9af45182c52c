"""Files as they lie on disks: encodings, syntax errors with a line, and hostile content."""

import codecs
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError
from trainer.config.dialects import translate
from trainer.config.documents import read_document
from trainer.config.loader import LoadedConfig, load_config

Load = Callable[..., LoadedConfig]
RUSSIAN = 'output_name = "персонаж"  # мой первый персонаж\ntrain_batch_size = 2\n'
CHINESE = 'output_name = "人物"  # 我的第一个训练\ntrain_batch_size = 2\n'
FRENCH = 'output_name = "modèle"  # première forêt\ntrain_batch_size = 2\n'


def output_name(path: Path) -> str:
    return str(dict(read_document(path).values)["output_name"])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_text_of_windows_editors_reads_the_same(folder: Path, encoding: str) -> None:
    path = folder / "config.toml"
    path.write_bytes(RUSSIAN.replace("\n", "\r\n").encode(encoding))
    assert output_name(path) == "персонаж"


def test_utf16_with_a_big_endian_mark_reads(folder: Path) -> None:
    path = folder / "config.toml"
    path.write_bytes(codecs.BOM_UTF16_BE + RUSSIAN.encode("utf-16-be"))
    assert output_name(path) == "персонаж"


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        (RUSSIAN, "cp1251", "персонаж"),
        ('output_name = "喵喵"', "gbk", "喵喵"),
        ('output_name = "ПРИВЕТ"', "cp1251", "ПРИВЕТ"),
        (CHINESE, "gbk", "人物"),
        (FRENCH, "cp1252", "modèle"),
    ],
)
def test_local_code_pages_are_guessed_and_named(folder: Path, text: str, encoding: str, name: str) -> None:
    path = folder / "config.toml"
    path.write_bytes(text.encode(encoding))
    assert output_name(path) == name
    assert f"read as {encoding}" in read_document(path).notes[0]


@pytest.mark.parametrize(
    ("text", "line", "way_out"),
    [
        ('seed = 1\ntrain_data_dir = "C:\\Users\\me"\n', 2, "single quotes"),
        ("seed = 1\n\nshuffle_caption = True\n", 3, "small letters"),
        ("seed = None\n", 1, "Leave the key out"),
        ("output_name = lora\n", 1, "quotes"),
        ("[a]\nseed = 1\n[a]\nnetwork_dim = 2\n", 3, "Keep one table"),
        ("seed = 1\nseed = 2\n", 2, "Keep one line"),
        ('{\n "seed": 1\n "network_dim": 4\n}', 3, "comma"),
        ('{\n "train_data_dir": "C:\\Users"\n}', 2, "double every backslash"),
        ("seed: 1\nseed: 2\n", 2, "Keep one line"),
        ("a:\n\t- b\n", 2, "spaces"),
    ],
)
def test_syntax_errors_name_the_line_and_the_way_out(folder: Path, text: str, line: int, way_out: str) -> None:
    path = folder / "config"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert f"config line {line} " in str(caught.value)
    assert way_out in str(caught.value)
    assert "\n" not in str(caught.value)


def test_backslashes_read_as_valid_escapes_are_noticed(load: Load) -> None:
    with pytest.raises(ConfigError, match="backslashes were read as escapes"):
        load('output_dir = "C:\\new\\train"')


def test_repeated_json_keys_are_named(load: Load) -> None:
    loaded = load('{"seed": 1, "seed": 2}', name="settings.json")
    assert loaded.config.seed == 2
    assert "settings.json: seed is written twice, the later one counts" in loaded.notes


def test_a_missing_file_names_the_nearest_folder_and_a_similar_name(files: object, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist.*Did you mean .*config\.toml"):
        load_config([folder / "confg.toml"])
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load_config([folder / "config"])
    with pytest.raises(ConfigError, match=f"nearest folder that exists is {folder}"):
        load_config([folder / "a" / "b.toml"])


def test_a_folder_instead_of_a_file_lists_the_configs_in_it(files: object, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder.*config\.toml"):
        load_config([folder])


def test_a_file_without_permission_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "config.toml"
    path.write_text("seed = 1")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="Permission denied"):
        load_config([path])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
    with pytest.raises(ConfigError, match="not a regular file"):
        load_config([folder / "pipe"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n\t\n",
        b"\xef\xbb\xbf",
        b"# only a comment\n",
        b"{}",
        b"[1, 2]",
        b'[{"seed": 1}]',
        b"null",
        b"just some words",
        b"seed",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        b"PK\x03\x04" + bytes(range(256)),
        bytes(range(128, 256)) * 4,
        b"\xff\xfe\x00",
        b"\x08\x00\x00\x00\x00\x00\x00\x00{}",
        b"seed = " + b"9" * 6000,
        b'{"seed": ' + b"9" * 6000 + b"}",
        b"seed: " + b"9" * 6000,
        b'{"seed": NaN}',
        b'{"learning_rate": 1e999}',
        b"learning_rate = inf",
        b"seed = 1979-05-27",
        b"lora_rank: 2024-01-01",
        b"lora_rank: !!python/object:os.system x",
        b"lora_rank: *nowhere",
        b"a: 1\n---\nb: 2\n",
        b"{" * 5000,
        b"[" * 50000,
        b'{"a":' * 50000,
        b"a = " + b"[" * 50000,
        b"a: " + b"[" * 2000,
        b"a" * ((1 << 18) + 1),
    ],
    ids=lambda content: repr(content[:14]),
)
def test_hostile_files_are_one_line_errors(folder: Path, content: bytes) -> None:
    path = folder / "config"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config([path], ["pretrained_model_name_or_path=model", "train_data_dir=pictures"])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_no_bytes_at_all_crash_the_reader(folder: Path, content: bytes) -> None:
    path = folder / "config"
    path.write_bytes(content)
    said = ""
    try:
        translate(read_document(path))
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said


def test_an_alias_bomb_is_named_and_left_alone(load: Load) -> None:
    lines = ["lora_rank: 8", "a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    loaded = load("\n".join(lines), name="bomb.yaml")
    assert loaded.config.network_dim == 8
    assert any("a39" in note for note in loaded.notes)
