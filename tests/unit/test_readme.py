"""What the README says is so: options, exit codes, the ladder file and the example workload."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from autotune import errors
from autotune.cli import main as cli
from autotune.cli.dryrun import EXIT_CODES
from autotune.cli.plan import USUAL_CARDS
from autotune.device.virtual import VirtualSession
from autotune.ladder.ladders import LADDERS, parse_ladder
from autotune.testing.demo import CONFIG
from autotune.trial.trial import Bench, run_trial
from autotune.units import MIB

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


COMMANDS = ("probe", "train", "plan", "dryrun")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def options_of(command):
    return {
        name for p in get_command(cli.app).commands[command].params for name in p.opts if name.startswith("--")
    }


def test_every_option_in_the_readme_exists():
    known = set().union(*map(options_of, COMMANDS)) | {"--help", "--torch"}
    told = set(re.findall(r"(--[a-z][a-z-]+)", README))
    assert told - known == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_in_the_readme(command):
    assert {name for name in options_of(command) if name not in README} <= {"--debug"}


def test_the_table_of_exit_codes_is_the_codes():
    told = {int(code) for code in re.findall(r"\| (\d+) \|", README)}
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.AutotuneError)]
    assert told == {c.exit_code for c in classes} | {0, 2, 130, 143} | set(EXIT_CODES.values())


def test_the_ladder_file_of_the_readme_is_one():
    ladder = parse_ladder(tomllib.loads(blocks("toml")[0]), "README.md")
    assert ladder.name == "keep-detail"
    assert all(name in README for name in LADDERS)


def test_the_example_workload_runs_and_gives_its_memory_back():
    namespace = {}
    exec(blocks("python")[0], namespace)
    workload = namespace["create"]({})
    device = VirtualSession(64 * MIB)
    report = run_trial(workload, workload.job().recipe.plan, Bench(device, 0, lambda event: None))
    assert report.outcome.fits, report.outcome.reason
    assert report.clean


@pytest.mark.parametrize(
    "path", re.findall(r"`((?:scripts|profiles|bench|tests|autotune|trainer)/[\w./-]+)`", README)
)
def test_every_file_the_readme_names_is_there(path):
    assert (ROOT / path).exists()


def test_the_demo_asks_for_what_the_readme_shows():
    assert "network_dim = 32" in CONFIG
    assert "batch_size 4, resolution 512x512, gradient_checkpointing off, network_dim 32" in README


def test_the_usual_cards_are_as_many_as_the_readme_says():
    assert len(USUAL_CARDS) == 7
    assert "seven usual cards" in README


def test_the_forecast_of_the_readme_is_a_screen_of_plan():
    shown = README.partition("<!-- plan:begin -->")[2].partition("<!-- plan:end -->")[0]
    lines = shown.strip().splitlines()[2:-1]
    assert lines[1].startswith("forecast on the null GPU, nothing was measured")
    assert max(map(len, lines[1:])) <= 80
    assert {"fits", "does not fit"} <= set(re.findall(r"\d  (fits|does not fit|too close to call)", shown))
