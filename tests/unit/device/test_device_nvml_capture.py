"""Recording and replaying: the same reading comes back, nothing that names a machine is written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.device.capture import captured_environment, format_capture, record_capture
from autotune.device.nvml import MachineReading, read_nvml
from autotune.device.questions import Answer
from autotune.errors import DiskError
from autotune.testing import fake_nvml

REAL = "a1b2c3d4-1111-2222-3333-444455556666"
OTHER = "a1b2ffff-1111-2222-3333-444455556666"


class Told:
    """A source that answers from a table; what it does not hold is not supported."""

    def __init__(self, answers: dict[tuple[str, str], str]) -> None:
        self._answers = answers

    def ask(self, subject: str, question: str) -> Answer:
        text = self._answers.get((subject, question))
        return Answer(3) if text is None else Answer(0, text)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler")
    return fake_nvml.build_library(tmp_path_factory.mktemp("nvml"))


@pytest.mark.parametrize("name", fake_nvml.capture_names())
def test_a_recorded_capture_replays_to_the_same_reading(name: str, library: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "machine.capture"
    environ = captured_environment(fake_nvml.capture_path(name))
    with fake_nvml.replaying(library, fake_nvml.capture_path(name)):
        reading = record_capture(recorded, environ)
    with fake_nvml.replaying(library, recorded):
        assert read_nvml() == reading
    assert captured_environment(recorded) == environ


def test_a_machine_without_the_library_can_be_captured_too(library: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "machine.capture"
    with fake_nvml.missing_library():
        reading = record_capture(recorded, {})
    with fake_nvml.replaying(library, recorded):
        assert read_nvml() == reading


def test_pynvml_finds_the_library_by_itself_in_a_child(library: Path) -> None:
    environ = fake_nvml.replay_environment(library, fake_nvml.capture_path("two-mixed"), os.environ)
    code = "from autotune.device.nvml import read_nvml; print([gpu.name for gpu in read_nvml().gpus])"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert "GTX 1060 6GB" in done.stdout
    assert "RTX 3090" in done.stdout


def test_a_neighbour_that_takes_memory_between_readings_is_seen(library: Path) -> None:
    with fake_nvml.replaying(library, fake_nvml.capture_path("neighbour-grows")):
        # One session with the driver: a new one would begin the capture anew.
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        free = [pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2).free for _ in range(4)]
        uses = [pynvml.nvmlDeviceGetComputeRunningProcesses(card)[0].usedGpuMemory for _ in range(4)]
        pynvml.nvmlShutdown()
    assert free[0] > free[1] > free[2] == free[3]
    assert uses[0] < uses[1] < uses[2] == uses[3]


def test_every_reading_begins_a_session_of_its_own(library: Path) -> None:
    with fake_nvml.replaying(library, fake_nvml.capture_path("datacentre-h100")):
        assert read_nvml() == read_nvml()


def test_a_file_that_is_no_capture_is_an_unknown_error(library: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("hello\n")
    with fake_nvml.replaying(library, tmp_path / "wrong"):
        assert read_nvml() == MachineReading((), notes=("NVML can't be used: unknown NVML error.",))


def test_identities_and_process_ids_are_replaced_and_stay_consistent() -> None:
    text = format_capture(
        [
            ("gpu0", "uuid", Answer(0, f"GPU-{REAL}")),
            ("gpu0.mig0", "uuid", Answer(0, f"MIG-GPU-{REAL}/1/0")),
            ("gpu1", "uuid", Answer(0, f"GPU-{OTHER}")),
            ("gpu0", "compute_processes", Answer(0, "31337:1048576 4711:-")),
            ("gpu0", "graphics_processes", Answer(0, "4711:5")),
        ],
        {"CUDA_VISIBLE_DEVICES": f"GPU-a1b2f,GPU-{REAL},GPU-a1b2", "SECRET": "x"},
    )
    assert text.splitlines()[2:] == [
        "gpu0 uuid ok GPU-00000001-0000-0000-0000-000000000000",
        "gpu0.mig0 uuid ok MIG-GPU-00000001-0000-0000-0000-000000000000/1/0",
        "gpu1 uuid ok GPU-00000002-0000-0000-0000-000000000000",
        "gpu0 compute_processes ok 1001:1048576 1002:-",
        "gpu0 graphics_processes ok 1002:5",
        "environ CUDA_VISIBLE_DEVICES ok GPU-00000002-0000-0000-0000-000000000000,"
        "GPU-00000001-0000-0000-0000-000000000000,GPU-unknown",
    ]


def test_a_capture_names_no_host_and_no_user(tmp_path: Path) -> None:
    answers = {("system", "init"): "", ("system", "count"): "1", ("gpu0", "handle"): ""}
    record_capture(tmp_path / "c", {"HOSTNAME": "secret-box", "USER": "alice"}, Told(answers))
    assert not re.search("secret-box|alice", (tmp_path / "c").read_text())


def test_an_empty_device_list_is_not_the_same_as_none(tmp_path: Path) -> None:
    record_capture(tmp_path / "c", {"CUDA_VISIBLE_DEVICES": ""}, Told({}))
    assert captured_environment(tmp_path / "c") == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_capture_never_overwrites_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(DiskError, match="exists already"):
        record_capture(tmp_path / "mine", {}, Told({}))
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_capture_that_can_not_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(DiskError, match=r"mine/c .* can't be written: "):
        record_capture(tmp_path / "mine" / "c", {}, Told({}))


def test_reading_cards_imports_neither_torch_nor_cuda() -> None:
    code = (
        "import sys, json, autotune.device.probe as probe; probe.read_gpus();"
        "print(json.dumps([name for name in sys.modules if name.split('.')[0] == 'torch']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
