"""Files lie where each system wants them, and confirmations are remembered per machine."""

import os
from pathlib import Path

import pytest

import autotune.files
from autotune.errors import DiskError
from autotune.store.confirmations import Confirmations
from autotune.store.places import profiles_directory, state_directory

ONE, TWO = "1" * 64, "2" * 64


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"AUTOTUNE_PROFILES": "/team/p", "XDG_DATA_HOME": "/d"}, "linux", "/team/p"),
        ({"XDG_DATA_HOME": "/d"}, "linux", "/d/autotune/profiles"),
        ({"XDG_DATA_HOME": "relative"}, "linux", "~/.local/share/autotune/profiles"),
        ({}, "linux", "~/.local/share/autotune/profiles"),
        ({"LOCALAPPDATA": "/l"}, "win32", "/l/autotune/profiles"),
        ({}, "win32", "~/AppData/Local/autotune/profiles"),
    ],
)
def test_profiles_lie_in_the_users_data_folder_unless_named(environ, platform, expected):
    assert profiles_directory(environ, platform) == Path(expected).expanduser()


def test_state_lies_in_the_users_state_folder():
    assert state_directory({"XDG_STATE_HOME": "/s"}, "linux") == Path("/s/autotune")
    assert state_directory({}, "linux") == Path("~/.local/state/autotune").expanduser()


def test_a_confirmation_is_remembered_by_the_next_process(tmp_path):
    Confirmations(tmp_path).confirm(ONE)
    Confirmations(tmp_path).confirm(TWO)
    Confirmations(tmp_path).confirm(ONE)
    assert Confirmations(tmp_path).is_confirmed(ONE)
    assert Confirmations(tmp_path).is_confirmed(TWO)
    assert not Confirmations(tmp_path).is_confirmed("3" * 64)


def test_another_machine_with_the_same_home_has_confirmed_nothing(tmp_path):
    Confirmations(tmp_path, machine="here").confirm(ONE)
    assert not Confirmations(tmp_path, machine="there").is_confirmed(ONE)
    assert "here" not in next(tmp_path.iterdir()).name


def test_damaged_lines_count_for_nothing_and_do_no_harm(tmp_path):
    Confirmations(tmp_path).confirm(ONE)
    file = next(tmp_path.iterdir())
    file.write_bytes(b"\xff\xfe garbage\n" + file.read_bytes() + b"111\n")
    Confirmations(tmp_path).confirm(TWO)
    assert Confirmations(tmp_path).is_confirmed(ONE)
    assert Confirmations(tmp_path).is_confirmed(TWO)
    assert not Confirmations(tmp_path).is_confirmed("111")


def test_what_is_no_digest_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no sha256 digest"):
        Confirmations(tmp_path).confirm("../x")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_earlier_confirmations(tmp_path, monkeypatch):
    Confirmations(tmp_path).confirm(ONE)

    def full(_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(autotune.files.os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        Confirmations(tmp_path).confirm(TWO)
    monkeypatch.undo()
    assert Confirmations(tmp_path).is_confirmed(ONE)
    assert not Confirmations(tmp_path).is_confirmed(TWO)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(DiskError, match="can't be written"):
        Confirmations(tmp_path / "state").confirm(ONE)
    assert not Confirmations(tmp_path / "state").is_confirmed(ONE)
