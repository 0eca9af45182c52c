"""rewrite_config: only the chosen lines differ, the rest stays byte for byte, no file is written over."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError
from trainer.config.loader import load_config
from trainer.config.rewrite import rewrite_config

CHANGES: dict[str, Any] = {
    "train_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "resolution": ((448, 448),),
    "gradient_checkpointing": True,
    "network_dim": 16,
    "network_alpha": 8.0,
}


def rewritten(path: Path, changes: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
    """The lines that went and the lines that came, ends included."""
    destination = path.with_name(f"new-{path.name}")
    before = path.read_bytes()
    rewrite_config(path, destination, changes)
    assert path.read_bytes() == before
    old, new = before.splitlines(True), destination.read_bytes().splitlines(True)
    kept_in_order = [line for line in new if line in old]
    assert kept_in_order == [line for line in old if line in new]
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_a_toml_keeps_comments_spacing_and_quotes(files: SimpleNamespace) -> None:
    gone, come = rewritten(files.toml, CHANGES)
    assert come == [
        b"train_batch_size = 1          # as the guide says\n",
        b"gradient_accumulation_steps = 4\n",
        b"gradient_checkpointing = true\n",
        b"network_dim = 16\n",
        b"network_alpha = 8\n",
        b'resolution = "448,448"\n',
    ]
    assert len(gone) == 6


def test_a_json_keeps_its_indentation(files: SimpleNamespace) -> None:
    _, come = rewritten(files.json, {**CHANGES, "resolution": ((448, 640),)})
    assert come == [
        b'  "train_batch_size": 1,\n',
        b'  "gradient_accumulation_steps": 4,\n',
        b'  "resolution": "448,640",\n',
        b'  "network_dim": 16,\n',
        b'  "network_alpha": 8,\n',
    ]


def test_a_gui_file_keeps_its_keys_and_its_text_numbers(files: SimpleNamespace) -> None:
    text = files.gui.read_text().replace('"train_batch_size": 3', '"train_batch_size": "3"')
    files.gui.write_text(text)
    _, come = rewritten(files.gui, CHANGES)
    assert b'  "max_resolution": "448,448",\n' in come
    assert b'  "train_batch_size": "1",\n' in come
    assert b'  "gradient_accumulation_steps": 4.0,\n' in come
    assert len(come) == 6


def test_a_yaml_keeps_its_words_and_gets_missing_keys_in_them(files: SimpleNamespace) -> None:
    _, come = rewritten(files.yaml, CHANGES)
    assert come == [
        b"batch_size: 1\n",
        b"gradient_accumulation_steps: 4\n",
        b'resolution: "448,448"\n',
        b"gradient_checkpointing: true\n",
    ]


@pytest.mark.parametrize("kind", ["toml", "json", "yaml", "gui"])
def test_the_new_file_means_the_changes_and_nothing_else(files: SimpleNamespace, folder: Path, kind: str) -> None:
    source = getattr(files, kind)
    rewrite_config(source, folder / "new", CHANGES)
    required = ["pretrained_model_name_or_path=model", "train_data_dir=pictures"]
    old, new = load_config([source], required).config, load_config([folder / "new"], required).config
    assert new == old.model_copy(update=CHANGES)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1251"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_encoding_mark_and_line_ends_stay(folder: Path, encoding: str, line_end: str) -> None:
    text = "[dataset]\nresolution = 512 # размер\n\n# дальше сеть\n[network]\nnetwork_dim = 8\n\n# конец\n"
    source, new = folder / "a.toml", folder / "b.toml"
    source.write_bytes(text.replace("\n", line_end).encode(encoding))
    rewrite_config(source, new, {"resolution": ((448, 448),), "network_alpha": 4})
    expected = text.replace("512", "448").replace("_dim = 8\n", "_dim = 8\nnetwork_alpha = 4\n")
    assert new.read_bytes() == expected.replace("\n", line_end).encode(encoding)


@pytest.mark.parametrize(
    ("old", "size", "new"),
    [
        ('resolution = "512"', (448, 448), 'resolution = "448"'),
        ('resolution = "512x768"', (448, 704), 'resolution = "448x704"'),
        ("resolution = '512, 512'", (448, 448), "resolution = '448, 448'"),
        ("resolution = 512", (448, 448), "resolution = 448"),
        ("resolution = 512", (448, 640), 'resolution = "448,640"'),
        ("resolution = [512, 512] # w", (448, 448), "resolution = [448, 448] # w"),
        ("resolution = [\n  512, # w\n  512,\n]", (448, 640), "resolution = [\n  448, # w\n  640,\n]"),
        ('resolution = ["512", "512"]', (448, 448), 'resolution = ["448", "448"]'),
    ],
)
def test_a_resolution_keeps_its_spelling(folder: Path, old: str, size: tuple[int, int], new: str) -> None:
    (folder / "a.toml").write_text(old)
    rewrite_config(folder / "a.toml", folder / "b.toml", {"resolution": (size,)})
    assert (folder / "b.toml").read_text() == new


@pytest.mark.parametrize(
    "old", ['"512,512;768,768"', "[[512, 512], [768, 768]]", '["512,512", "768,768"]', '"512;768"']
)
def test_several_resolutions_keep_their_form(folder: Path, old: str) -> None:
    (folder / "a.toml").write_text(f"resolution = {old}\n")
    rewrite_config(folder / "a.toml", folder / "b.toml", {"resolution": ((512, 512), (704, 704))})
    assert (folder / "b.toml").read_text() == f"resolution = {old.replace('768', '704')}\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "lora_rank: 8\ngradient_checkpointing: False  # slow\n",
            "lora_rank: 8\ngradient_checkpointing: True  # slow\n",
        ),
        ("lora_rank: 8\ngradient_checkpointing: 'no'\n", "lora_rank: 8\ngradient_checkpointing: 'yes'\n"),
        ("{lora_rank: 8}\n", "{lora_rank: 8, gradient_checkpointing: true}\n"),
        (
            "net:\n  lora_rank: 8 # r\nlist: [a]\n",
            "net:\n  lora_rank: 8 # r\n  gradient_checkpointing: true\nlist: [a]\n",
        ),
        ("lora_rank: 8", "lora_rank: 8\ngradient_checkpointing: true"),
    ],
)
def test_yaml_switches_keep_their_words(folder: Path, old: str, new: str) -> None:
    (folder / "a.yaml").write_text(old)
    rewrite_config(folder / "a.yaml", folder / "b.yaml", {"gradient_checkpointing": True})
    assert (folder / "b.yaml").read_text() == new


def test_a_value_that_already_says_so_is_left_as_written(folder: Path) -> None:
    text = 'resolution = "512x512"\ntrain_batch_size = "4"\nnetwork_alpha = 16.0\n'
    (folder / "a.toml").write_text(text)
    changes = {"resolution": ((512, 512),), "train_batch_size": 4, "network_alpha": 16}
    rewrite_config(folder / "a.toml", folder / "b.toml", changes)
    assert (folder / "b.toml").read_text() == text


def test_a_missing_key_whose_value_holds_anyway_gets_no_line(folder: Path) -> None:
    text = "[training]\ntrain_batch_size = 4\nnetwork_dim = 32\n"
    (folder / "a.toml").write_text(text)
    changes = {"train_batch_size": 2, "gradient_checkpointing": False, "network_dim": 16}
    rewrite_config(folder / "a.toml", folder / "b.toml", changes, {"gradient_checkpointing", "network_dim"})
    assert (folder / "b.toml").read_text() == text.replace("= 4", "= 2").replace("= 32", "= 16")


def test_of_two_places_the_one_that_counts_changes(folder: Path) -> None:
    (folder / "a.toml").write_text("[a]\ntrain_batch_size = 8\n[b]\ntrain_batch_size = 4\n")
    rewrite_config(folder / "a.toml", folder / "b.toml", {"train_batch_size": 2})
    assert (folder / "b.toml").read_text() == "[a]\ntrain_batch_size = 8\n[b]\ntrain_batch_size = 2\n"


def test_a_yaml_alias_changes_where_it_is_used(folder: Path) -> None:
    (folder / "a.yaml").write_text("lora_rank: &r 8\nlora_alpha: *r\n")
    rewrite_config(folder / "a.yaml", folder / "b.yaml", {"network_alpha": 4})
    assert (folder / "b.yaml").read_text() == "lora_rank: &r 8\nlora_alpha: 4\n"


def test_what_would_change_another_setting_is_refused(folder: Path) -> None:
    (folder / "a.yaml").write_text("lora_rank: &r 8\nlora_alpha: *r\n")
    with pytest.raises(ConfigError, match="without touching other settings"):
        rewrite_config(folder / "a.yaml", folder / "b.yaml", {"network_dim": 4})
    assert not (folder / "b.yaml").exists()


def test_no_existing_file_is_written_over(files: SimpleNamespace, folder: Path) -> None:
    before = files.toml.read_bytes(), files.json.read_bytes()
    with pytest.raises(ConfigError, match="never changed"):
        rewrite_config(files.toml, files.toml, CHANGES)
    with pytest.raises(ConfigError, match="never overwritten"):
        rewrite_config(files.toml, files.json, CHANGES)
    (folder / "link.toml").symlink_to(folder / "nowhere")
    with pytest.raises(ConfigError, match="never overwritten"):
        rewrite_config(files.toml, folder / "link.toml", CHANGES)
    assert (files.toml.read_bytes(), files.json.read_bytes()) == before


def test_other_keys_are_not_rewritten(files: SimpleNamespace, folder: Path) -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        rewrite_config(files.toml, folder / "b", {"learning_rate": 1e-3})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["toml", "json", "yaml", "gui"]),
    batch=st.integers(1, 64),
    sizes=st.lists(st.tuples(st.integers(8, 128), st.integers(8, 128)), min_size=1, max_size=3, unique=True),
    rank=st.integers(1, 256),
    alpha=st.floats(0.25, 128).map(lambda number: round(number, 2)),
    checkpointing=st.booleans(),
)
def test_any_plan_round_trips_through_any_dialect(
    files: SimpleNamespace,
    folder: Path,
    kind: str,
    batch: int,
    sizes: Any,
    rank: int,
    alpha: float,
    checkpointing: bool,
) -> None:
    changes = {
        "train_batch_size": batch,
        "resolution": tuple((width * 8, height * 8) for width, height in sizes),
        "network_dim": rank,
        "network_alpha": alpha,
        "gradient_checkpointing": checkpointing,
    }
    new = folder / f"new-{len(list(folder.iterdir()))}"
    rewrite_config(getattr(files, kind), new, changes)
    required = ["pretrained_model_name_or_path=model", "train_data_dir=pictures", "bucket_no_upscale=true"]
    config = load_config([new], required).config
    assert {key: getattr(config, key) for key in changes} == changes
