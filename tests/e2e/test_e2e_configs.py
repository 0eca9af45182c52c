"""The three configs people bring first: probed, written back, and trained from what was written.

Each is probed on a budget that is too small as written and then trained, without --fit-vram, from the file
that --write made, on the same budget.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from e2e_harness import KOHYA, QUICK, Desk, Result, differing_lines, furnish, lora_metadata, sit_down
from PIL import Image

from autotune.testing.photos import list_photos

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leftovers are looked up in /proc")

LOUD = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 7.79 GiB total capacity)"

SETTINGS = """\
{
    "train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": false,
    "mixed_precision": "bf16",
    "resolution": "288,288",
    "enable_bucket": true,
    "max_train_epochs": 1,
    "save_every_n_epochs": 1,
    "sample_every_n_epochs": 0,
    "network_dim": 8,
    "network_alpha": 4,
    "clip_skip": 2,
    "cache_latents": true,
    "cache_text_encoder_outputs": false
}
"""

SCRIPT = """\
# style run, lora-scripts
base_model: base.safetensors   # one file
train_data_dir: table
metadata_path: table/metadata.csv
output_dir: "out"
resolution: 256
lora_rank: 16     # small is enough
lora_alpha: 8
batch_size: 2
fp16: true
learning_rate: 1e-4
"""


@dataclass(frozen=True)
class Dialect:
    """A way to say the same: the configs in order, the budget that is too small, and what is then chosen."""

    name: str
    write: Callable[[Desk], list[str]]
    device: str
    changed: dict[str, str]
    quick: tuple[str, ...] = QUICK


def write_kohya(desk: Desk) -> list[str]:
    return ["config.toml"]


def write_pair(desk: Desk) -> list[str]:
    desk.write("config.toml", KOHYA)
    desk.write("settings.json", SETTINGS)
    return ["config.toml", "settings.json"]


def write_script(desk: Desk) -> list[str]:
    """Captions that read like an out-of-memory message are captions."""
    desk.write("run.yaml", SCRIPT)
    rows = ["filename,prompt"]
    for photo, caption in list_photos()[:3]:
        (desk.folder / "table").mkdir(exist_ok=True)
        (desk.folder / "table" / photo.name).write_bytes(photo.read_bytes())
        rows.append(f'{photo.name},"{LOUD}, {caption}"')
    desk.write("table/metadata.csv", "\n".join(rows) + "\n")
    return ["run.yaml"]


DIALECTS = [
    Dialect(
        "kohya",
        write_kohya,
        "virtual:55MiB",
        {
            "train_batch_size": "train_batch_size = 1      # my card should take it",
            "gradient_accumulation_steps": "gradient_accumulation_steps = 2",
            "resolution": 'resolution = "256,256"',
        },
    ),
    Dialect(
        "pair",
        write_pair,
        "virtual:48MiB",
        {
            "train_batch_size": '"train_batch_size": 1,',
            "gradient_accumulation_steps": '"gradient_accumulation_steps": 2,',
        },
    ),
    Dialect("lora-scripts", write_script, "virtual:48MiB", {"batch_size": "batch_size: 1"}),
]


@dataclass(frozen=True)
class Story:
    """What was done with a dialect: probed with --json and --write, then trained from the written file."""

    dialect: Dialect
    desk: Desk
    configs: list[str]
    answer: dict[str, Any]
    probed: Result
    trained: Result

    def text(self, name: str) -> str:
        return (self.desk.folder / name).read_text("utf-8")


@pytest.fixture(
    scope="module",
    params=[pytest.param(it, marks=pytest.mark.xdist_group(f"e2e-{it.name}"), id=it.name) for it in DIALECTS],
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Story]:
    dialect: Dialect = request.param
    for desk in sit_down(tmp_path_factory.mktemp("desk")):
        furnish(desk, base)
        configs = dialect.write(desk)
        given = [word for config in configs for word in ("--config", config)]
        device = ["--device", dialect.device, *dialect.quick]
        answer, probed = desk.probe(*given, *device, "--write", "fitted")
        trained = desk.run("train", *given[:-1], "fitted", *device)
        yield Story(dialect, desk, configs, answer, probed, trained)


def test_every_trial_after_the_first_changes_one_knob(story: Story) -> None:
    trials = story.answer["trials"]
    assert trials[0]["plan"] == story.answer["recipe"]["plan"]
    assert trials[0]["verdict"] == "oom"
    assert [trial["number"] for trial in trials] == list(range(1, len(trials) + 1))
    last_fit = trials[0]["plan"]
    for before, trial in pairwise(trials):
        start = before["plan"] if trial["direction"] == "down" else last_fit
        assert len([knob for knob in start if start[knob] != trial["plan"][knob]]) == 1
        assert trial["change"]
        last_fit = trial["plan"] if trial["verdict"] == "fits" else last_fit


def test_the_answer_names_the_chosen_plan_its_receipts_and_the_profile(story: Story) -> None:
    answer = story.answer
    fitting = [trial for trial in answer["trials"] if trial["plan"] == answer["chosen"]]
    assert [trial["verdict"] for trial in fitting] == ["fits"]
    assert fitting[0]["peak_allocated_bytes"] <= answer["budget_bytes"]
    assert {answer["evidence"], *(trial["evidence"] for trial in answer["trials"])} == {"simulated"}
    assert answer["receipts"][-1].startswith("stays equal: effective batch 2")
    profile = json.loads(Path(answer["profile"]["location"]).read_text("utf-8"))
    assert profile["chosen"] == answer["chosen"]
    assert len(profile["trials"]) == len(answer["trials"])


def test_the_table_shows_what_the_answer_holds(story: Story) -> None:
    rows = [line.split() for line in story.probed.lines if line.startswith("    ") and line.strip()[0].isdigit()]
    assert [int(row[0]) for row in rows] == [trial["number"] for trial in story.answer["trials"]]
    for row, trial in zip(rows, story.answer["trials"], strict=True):
        assert {trial["verdict"], trial["evidence"]} <= set(row)
    assert story.probed.column("receipt") == story.answer["receipts"]


def test_the_written_file_changes_the_chosen_keys_and_nothing_else(story: Story) -> None:
    original, fitted = story.text(story.configs[-1]), story.text("fitted")
    added = [line for line in fitted.splitlines() if line not in original.splitlines()]
    if story.dialect.name == "lora-scripts":  # it had no accumulation: that line is new
        assert sorted(added) == ["batch_size: 1", "gradient_accumulation_steps: 2"]
        kept = [line for line in original.splitlines() if not line.startswith("batch_size")]
        assert [line for line in fitted.splitlines() if line in kept] == kept
    else:
        assert differing_lines(original, fitted) == story.dialect.changed


def test_the_written_file_trains_in_the_same_budget_to_the_end(story: Story) -> None:
    name = "lora" if story.dialect.name == "lora-scripts" else "photos"
    assert set(story.desk.files()) == {f"sample/{name}_00.png", f"{name}.safetensors"}
    metadata = lora_metadata(story.desk.folder / "out" / f"{name}.safetensors")
    assert metadata["ss_network_dim"] == str(story.answer["chosen"]["network_dim"])
    with Image.open(story.desk.folder / "out" / "sample" / f"{name}_00.png") as picture:
        assert [list(picture.size)] == story.answer["chosen"]["resolution"]


def test_log_and_events_tell_the_run(story: Story) -> None:
    events = story.desk.events()
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps][-1] == steps[-1]["steps"]
    assert {"device", "job", "trial", "fitted", "profile"} <= {event["event"] for event in events}
    assert len([event for event in events if event["event"] == "trial"]) == len(story.answer["trials"])
    assert "wrote lora" in story.desk.log()
    assert "done" in story.trained.err


def test_an_overridden_key_is_named_with_both_files(story: Story) -> None:
    named = [note for note in story.probed.column("note") if "overrides" in note]
    if story.dialect.name != "pair":
        assert not named
        return
    config = story.desk.folder / "config.toml"
    assert f"settings.json: resolution = 288,288 overrides 320,320 from {config}" in named
    assert any("network_dim = 8 overrides 32" in note for note in named)
    assert not any("train_batch_size" in note for note in named)  # both say 2
