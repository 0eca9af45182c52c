"""What happens before anything heavy starts: start-up, the device alone, and mistakes told at once."""

import subprocess
import sys

import pytest
from e2e_harness import Desk, assert_error

pytestmark = [
    pytest.mark.xdist_group("e2e-start"),
    pytest.mark.skipif(sys.platform != "linux", reason="leftovers are looked up in /proc"),
]

HEAVY = {
    "accelerate", "bitsandbytes", "diffusers", "numpy", "optuna", "peft", "PIL", "pynvml",
    "ruamel", "safetensors", "tomlkit", "torch", "transformers",
}  # fmt: skip
_LIST_MODULES = """
import sys
from autotune.cli.main import main
sys.argv = ["autotune", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code
print("\\n" + " ".join(sys.modules))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["probe", "--help"], ["train", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", _LIST_MODULES, *arguments], capture_output=True, text=True, check=True
    ).stdout
    loaded = {name.partition(".")[0] for name in shown.splitlines()[-1].split()}
    assert not loaded & HEAVY
    assert "pydantic" not in loaded or arguments != ["--help"]  # Typer reads options with it


def test_a_stranger_called_trainer_is_one_clear_line(desk: Desk) -> None:
    stranger = desk.write("elsewhere/trainer/__init__.py", "raise SystemExit('never imported')\n")
    result = desk.run("probe", code=3, PYTHONPATH=str(stranger.parents[1]))
    assert len(result.lines) == 1
    assert_error(result, str(stranger), "shadows", "pip uninstall trainer")


def test_probe_without_a_config_shows_the_device(desk: Desk) -> None:
    result = desk.run("probe", "--device", "virtual:2GiB")
    assert result.column("device") == ["virtual:2GiB"]
    assert "budget 2,048 MiB = 2,048 MiB total" in result.err
    assert result.out == ""


def test_probe_without_a_config_is_json_too(desk: Desk) -> None:
    answer, _ = desk.probe("--device", "virtual:2GiB", "--vram-limit", "700MiB")
    assert (answer["name"], answer["total_bytes"], answer["budget_bytes"]) == ("virtual:2GiB", 2 << 30, 700 << 20)


MISTAKES = [
    (6, ["probe", "--device", "gpu7"], ["'gpu7'", "virtual:2GiB"]),
    (3, ["probe", "--config", "nope.toml"], ["nope.toml does not exist", "config.toml?"]),
    (3, ["probe", "--write", "new.toml"], ["--write", "--config"]),
    (3, ["probe", "--ladder", "lossless-first", "--set", "seed=1"], ["--set and --ladder", "nothing to fit"]),
    (3, ["probe", "--config", "config.toml", "--write", "config.toml"], ["config.toml is the config itself"]),
    (3, ["probe", "--config", "config.toml", "--write", "photos"], ["photos exists", "new file"]),
    (3, ["probe", "--config", "config.toml", "--ladder", "steep"], ["'steep'", "lossless-first"]),
    (3, ["probe", "--config", "config.toml", "--vram-limit", "lots"], ["'lots'", "700MiB"]),
    (3, ["train"], ["--config"]),
    (3, ["train", "--config", "config.toml", "--set", "train_batch_size=two"], ["train_batch_size = two"]),
    (5, ["train", "--config", "config.toml", "--set", "pretrained_model_name_or_path=x.ckpt"], ["x.ckpt"]),
    (4, ["train", "--config", "config.toml", "--set", "train_data_dir=fotos"], ["fotos does not exist"]),
    (4, ["probe", "--config", "config.toml", "--set", "train_data_dir=empty"], ["empty: the folder", "10_cat"]),
    (4, ["train", "--config", "config.toml", "--set", "metadata_path=x.csv"], ["x.csv does not exist"]),
    (11, ["train", "--config", "config.toml", "--set", "output_dir=config.toml"], ["config.toml can't be"]),
    (11, ["train", "--config", "config.toml", "--set", "logging_dir=config.toml"], ["logs", "logging_dir"]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "arguments", "parts"), MISTAKES)
def test_a_mistake_is_told_before_anything_starts(
    furnished: Desk, code: int, arguments: list[str], parts: list[str]
) -> None:
    (furnished.folder / "empty").mkdir()
    before = furnished.files(".")
    device = [] if "--device" in arguments else ["--device", "virtual:1GiB"]
    result = furnished.run(*arguments, *device, code=code)
    assert_error(result, *parts)
    new = set(furnished.files(".")) - set(before)
    assert all(name.startswith("logs/") for name in new)
    assert "worker.log" not in "".join(new)  # no worker was started


@pytest.mark.parametrize("command", [["probe"], ["train", "--fit-vram"]])
def test_a_repository_refuses_simulated_profiles_before_any_trial(furnished: Desk, command: list[str]) -> None:
    (furnished.folder / ".git").mkdir()
    place = furnished.folder / "profiles"
    options = ["--config", "config.toml", "--device", "virtual:1GiB", "--profiles", place]
    result = furnished.run(*command, *options, code=10)
    assert_error(result, str(place), "simulated numbers (virtual GPU)", "--profiles")
    assert "trial" not in result.err
    assert not place.exists()


def test_a_traceback_is_in_the_log_and_with_debug_on_the_terminal(furnished: Desk) -> None:
    options = ["train", "--config", "config.toml", "--device", "gpu7"]
    furnished.run(*options, code=6)
    assert "Traceback (most recent call last)" in furnished.log()
    assert [event["event"] for event in furnished.events()] == ["error"]
    assert all({"time", "event"} <= event.keys() for event in furnished.events())
    process = furnished.start(*options, "--debug")
    _, err = process.communicate()
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("autotune: device 'gpu7'")
