"""The whole reading of every packaged capture, through the real pynvml. Run this file to rewrite goldens."""

import json
import platform
import sys
import tempfile
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autotune.device.capture import captured_environment
from autotune.device.nvml import MachineReading, read_nvml
from autotune.device.ordinals import order_from_environment
from autotune.device.probe import reading_for
from autotune.device.session import DeviceSpec
from autotune.device.torch_answer import TorchAnswer
from autotune.errors import DeviceError
from autotune.testing import fake_nvml

GOLDENS = Path(__file__).with_name("nvml_goldens")
NAMES = [*fake_nvml.capture_names(), "missing-library"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler")
    return fake_nvml.build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.1.0")


@pytest.mark.parametrize("name", NAMES)
def test_every_capture_reads_as_its_golden_says(name: str, library: Path) -> None:
    assert _describe(name, library) == json.loads((GOLDENS / f"{name}.json").read_text())


def test_every_golden_has_a_capture() -> None:
    assert sorted(path.stem for path in GOLDENS.glob("*.json")) == sorted(NAMES)


@pytest.mark.parametrize("name", fake_nvml.capture_names())
def test_every_packaged_capture_says_that_it_is_composed(name: str) -> None:
    assert "# composed by hand" in fake_nvml.capture_path(name).read_text().splitlines()[1]


def test_the_kinds_of_machines_promised_are_there() -> None:
    assert len(NAMES) >= 12
    with pytest.raises(FileNotFoundError, match="there are: datacentre-h100, "):
        fake_nvml.capture_path("nonsense")


def _replay(name: str, library: Path) -> AbstractContextManager[None]:
    if name == "missing-library":
        return fake_nvml.missing_library()
    return fake_nvml.replaying(library, fake_nvml.capture_path(name))


def _describe(name: str, library: Path) -> dict[str, Any]:
    environ = {} if name == "missing-library" else captured_environment(fake_nvml.capture_path(name))
    with _replay(name, library):
        machine = read_nvml()
    ordinals = order_from_environment(machine.gpus, environ)
    described = {
        "machine": asdict(machine),
        "cuda": [f"{device.uuid} {device.name}" for device in ordinals.devices],
        "cuda_order_certain": ordinals.certain,
        "cuda_notes": ordinals.notes,
        "budgets": [_budget(machine, name, library, environ, n) for n in range(max(len(ordinals.devices), 1))],
    }
    return dict(json.loads(json.dumps(described)))


def _budget(machine: MachineReading, name: str, library: Path, environ: dict[str, str], ordinal: int) -> str:
    def no_cuda(*_: object, **__: object) -> TorchAnswer:
        return TorchAnswer("2.13.0", "the installed torch 2.13.0 is built without CUDA")

    try:
        with _replay(name, library):
            reading = reading_for(DeviceSpec("cuda", str(ordinal)), environ, ask=no_cuda)
    except DeviceError as error:
        return str(error)
    return f"{reading.name}: {reading.budget.explain()}"


def _rewrite() -> None:
    platform.release = lambda: "6.1.0"
    with tempfile.TemporaryDirectory() as folder:
        library = fake_nvml.build_library(Path(folder))
        for old in GOLDENS.glob("*.json"):
            old.unlink()
        for name in NAMES:
            text = json.dumps(_describe(name, library), indent=1, ensure_ascii=False)
            (GOLDENS / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(_rewrite())
