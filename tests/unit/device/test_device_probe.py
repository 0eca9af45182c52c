"""Every failure to read a card has a way on, and says what was done instead."""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.device.budget import WDDM_RESERVE_BYTES
from autotune.device.probe import detect_default_device, list_cuda_devices, read_gpus, reading_for
from autotune.device.session import DeviceSpec
from autotune.device.torch_answer import TorchAnswer, TorchDevice
from autotune.errors import DeviceError
from autotune.testing import fake_nvml
from autotune.units import GIB, MIB

NO_CUDA = TorchAnswer("2.13.0+cpu", "the installed torch 2.13.0+cpu is built without CUDA")
CUDA_0 = DeviceSpec("cuda", "0")


class Torch:
    """Answers as a child would and remembers what it was asked."""

    def __init__(self, answer: TorchAnswer = NO_CUDA) -> None:
        self._answer = answer
        self.asked: list[dict[str, bool]] = []

    def __call__(self, environ: Mapping[str, str], **flags: bool) -> TorchAnswer:
        self.asked.append(flags)
        return self._answer


def device(name: str, uuid: str = "", free: int | None = None, problem: str = "", pci: str = "") -> TorchDevice:
    return TorchDevice(name, uuid, pci, (8, 6), 16 * GIB, free, problem)


def torch_sees(*devices: TorchDevice) -> Torch:
    return Torch(TorchAnswer("2.13.0+cu130", "", devices))


Replay = Callable[[str], Any]


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler")
    library = fake_nvml.build_library(tmp_path_factory.mktemp("nvml"))
    return lambda name: fake_nvml.replaying(library, fake_nvml.capture_path(name))


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.1.0")


def test_a_card_that_nvml_reads_costs_no_child(replay: Replay) -> None:
    ask = Torch()
    with replay("desktop-rtx-3060"):
        reading = reading_for(CUDA_0, {}, ask=ask)
    assert ask.asked == []
    assert reading.name == "NVIDIA GeForce RTX 3060"
    assert reading.budget.bytes == (12288 - 391 - 846 - 512) * MIB
    assert reading.notes == ()


def test_memory_that_nvml_does_not_support_is_read_through_cuda(replay: Replay) -> None:
    ask = torch_sees(device("NVIDIA GB10", "00000001-0000-0000-0000-000000000000", 15 * GIB))
    with replay("gb10-no-memory-info"):
        reading = reading_for(CUDA_0, {}, ask=ask)
    assert ask.asked == [{"memory": True}]
    assert reading.free_bytes == 15 * GIB
    assert "Memory of NVIDIA GB10 was read through CUDA (mem_get_info) instead." in reading.notes
    assert "GPU 0: memory could not be read: not supported on this card." in reading.notes


def test_a_jetson_without_an_address_is_recognised_as_the_only_card(replay: Replay) -> None:
    with replay("jetson-orin"):
        reading = reading_for(CUDA_0, {}, ask=torch_sees(device("Orin", "other-uuid", 15 * GIB)))
    assert (reading.name, reading.free_bytes) == ("Orin (nvgpu)", 15 * GIB)


@pytest.mark.parametrize("name", ["missing-driver", "driver-mismatch"])
def test_without_nvml_the_cards_come_from_cuda(name: str, replay: Replay) -> None:
    with replay(name):
        reading = reading_for(CUDA_0, {}, ask=torch_sees(device("RTX 9090", "u", 15 * GIB)))
    assert reading.name == "RTX 9090"
    assert reading.notes[0].startswith("NVML can't be used: ")
    assert reading.notes[1].startswith("The cards were read through CUDA")


def test_cards_read_through_cuda_are_not_chosen_from_a_second_time(replay: Replay) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "3,1"}
    ask = torch_sees(device("slow card", "u3", GIB), device("fast card", "u1", 15 * GIB))
    with replay("missing-driver"):
        assert len(list_cuda_devices(environ, ask=ask)) == 2
        assert reading_for(DeviceSpec("cuda", "1"), environ, ask=ask).name == "fast card"


def test_when_cuda_fails_too_both_reasons_are_told(replay: Replay) -> None:
    with replay("gb10-no-memory-info"), pytest.raises(DeviceError) as caught:
        reading_for(CUDA_0, {}, ask=Torch())
    assert "not supported on this card" in caught.value.fact
    assert "CUDA could not be asked instead: the installed torch 2.13.0+cpu is built without" in caught.value.fact
    assert "--vram-limit" in caught.value.way_out


def test_a_limit_lets_a_card_of_unknown_memory_be_used(replay: Replay) -> None:
    with replay("gb10-no-memory-info"):
        reading = reading_for(CUDA_0, {}, limit_bytes=8 * GIB, ask=Torch())
    assert (reading.budget.bytes, reading.total_bytes, reading.free_bytes) == (8 * GIB, 8 * GIB, None)


def test_a_problem_of_the_card_in_cuda_is_told(replay: Replay) -> None:
    with replay("gb10-no-memory-info"):
        machine = read_gpus({}, ask=torch_sees(device("NVIDIA GB10", problem="out of memory")))
    assert "CUDA could not read the memory of NVIDIA GB10 either: out of memory." in machine.gpus[0].notes


def test_a_lost_card_does_not_hide_the_other(replay: Replay) -> None:
    with replay("lost-gpu"):
        assert list_cuda_devices({}, ask=Torch()) == (CUDA_0,)
        reading = reading_for(CUDA_0, {}, ask=Torch())
    assert "GPU 1 is left out: CUDA can't use it." in reading.notes


def test_a_lost_card_alone_is_one_clear_line(replay: Replay) -> None:
    with replay("lost-while-reading"), pytest.raises(DeviceError, match="the GPU is lost"):
        reading_for(CUDA_0, {}, ask=Torch())


def test_unlike_cards_are_ordered_by_what_cuda_itself_says(replay: Replay) -> None:
    first, second = (f"0000000{n}-0000-0000-0000-000000000000" for n in (1, 2))
    with replay("two-mixed"):
        slow_first = reading_for(CUDA_0, {}, ask=torch_sees(device("a", first), device("b", second)))
        fast_first = reading_for(CUDA_0, {}, ask=torch_sees(device("b", second), device("a", first)))
    assert slow_first.name == "NVIDIA GeForce GTX 1060 6GB"
    assert fast_first.name == "NVIDIA GeForce RTX 3090"
    assert fast_first.notes == ()


def test_unlike_cards_are_guessed_and_said_so_where_cuda_does_not_tell(replay: Replay) -> None:
    with replay("two-mixed"):
        reading = reading_for(CUDA_0, {}, ask=Torch())
    assert reading.name == "NVIDIA GeForce RTX 3090"
    assert "guessed" in reading.notes[0]
    assert "CUDA could not be asked: the installed torch" in reading.notes[1]


def test_the_environment_reorders_without_asking_cuda(replay: Replay) -> None:
    environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,0"}
    ask = Torch()
    with replay("two-mixed"):
        names = [reading_for(DeviceSpec("cuda", n), environ, ask=ask).name for n in "01"]
    assert names == ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce GTX 1060 6GB"]
    assert ask.asked == []


def test_an_ordinal_that_is_hidden_is_an_error_naming_the_setting(replay: Replay) -> None:
    with replay("two-mixed"), pytest.raises(DeviceError) as caught:
        reading_for(DeviceSpec("cuda", "1"), {"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, ask=Torch())
    assert "CUDA shows 1 of 2 cards under CUDA_VISIBLE_DEVICES='GPU-00000001'" in caught.value.fact


def test_a_mig_slice_is_a_device_of_its_own(replay: Replay) -> None:
    with replay("mig-a100"):
        reading = reading_for(CUDA_0, {"CUDA_VISIBLE_DEVICES": "MIG-00000003"}, ask=Torch())
    assert reading.name == "NVIDIA A100-SXM4-40GB MIG 2g.10gb"
    assert reading.total_bytes == 9856 * MIB


def test_where_windows_pages_memory_the_reserve_is_largest(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replay("wsl2-rtx-4090"):
        assert reading_for(CUDA_0, {}, ask=Torch()).budget.reserve_bytes == WDDM_RESERVE_BYTES
    monkeypatch.setattr(platform, "release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    with replay("datacentre-h100"):
        assert reading_for(CUDA_0, {}, ask=Torch()).budget.reserve_bytes == WDDM_RESERVE_BYTES


def test_no_card_at_all_is_one_clear_line() -> None:
    with fake_nvml.missing_library(), pytest.raises(DeviceError) as caught:
        reading_for(CUDA_0, {}, ask=Torch())
    assert "libnvidia-ml.so.1) was not found" in caught.value.fact
    assert "virtual" in caught.value.way_out


def test_a_virtual_device_is_its_size_and_nothing_else() -> None:
    reading = reading_for(DeviceSpec.parse("virtual:2GiB"))
    assert (reading.name, reading.total_bytes, reading.budget.bytes) == ("virtual:2GiB", 2 * GIB, 2 * GIB)
    assert (reading.budget.others_bytes, reading.budget.reserve_bytes, reading.gpu) == (0, 0, None)


def test_the_default_is_the_first_card_that_torch_can_really_use() -> None:
    ask = torch_sees(device("GTX 1060", problem="no kernel image"), device("RTX 3090"))
    default = detect_default_device({}, ask=ask)
    assert ask.asked == [{"use": True}]
    assert str(default.spec) == "cuda:1"
    assert default.reason == "RTX 3090 is there and torch 2.13.0+cu130 can use it."


def test_a_card_with_a_torch_that_can_not_use_it_gives_a_virtual_gpu_and_the_reason(replay: Replay) -> None:
    with replay("desktop-rtx-3060"):
        default = detect_default_device({}, ask=Torch())
    assert str(default.spec) == "virtual:2GiB"
    assert default.reason == (
        "There is NVIDIA GeForce RTX 3060, but the installed torch 2.13.0+cpu is built without CUDA. "
        "virtual:2GiB stands in, on the CPU."
    )


def test_a_machine_without_a_card_gives_a_virtual_gpu(tmp_path: Path) -> None:
    with fake_nvml.missing_library():
        default = detect_default_device({}, ask=Torch())
    assert default.spec.kind == "virtual"
    assert default.reason.startswith("No NVIDIA card can be used: the installed torch")


def test_a_null_card_is_read_from_the_catalogue_and_keeps_the_reserve_of_the_card_it_stands_for() -> None:
    reading = reading_for(DeviceSpec("null", "rtx-3060-12gb"), source=None, ask=Torch())
    assert reading.name == "NVIDIA GeForce RTX 3060"
    assert reading.budget.bytes == reading.total_bytes - 128 * MIB
    assert reading.gpu is None
    limited = reading_for(DeviceSpec("null", "12GiB@8.6"), limit_bytes=6 * GIB)
    assert limited.budget.bytes == 6 * GIB
    with pytest.raises(DeviceError, match="not in the catalogue"):
        reading_for(DeviceSpec("null", "voodoo-2"))
