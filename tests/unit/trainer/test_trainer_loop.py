"""Epochs, steps and file names: the arithmetic of a run."""

import math
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import autotune.files
from autotune.errors import TrainingError
from autotune.files import write_atomically
from trainer.config.schema import TrainConfig
from trainer.data.samples import Sample
from trainer.loop import LossWatch, schedule_of, total_steps
from trainer.naming import RunName, free_stem

SIZE = (64, 64)


def config_with(**settings: Any) -> TrainConfig:
    return TrainConfig(pretrained_model_name_or_path="base", train_data_dir="photos", **settings)


def samples_of(count: int) -> tuple[Sample, ...]:
    return tuple(Sample(index, Path(f"{index}.jpg"), "a photo", SIZE, 0) for index in range(count))


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"max_train_steps": 50}, 50),
        ({"max_train_epochs": 3, "train_batch_size": 4}, 9),  # 10 samples make 3 batches, the last one short
        ({"max_train_epochs": 3, "train_batch_size": 2, "gradient_accumulation_steps": 2}, 9),
        ({"max_train_epochs": 2, "max_train_steps": 50, "train_batch_size": 10}, 2),
        ({"max_train_epochs": 2, "train_batch_size": 16}, 2),
    ],
)
def test_epochs_win_over_steps_and_count_logical_batches(settings: dict[str, Any], steps: int) -> None:
    assert total_steps(config_with(**settings), 10) == steps


def test_a_run_goes_through_every_sample_once_an_epoch_and_stops_at_its_last_step() -> None:
    config, samples = config_with(train_batch_size=4), samples_of(10)
    run = list(schedule_of(config, samples, dict.fromkeys(range(10), SIZE), 5))
    positions = [(position.step, position.epoch, position.ends_epoch) for position, _ in run]
    assert positions == [(0, 1, False), (1, 1, False), (2, 1, True), (3, 2, False), (4, 2, False)]
    assert sorted(index for _, batch in run[:3] for index in batch) == list(range(10))
    assert [len(batch) for _, batch in run] == [4, 4, 2, 4, 4]


def test_accumulation_and_batch_size_make_the_same_batches() -> None:
    samples, buckets = samples_of(10), dict.fromkeys(range(10), SIZE)
    whole = [batch for _, batch in schedule_of(config_with(train_batch_size=4), samples, buckets, 6)]
    split = config_with(train_batch_size=1, gradient_accumulation_steps=4)
    assert [batch for _, batch in schedule_of(split, samples, buckets, 6)] == whole


@pytest.mark.parametrize(
    "earlier",
    ["lora.safetensors", "lora-000001.safetensors", "lora-step00000500.safetensors", "sample/lora_00.png"],
)
def test_no_file_of_an_earlier_run_is_written_over(tmp_path: Path, earlier: str) -> None:
    path = tmp_path / earlier
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert free_stem(tmp_path, "lora") == "lora-2"
    (tmp_path / "lora-2.safetensors").touch()
    assert free_stem(tmp_path, "lora") == "lora-3"


def test_files_of_other_runs_do_not_count_whatever_their_names(tmp_path: Path) -> None:
    for name in ("lora-style.safetensors", "lorax.safetensors", "my-lora.safetensors", "lora.txt"):
        (tmp_path / name).touch()
    assert free_stem(tmp_path, "lora") == "lora"
    assert free_stem(tmp_path / "not there yet", "lora") == "lora"
    (tmp_path / "[a].safetensors").touch()
    assert free_stem(tmp_path, "[a]") == "[a]-2"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_loss_that_is_no_number_ends_the_run_at_once(loss: float, precision: str) -> None:
    watch = LossWatch(config_with(mixed_precision=precision))
    assert watch.checked(0.5, 0) == 0.5
    with pytest.raises(TrainingError, match=rf"the loss is {loss} at step 2 \(learning_rate 0.0001"):
        watch.checked(loss, 1)


def test_fp16_bears_overflows_that_pass() -> None:
    watch = LossWatch(config_with(mixed_precision="fp16"))
    for step in range(5 * LossWatch.PATIENCE):
        watch.checked(0.5 if step % LossWatch.PATIENCE == 0 else math.inf, step)
    watch = LossWatch(config_with(mixed_precision="fp16"))
    for step in range(LossWatch.PATIENCE - 1):
        watch.checked(math.nan, step)
    with pytest.raises(TrainingError, match="at 10 steps in a row, up to step 10"):
        watch.checked(math.nan, LossWatch.PATIENCE - 1)


@pytest.mark.parametrize("links", ["unnamed", "hard", "none"])
def test_a_run_beside_another_of_the_same_name_writes_none_of_its_files_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: str
) -> None:
    if links != "unnamed":  # as on a file system without such files
        monkeypatch.setattr(autotune.files, "open_unnamed", lambda folder: nullcontext(None))
    if links == "none":
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    notes: list[Any] = []
    first, second = (RunName(tmp_path, "lora", notes.append) for _ in range(2))
    for run, text in ((first, b"first"), (second, b"second")):
        for folder, ending in ((tmp_path, ".safetensors"), (tmp_path / "sample", "_00.png")):
            run.write(folder, ending, partial(write_atomically, content=text, replace=False))
    written = {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert written == {
        "lora.safetensors": b"first",
        "sample/lora_00.png": b"first",
        "lora-2.safetensors": b"second",
        "sample/lora-2_00.png": b"second",
    }
    assert [note["text"] for note in notes if "lora-2" in note["text"]] == [note["text"] for note in notes]
    assert len(notes) == 1
