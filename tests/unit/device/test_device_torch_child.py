"""Asking torch in a child: the real child, with stand-ins for torch that act as builds and cards do."""

import os
from pathlib import Path

import pytest

from autotune.device.torch_answer import TorchAnswer, TorchDevice, ask_torch

VERSION = "__version__ = '9.9+cu130'\ncuda = '13.0'\n"
CARD = """
class _Properties:
    name, major, minor, total_memory = "Fake RTX", 8, 6, 12_000_000_000
    uuid = "aaaa-bbbb"
    pci_domain_id, pci_bus_id, pci_device_id = 0, 0x3b, 0
    is_integrated = False

class cuda:
    def init(): pass
    def device_count(): return 1
    def get_device_properties(ordinal): return _Properties
    def mem_get_info(ordinal): return (11_000_000_000, 11_900_000_000)

class _Tensor:
    def __add__(self, other): return self
    def item(self): return 2.0

def ones(count, device):
    print("noise on stdout")
    return _Tensor()
"""


def ask(folder: Path, code: str, version: str = VERSION, **flags: bool) -> TorchAnswer:
    """Ask with a package `torch` made of `code` before any other on the child's path."""
    (folder / "torch").mkdir()
    (folder / "torch" / "version.py").write_text(version)
    (folder / "torch" / "__init__.py").write_text(code)
    return ask_torch({**os.environ, "PYTHONPATH": str(folder)}, **flags)


def test_a_card_is_described_with_its_identity(tmp_path: Path) -> None:
    card = TorchDevice("Fake RTX", "aaaa-bbbb", "00000000:3B:00.0", (8, 6), 12_000_000_000, None, "")
    assert ask(tmp_path, CARD) == TorchAnswer("9.9+cu130", "", (card,))


def test_memory_is_read_only_when_asked_for(tmp_path: Path) -> None:
    device = ask(tmp_path, CARD, memory=True).devices[0]
    assert (device.free_bytes, device.total_bytes) == (11_000_000_000, 11_900_000_000)


def test_on_unified_memory_what_the_host_can_give_back_counts_as_free(tmp_path: Path) -> None:
    code = CARD.replace("is_integrated = False", "is_integrated = True").replace("(11_000_000_000,", "(1,")
    free = ask(tmp_path, code, memory=True).devices[0].free_bytes
    assert free is not None
    assert free > 1_000_000


def test_a_build_without_cuda_is_recognised_without_importing_torch(tmp_path: Path) -> None:
    answer = ask(tmp_path, "raise SystemExit('imported')", "__version__ = '9.9+cpu'\ncuda = None\n")
    assert answer == TorchAnswer("9.9+cpu", "the installed torch 9.9+cpu is built without CUDA")


def test_a_driver_that_is_too_old_is_the_reason(tmp_path: Path) -> None:
    code = CARD.replace(
        "def init(): pass", "def init(): raise RuntimeError('The NVIDIA driver is too old (11040).\\nMore')"
    )
    answer = ask(tmp_path, code)
    assert answer.devices == ()
    assert answer.reason == "torch 9.9+cu130 can't use CUDA: The NVIDIA driver is too old (11040)."


def test_a_card_this_build_has_no_kernels_for_is_a_problem_of_that_card(tmp_path: Path) -> None:
    code = CARD.replace("return _Tensor()", "raise RuntimeError('no kernel image is available')")
    assert ask(tmp_path, code, use=True).devices[0].problem == "no kernel image is available"


def test_noise_on_stdout_does_not_hide_the_answer(tmp_path: Path) -> None:
    assert ask(tmp_path, CARD, use=True).devices[0].problem == ""


def test_a_child_that_dies_is_a_reason_with_its_last_words(tmp_path: Path) -> None:
    answer = ask(
        tmp_path, "import os, sys; sys.stderr.write('libcuda is broken'); sys.stderr.flush(); os._exit(9)"
    )
    assert answer == TorchAnswer("", "the process asked about CUDA ended with code 9: libcuda is broken")


def test_a_torch_that_can_not_be_imported_is_a_reason(tmp_path: Path) -> None:
    assert "libcudart missing" in ask(tmp_path, "raise ImportError('libcudart missing')").reason


def test_a_driver_that_hangs_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(VERSION)
    (tmp_path / "torch" / "__init__.py").write_text("import threading; threading.Event().wait()")
    answer = ask_torch({**os.environ, "PYTHONPATH": str(tmp_path)}, timeout_s=0.5)
    assert answer.reason == "CUDA gave no answer within 0.5 seconds"


def test_the_childs_own_folder_does_not_shadow_the_standard_library(tmp_path: Path) -> None:
    code = "import sys\nfrom pathlib import Path\nassert not any(Path(p).name == 'device' for p in sys.path)\n"
    assert ask(tmp_path, code + CARD).reason == ""


def test_an_interpreter_that_can_not_be_started_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert "can't be started: No such file" in ask_torch(os.environ).reason
