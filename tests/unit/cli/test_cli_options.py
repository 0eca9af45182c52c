"""An option that can't take effect is an error, and every failure is one line."""

from pathlib import Path

import pytest

from autotune.cli import DEFAULT_LADDER, main, probe, train
from autotune.cli.probe import ProbeOptions
from autotune.cli.setup import open_store
from autotune.cli.train import TrainOptions
from autotune.device.session import Evidence
from autotune.errors import ConfigError, ProfileError


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (ProbeOptions(all_cards=True, device="virtual:1GiB"), "--all and --device virtual:1GiB"),
        (ProbeOptions(capture=Path("c"), configs=[Path("config.toml")]), "--capture goes with no other option"),
        (ProbeOptions(capture=Path("c"), as_json=True), "--capture goes with no other option"),
        (ProbeOptions(vram_limit="1GiB", overrides=["seed=1"]), "--set can't take effect"),
        (ProbeOptions(forecast=False), "--no-forecast can't take effect"),
        (ProbeOptions(family="sdxl", configs=[Path("c.toml")]), "--family sdxl can't take effect"),
        (ProbeOptions(family="sdxl", device="null:12GiB"), "--family can't take effect: there is nothing to fit"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, fault):
    with pytest.raises(ConfigError, match=fault):
        probe.run(options)


def test_training_on_a_null_gpu_is_refused_before_anything_is_read():
    options = TrainOptions([Path("missing.toml")], [], False, "null:rtx-3060-12gb", DEFAULT_LADDER, None, None)
    with pytest.raises(ConfigError, match="computes nothing, so nothing can be trained"):
        train.run(options)


@pytest.mark.parametrize("inside", ["profiles", "profiles/mine"])
def test_no_way_of_naming_a_repositorys_profiles_lets_simulated_ones_in(tmp_path, monkeypatch, inside):
    (tmp_path / ".git").mkdir()
    (tmp_path / inside).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / inside)
    monkeypatch.setenv("AUTOTUNE_PROFILES", str(tmp_path / inside))
    for store in (open_store(None), open_store(tmp_path / inside), open_store(tmp_path / "link")):
        with pytest.raises(ProfileError, match="real cards only"):
            store.check(Evidence.SIMULATED)
    open_store(tmp_path / "elsewhere").check(Evidence.SIMULATED)


def test_a_fault_of_ours_is_one_line_too(capsys):
    def fail():
        raise KeyError("lost\nkey")

    with pytest.raises(SystemExit) as end:
        main._run(fail, debug=False)
    assert end.value.code == 1
    assert capsys.readouterr().err == "autotune: internal error: KeyError: 'lost\\nkey' (--debug shows where).\n"
