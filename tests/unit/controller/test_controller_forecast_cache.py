"""The forecast cache: what went in comes out, another question's never does, and losing it costs time alone."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.controller import forecast_cache
from autotune.controller.forecast import Architecture
from autotune.controller.forecast_cache import ForecastCache, cache_key
from autotune.device.null.card import NullCard
from autotune.device.null.places import cache_folder
from autotune.errors import DeviceError, DiskError
from autotune.testing.null_workers import JOB, START, report_of, squeezed
from autotune.trial.outcome import Verdict
from autotune.units import GIB

AMPERE = Architecture((8, 6), 28)
FACTORY = "trainer.forecast:create"
LARGER = START.replace("batch_size", 2)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of the test's own, beside a CUDA build of torch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(forecast_cache, "cuda_torch", lambda: (SimpleNamespace(version="2.13.0+cu130"), None))
    return tmp_path


def filled() -> ForecastCache:
    cache = ForecastCache.load("key")
    whole, short = report_of(START, recorded=True), report_of(LARGER, to_the_end=False)
    assert whole.account is not None
    cache.job, cache.outcomes[START], cache.accounts[START] = JOB, whole.outcome, whole.account
    cache.steps_only[LARGER] = short.outcome
    cache.accounts[LARGER] = None
    cache.squeezed[START, 2 * GIB] = squeezed(whole, 2 * GIB).outcome
    cache.save()
    return cache


def test_what_was_saved_is_loaded() -> None:
    saved, loaded = filled(), ForecastCache.load("key")
    assert replace(loaded, _loaded=0) == replace(saved, _loaded=0)
    assert loaded.job == JOB
    assert list(loaded.steps_only) == [LARGER]
    assert list(loaded.outcomes) == [START]
    assert loaded.accounts[LARGER] is None
    assert loaded.squeezed[START, 2 * GIB].verdict is Verdict.OOM


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[1, 2]",
        lambda text: "{}",
        lambda text: text.replace('"form":', '"form":9'),
        lambda text: text.replace('"fits"', '"splendid"'),
        lambda text: text.replace('"batch_size":1', '"batch_size":"many"'),
        lambda text: text.replace('"timeline"', '"time"'),
        lambda text: text.replace('"effective_batch"', '"batch"'),
    ],
)
def test_a_broken_or_foreign_file_is_as_good_as_none(spoil) -> None:  # type: ignore[no-untyped-def]
    path = filled().path
    assert path is not None
    text = path.read_text("utf-8")
    path.write_text(spoil(text), "utf-8")
    assert path.read_text("utf-8") != text
    assert ForecastCache.load("key") == ForecastCache(path)
    filled()
    assert ForecastCache.load("key").job == JOB


def test_bytes_that_are_no_text_are_as_good_as_none() -> None:
    path = filled().path
    assert path is not None
    path.write_bytes(b"\xff\xfe\x00" * 9)
    assert ForecastCache.load("key") == ForecastCache(path)


def test_nothing_is_written_when_nothing_is_new() -> None:
    path = filled().path
    assert path is not None
    path.unlink()
    cache = filled()
    path.unlink()
    cache.save()
    assert not path.exists()


def test_a_full_disk_costs_only_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise DiskError(f"{path} ({len(content)} bytes) can't be written.")

    monkeypatch.setattr(forecast_cache, "write_atomically", fail)
    assert filled().outcomes
    monkeypatch.undo()


def test_a_folder_that_can_t_be_made_costs_only_the_cache(home: Path) -> None:
    (home / "autotune").write_text("in the way", "utf-8")
    assert filled().outcomes


def test_without_a_key_nothing_reaches_the_disk(home: Path) -> None:
    cache = ForecastCache.load(None)
    cache.job, cache.outcomes[START] = JOB, report_of(START).outcome
    cache.save()
    assert not list(home.rglob("*.json"))


def test_the_key_is_the_same_for_the_same_question() -> None:
    config = {"family": "sd1", "train_batch_size": 2}
    assert cache_key(FACTORY, config, AMPERE) == cache_key(FACTORY, dict(reversed(config.items())), AMPERE)


@pytest.mark.parametrize(
    ("workload", "config", "architecture"),
    [
        ("my_job:create", {"family": "sd1"}, AMPERE),
        (FACTORY, {"family": "sdxl"}, AMPERE),
        (FACTORY, {"family": "sd1", "train_batch_size": 2}, AMPERE),
        (FACTORY, {"family": "sd1"}, Architecture((8, 9), 28)),
        (FACTORY, {"family": "sd1"}, Architecture((8, 6), 82)),
    ],
)
def test_another_question_has_another_key(workload: str, config: dict[str, object], architecture: object) -> None:
    assert cache_key(workload, config, architecture) != cache_key(FACTORY, {"family": "sd1"}, AMPERE)


def test_another_package_or_torch_or_code_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str | None:
        return cache_key(FACTORY, {"family": "sd1"}, AMPERE)

    keys = {key()}
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "9.9" if name == "peft" else real(name))
    keys.add(key())
    monkeypatch.setattr(forecast_cache, "_code_digest", lambda: "changed")
    keys.add(key())
    monkeypatch.setattr(forecast_cache, "cuda_torch", lambda: (SimpleNamespace(version="2.14.0+cu130"), None))
    keys.add(key())
    monkeypatch.setattr(forecast_cache, "FORM", forecast_cache.FORM + 1)
    keys.add(key())
    assert len(keys) == 5
    assert None not in keys


def test_our_code_counts_where_it_shapes_an_answer() -> None:
    names = {"/".join(path.parts[-2:]) for path in forecast_cache._our_files()}
    assert {"trainer/step.py", "device/cuda.py", "null/session.py", "trial/trial.py", "memory/phases.py"} <= names


def touch(path: Path, seconds: int) -> None:
    os.utime(path, ns=(seconds * 10**9, seconds * 10**9))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "photos" / "new.png").write_bytes(b"1"),
        lambda folder: (folder / "photos" / "deep" / "cat.png").write_bytes(b"12345"),
        lambda folder: touch(folder / "photos" / "deep" / "cat.png", 7),
        lambda folder: (folder / "photos" / "deep" / "cat.png").unlink(),
        lambda folder: (folder / "photos" / "empty").mkdir(),
        lambda folder: (folder / "linked" / "dog.png").write_bytes(b"12345"),
    ],
)
def test_what_changes_in_a_folder_of_the_users_is_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    (tmp_path / "photos" / "deep" / "cat.png").write_bytes(b"1")
    (tmp_path / "linked").mkdir()
    (tmp_path / "photos" / "link").symlink_to(tmp_path / "linked")
    monkeypatch.chdir(tmp_path)

    def keys() -> list[str | None]:
        return [
            cache_key(FACTORY, {"family": "sd1", "train_data_dir": "photos"}, AMPERE),
            cache_key(FACTORY, {"family": "sd1"}, AMPERE, [tmp_path / "photos"]),
        ]

    before = keys()
    assert before == keys()
    assert None not in before
    change(tmp_path)
    assert not set(before) & set(keys())


def test_a_config_counts_by_its_content_even_if_size_and_time_stay(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"

    def key(text: str, seconds: int) -> str | None:
        path.write_text(text, "utf-8")
        touch(path, seconds)
        return cache_key(FACTORY, {"configs": [str(path)]}, AMPERE)

    first = key("train_batch_size = 4", 1)
    assert first is not None
    assert key("train_batch_size = 2", 1) != first
    assert key("train_batch_size = 4", 2) == first


def test_the_family_is_no_file_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = cache_key(FACTORY, {"family": "sd1"}, AMPERE)
    (tmp_path / "sd1").mkdir()
    assert cache_key(FACTORY, {"family": "sd1"}, AMPERE) == before


def test_a_folder_with_more_than_is_worth_looking_at_has_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_cache, "MOST_FILES", 3)
    for number in range(3):
        (tmp_path / f"{number}.png").touch()
    assert cache_key(FACTORY, {"family": "sd1"}, AMPERE, [tmp_path]) is None


def test_links_in_circles_have_an_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path)
    (tmp_path / "two").symlink_to(tmp_path)
    assert cache_key(FACTORY, {"family": "sd1"}, AMPERE, [tmp_path]) is None


def test_without_the_null_gpu_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DeviceError("no CUDA build of torch.")

    monkeypatch.setattr(forecast_cache, "cuda_torch", fail)
    assert cache_key(FACTORY, {"family": "sd1"}, AMPERE) is None


def test_the_file_is_strict_json() -> None:
    path = filled().path
    assert path is not None
    json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)


def test_one_architecture_answers_for_cards_of_one_capability() -> None:
    cards = [NullCard.parse(name) for name in ("rtx-3060-12gb", "rtx-3090-24gb")]
    both = Architecture.of(*cards)
    assert Architecture.of(cards[0]) == Architecture.of(cards[1]) == both
    assert both.sm_count >= max(card.sm_count for card in cards)
    assert both.endless_card.compute_capability == (8, 6)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"])
def test_what_changes_the_allocator_changes_the_key(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    keys = []
    for value in ("", "expandable_segments:True", "garbage_collection_threshold:0.8"):
        monkeypatch.setenv(name, value)
        keys.append(cache_key(FACTORY, {"family": "sd1"}, AMPERE))
    assert len(set(keys)) == 3


def test_a_name_without_a_file_means_the_same_wherever_the_command_runs(tmp_path: Path) -> None:
    keys = {cache_key(FACTORY, {"family": "sd1"}, AMPERE, [tmp_path / place / "no files"]) for place in "ab"}
    assert len(keys) == 1
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "no files").touch()
    assert cache_key(FACTORY, {"family": "sd1"}, AMPERE, [tmp_path / "a" / "no files"]) not in keys


def test_a_relative_cache_folder_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder() == tmp_path / ".cache" / "autotune" / "null"


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(DiskError, match="XDG_CACHE_HOME"):
        cache_folder()
