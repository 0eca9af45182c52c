"""Building and finding the null GPU: what happens where something is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.device.null import build, install, symbols
from autotune.device.null.build import build_stubs
from autotune.device.null.environment import null_environment
from autotune.device.null.toolkit import look_at, read_torch
from autotune.errors import DeviceError
from tests.conftest import NullGpu


def test_without_a_compiler_one_line_says_so(
    null_gpu: NullGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch, _ = install.cuda_torch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler") as refused:
        build_stubs(torch)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "cache").exists()


def test_without_binutils_one_line_says_so(
    null_gpu: NullGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch, _ = install.cuda_torch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="readelf is not installed"):
        symbols.read_libraries(torch.libraries())


def test_a_compiler_that_fails_leaves_nothing_behind(
    null_gpu: NullGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch, _ = install.cuda_torch()
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: no room' >&2\nexit 1\n", "utf-8")
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "_compiler", lambda: str(compiler))
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(DeviceError, match="error: no room"):
        build_stubs(torch)
    assert list((tmp_path / "cache" / "stubs").iterdir()) == []


def test_without_a_cuda_build_the_command_that_fetches_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = look_at().torch
    if own is not None and own.cuda:
        pytest.skip("the installed torch is a CUDA build")
    monkeypatch.setattr(install, "cache_folder", lambda: tmp_path)
    with pytest.raises(DeviceError, match="autotune null install"):
        null_environment([])


def test_another_platform_is_told_what_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(DeviceError, match="virtual GPU work"):
        install.check_platform()


def test_pips_own_reason_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = subprocess.CompletedProcess(
        [], 1, "", "WARNING: x\nERROR: No matching distribution found for torch\n"
    )
    monkeypatch.setattr(install, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(install.subprocess, "run", lambda *args, **kwargs: answer)
    with pytest.raises(DeviceError, match="No matching distribution"):
        install.install_overlay("0.0.1")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_torch_is_none(tmp_path: Path) -> None:
    assert read_torch(tmp_path) is None


def test_an_environment_keeps_what_was_preloaded_and_on_the_path(null_gpu: NullGpu) -> None:
    made = null_environment([], {"LD_PRELOAD": "/lib/own.so", "PYTHONPATH": "/own", "CUDA_VISIBLE_DEVICES": "7"})
    assert made["LD_PRELOAD"].endswith(":/lib/own.so")
    assert made["PYTHONPATH"].split(":")[-1] == "/own"
    assert "CUDA_VISIBLE_DEVICES" not in made
