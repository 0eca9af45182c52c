"""`autotune plan` as a user meets it: one screen, exit codes, mistakes told before any worker starts."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.cli import main as cli
from autotune.cli import plan as command
from autotune.cli.report import FORECAST, report_of_plan
from autotune.controller import forecast as forecast_module
from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.forecast_cache import ForecastCache
from autotune.controller.plan import Asked, Planned, plan_job
from autotune.device.null.card import NullCard
from autotune.testing.null_workers import START, NullWorkers, account_of, crashed, step_bytes
from autotune.trial.protocol import TrialReport
from autotune.units import MIB

AMPERE = Architecture((8, 6), 28)
NEEDS_BYTES = step_bytes(START) + 10 * MIB


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NullWorkers:
    """Scripted workers behind the command; it works in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(forecast_module, "null_environment", lambda cards: {})
    workers = NullWorkers()

    def make(options: command.PlanOptions, architecture: Architecture, files: Any, tell: Any) -> Forecaster:
        return Forecaster("a:b", command.factory_config(options), architecture, ForecastCache(None), make=workers)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "_forecaster", make)
    return workers


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command's exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as end:
        cli.app(["plan", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out, err


@pytest.fixture
def planned(workers: NullWorkers) -> Callable[..., Planned]:
    """What is found for cards by their names."""
    return partial(find, workers)


def find(workers: NullWorkers, *names: str, **asked: Any) -> Planned:
    cards = tuple(NullCard.parse(name) for name in names)
    return plan_job(
        Asked(cards, **asked),
        lambda architecture: Forecaster("a:b", {}, architecture, ForecastCache(None), make=workers),  # type: ignore[arg-type]
    )


TIGHT = f"{(NEEDS_BYTES + 200 * MIB) // MIB}MiB@8.6"


@pytest.mark.parametrize(
    ("gpus", "code"),
    [
        (["rtx-3060-12gb"], 0),
        (["2GiB@8.6"], 7),
        ([TIGHT], 13),
        (["rtx-3060-12gb", TIGHT], 13),
        ([TIGHT, "2GiB@8.6", "rtx-3060-12gb"], 7),
    ],
)
def test_the_worst_verdict_of_the_named_cards_is_the_exit_code(
    workers: NullWorkers, capsys: pytest.CaptureFixture[str], gpus: list[str], code: int
) -> None:
    named = [word for gpu in gpus for word in ("--gpu", gpu)]
    assert run(capsys, "--family", "sd1", *named)[0] == code
    assert run(capsys, "--family", "sd1", "--json", *named)[0] == code


def test_without_named_cards_nothing_was_asked_that_could_fail(
    workers: NullWorkers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "USUAL_CARDS", ("2GiB@8.6",))
    code, out, _ = run(capsys, "--family", "sd1")
    assert (code, "does not fit" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 3, "neither a family nor a config is given. Say --family (sd1, "),
        (["--family", "sd9"], 5, "'sd9' is no model family. Known: sd1, "),
        (["--family", "sd1", "--gpu", "rtx-9999"], 6, "'rtx-9999' is not in the catalogue"),
        (["--family", "sd1", "--gpu", "12GiB@1.0"], 6, "1.0"),
        (["--family", "sd1", "--report", "r.pdf"], 3, "ending says neither .html nor .png"),
        (["--family", "sd1", "--report", "file/r.html"], 11, "file can't be written to"),
        (["--family", "sd1", "--snapshot", "file/s.pickle"], 11, "file can't be written to"),
        (["--family", "sd1", "--set", "foo"], 3, "--set 'foo' is not of the form key=value"),
        (["--family", "sd1", "--set", "foo=1"], 3, "unknown key 'foo'"),
        (["--family", "sd1", "--set", "foo=1"], 3, "not used. Use a key"),
        (["--family", "sd1", "--set", "resolution=large"], 3, "--set resolution = large is no resolution. Write"),
        (["--family", "sd1", "--resolution", "large"], 3, "--resolution large is no resolution. Write 512, "),
        (["--family", "sd1", "--resolution", "8"], 3, "8x8"),
        (["--family", "sd1", "--batch-size", "100000"], 3, "100,000 is more than a forecast takes"),
        (["--family", "sd1", "--precision", "bf17"], 3, "--precision bf17 is not one"),
        (["--family", "sd1", "--optimizer", "Magic"], 3, "--optimizer Magic is not one"),
        (["--family", "sd1", "--report", "old.html"], 11, "old.html exists and is never overwritten"),
        (["--family", "sd1", "--snapshot", "."], 11, ". exists and is never overwritten"),
        (["--config", "missing.toml"], 3, "missing.toml"),
    ],
)
def test_a_mistake_is_one_line_before_any_worker_starts(
    workers: NullWorkers, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    Path("file").write_text("in the way", "utf-8")
    Path("old.html").write_text("somebody's", "utf-8")
    ended, out, err = run(capsys, *arguments)
    assert (ended, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1
    assert err.startswith("autotune: ")
    assert workers.devices == []


@pytest.mark.parametrize("arguments", [["--batch-size", "0"], ["--network-dim", "-1"], ["--colour", "red"]])
def test_a_wrong_option_is_typers_own_complaint(
    workers: NullWorkers, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(capsys, "--family", "sd1", *arguments)[0] == 2
    assert workers.devices == []


def test_a_forecast_that_fails_is_one_line_and_leaves_no_worker(
    workers: NullWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    workers.change = crashed
    code, out, err = run(capsys, "--family", "sd1")
    assert (code, out) == (6, "")
    assert err.strip().splitlines() == [
        "autotune: no forecast: a kernel is missing. Use --debug for the whole story."
    ]
    assert workers.closed == len(workers.devices)


def test_json_is_one_strict_object_on_stdout(workers: NullWorkers, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--family", "sd1", "--gpu", "rtx-3060-12gb", "--json")
    read = json.loads(out, parse_constant=pytest.fail)
    assert (code, read["evidence"], read["cards"][0]["card"]) == (0, "forecast", "rtx-3060-12gb")


def test_files_are_written_where_they_were_asked_for(
    workers: NullWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, err = run(
        capsys,
        "--family",
        "sd1",
        "--gpu",
        "rtx-3060-12gb",
        "--json",
        "--report",
        "r.html",
        "--snapshot",
        "s.pickle",
    )
    assert "forecast on the null GPU" in Path("r.html").read_text("utf-8")
    assert Path("s.pickle").exists()
    assert json.loads(out)["frontier"]
    assert "wrote r.html" in err


def test_the_screen_fits_80_columns_and_says_what_its_numbers_are(planned: Callable[..., Planned]) -> None:
    console = Console(width=80, record=True, file=StringIO(), highlight=False)
    cards = ("12GiB@8.6", "2GiB@8.6", TIGHT, "rtx-3080-ti-laptop-16gb", "rtx-pro-6000-blackwell-server-96gb")
    command.Printer(console).show(planned(*command.USUAL_CARDS, *cards))
    text = console.export_text()
    lines = text.splitlines()[1:]  # the plan's own line is never broken
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert "forecast on the null GPU, nothing was measured" in text
    assert "memory peaks in phase step" in text
    assert "batch: the largest that fits" in text
    for word in ("fits", "does not fit", "too close", "weights", "activations", "context", "note: a note", "none"):
        assert word in text


def test_settings_reach_the_factory_by_their_config_names(tmp_path: Path) -> None:
    def config(configs: list[Path]) -> dict[str, Any]:
        settings = {"train_batch_size": 2, "gradient_checkpointing": True, "resolution": "832x1216"}
        return command.factory_config(
            command.PlanOptions((), "sdxl", None, configs, ["network_alpha=8"], settings, False, None, None)
        )

    assert config([]) == {
        "family": "sdxl", "network_alpha": "8", "train_batch_size": 2, "gradient_checkpointing": True,
        "resolution": "832x1216",
    }  # fmt: skip
    given = config([tmp_path / "c.toml"])
    assert given["configs"] == [str(tmp_path / "c.toml")]
    assert given["set"] == [
        "network_alpha=8", "train_batch_size=2", "gradient_checkpointing=true", "resolution=832x1216",
    ]  # fmt: skip


def test_options_win_over_a_config_as_over_defaults(tmp_path: Path) -> None:
    from trainer.blank_settings import load_settings

    path = tmp_path / "c.toml"
    path.write_text(
        'pretrained_model_name_or_path = "base"\ntrain_data_dir = "photos"\ntrain_batch_size = 4\n',
        "utf-8",
    )
    settings = {"train_batch_size": 2, "resolution": "832x1216", "gradient_checkpointing": True}
    for configs in ([path], []):
        options = command.PlanOptions((), "sdxl", None, configs, [], settings, False, None, None)
        loaded = load_settings(command.factory_config(options)).config
        assert (loaded.train_batch_size, loaded.resolution) == (2, ((832, 1216),))
        assert loaded.gradient_checkpointing


def test_a_folder_that_happens_to_be_there_is_not_taken_for_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.blank_settings import load_settings

    monkeypatch.chdir(tmp_path)
    for name in ("sd1", "pictures"):
        (tmp_path / name).mkdir()
    loaded = load_settings({"family": "sd1"}).config
    assert not Path(loaded.train_data_dir).exists()
    assert not Path(loaded.pretrained_model_name_or_path).exists()


def test_the_report_has_all_that_was_found(planned: Callable[..., Planned]) -> None:
    found = planned("rtx-3060-12gb", "2GiB@8.6", frontier=True)
    report = report_of_plan(found)
    first = found.rows[0]
    assert report.evidence == FORECAST
    assert report.title.startswith("sd1-lora-bf16-adamw: batch_size 1")
    assert ("family", "sd1") in report.facts
    assert [(v.card, v.total_bytes, v.verdict, v.largest_batch) for v in report.verdicts] == [
        (row.card.slug, row.card.total_bytes, row.verdict.value, row.largest) for row in found.rows
    ]
    assert report.timeline is not None
    assert found.account is not None
    assert report.timeline.allocated_bytes == found.account.timeline.allocated_bytes
    assert [phase.phase for phase in report.phases] == ["load", "step", "save"]
    for phase, account in zip(report.phases, found.account.phases, strict=True):
        parts = dict(phase.parts)
        assert parts.pop("context") == first.context.middle_bytes
        assert sum(parts.values()) == account.peak_reserved_bytes
    assert len(report.curves) == len(found.curves) == 4
    assert [s.saved_bytes for s in report.savings] == sorted((s.saved_bytes for s in found.savings), reverse=True)
    assert [name for name, _, _ in report.unseen] == ["scratch of NVIDIA's libraries", "CUDA context"]
    assert report.notes == ("a note",)


def test_the_command_loads_neither_torch_nor_matplotlib_up_to_the_worker() -> None:
    program = (
        "import sys\n"
        "from autotune.cli import main, plan\n"
        "plan._check(plan.PlanOptions((), 'sd1', None, (), (), {}, False, None, None))\n"
        "import autotune.controller.plan, autotune.cli.report, autotune.report.write, autotune.cli.null\n"
        "print(*sorted({'torch', 'numpy', 'matplotlib', 'diffusers', 'PIL'} & set(sys.modules)))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ""


def test_all_that_was_asked_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(command, "cache_key", lambda *parts: asked.append(parts[1:]))
    settings = {"resolution": "512"}
    options = command.PlanOptions((), "sd1", None, (), ["seed=1"], settings, False, None, None)
    command._forecaster(options, AMPERE, [Path("base")], print)
    assert asked == [({"family": "sd1", "seed": "1", "resolution": "512"}, AMPERE, [Path("base")])]


def test_what_a_config_names_is_watched_for_changes(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('pretrained_model_name_or_path = "base"\ntrain_data_dir = "photos"\nvae = "v"\n', "utf-8")
    (tmp_path / "photos").mkdir()
    watched = command._check(command.PlanOptions((), "sd1", None, [path], (), {}, False, None, None))
    assert [each.name for each in watched] == ["base", "v", "photos"]
    assert tmp_path / "photos" in watched


def test_a_close_verdict_says_why(planned: Callable[..., Planned]) -> None:
    console = Console(width=80, record=True, file=StringIO(), highlight=False)
    command.Printer(console).show(planned("rtx-3060-12gb", TIGHT))
    lines = console.export_text().splitlines()
    assert [line.rstrip() for line in lines if ": " in line][2:] == [
        f"{TIGHT}: too close to call: it fits with a small CUDA context and little",
        f"{TIGHT}: gradient_checkpointing on is enough",
        "note: a note",
    ]


def test_the_parts_on_the_screen_add_up_to_what_the_first_card_needs(planned: Callable[..., Planned]) -> None:
    console = Console(width=80, record=True, file=StringIO(), highlight=False)
    command.Printer(console).show(planned("rtx-3060-12gb"))
    table = console.export_text().partition("bytes at the peak, in step")[2].partition("one step down")[0]
    rows = [re.sub(r"[█▏▎▍▌▋▊▉]+", "", line).strip() for line in table.splitlines()[1:] if line.strip()]
    ends = [re.findall(r"(?<!\S)[\d,]+(?!\S)", row.replace("on rtx-3060-12gb", "")) for row in rows]
    lows, highs = ([int(end[side].replace(",", "")) for end in ends] for side in (0, -1))
    assert rows[-1].startswith("in all")
    for numbers in (lows, highs):
        assert abs(sum(numbers[:-1]) - numbers[-1]) <= len(numbers)  # each is rounded


def test_the_bytes_shown_are_those_of_the_phase_that_drives_what_is_reserved(
    workers: NullWorkers, planned: Callable[..., Planned]
) -> None:
    def peaks_late(report: TrialReport) -> TrialReport:
        *others, last = report.outcome.phases
        last = replace(last, peak_reserved_bytes=last.peak_reserved_bytes + MIB)
        outcome = replace(report.outcome, phases=(*others, last))
        return replace(report, outcome=outcome, account=account_of([*others, last]))

    workers.change = peaks_late
    console = Console(width=80, record=True, file=StringIO(), highlight=False)
    command.Printer(console).show(planned("rtx-3060-12gb", largest_batches=False))
    text = console.export_text()
    assert "memory peaks in phase save" in text
    assert "bytes at the peak, in save" in text


@pytest.mark.parametrize(("share", "drawn"), [(1.0, "█" * 30), (0.5, "█" * 15), (0.05, "█▌"), (0.0, "▏")])
def test_bars_are_as_long_as_their_share(share: float, drawn: str) -> None:
    assert command.bar(share) == drawn
