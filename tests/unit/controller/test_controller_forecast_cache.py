"""The forecast cache: what went in comes out, another question's never does, and losing it costs time alone."""

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.controller import forecast_cache
from autotune.controller.forecast import Architecture
from autotune.controller.forecast_cache import ForecastCache, cache_key
from autotune.device.null.card import NullCard
from autotune.errors import DeviceError, DiskError
from autotune.testing.null_workers import JOB, START, report_of

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
    cache.save()
    return cache


def test_what_was_saved_is_loaded() -> None:
    saved, loaded = filled(), ForecastCache.load("key")
    assert replace(loaded, _loaded=0) == replace(saved, _loaded=0)
    assert loaded.job == JOB
    assert list(loaded.steps_only) == [LARGER]
    assert list(loaded.outcomes) == [START]


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


def test_jobs_on_files_that_may_change_have_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cache_key(FACTORY, {"configs": ["config.toml"]}, AMPERE) is None
    assert cache_key(FACTORY, {"family": "sd1", "train_data_dir": "photos"}, AMPERE) is None
    assert cache_key(FACTORY, {"family": "sd1", "train_data_dir": "elsewhere"}, AMPERE) is not None
    assert cache_key(FACTORY, {"family": "photos"}, AMPERE) is not None


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
    assert both.sm_count == max(card.sm_count for card in cards)
    assert both.endless_card.compute_capability == (8, 6)
