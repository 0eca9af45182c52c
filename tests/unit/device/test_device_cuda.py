"""The cuda session without a card: it refuses clearly; its arithmetic holds on a stand-in for CUDA."""

import os
from types import SimpleNamespace

import pytest
import torch

from autotune.device.cuda import CudaSession
from autotune.device.nvml import GpuReading, MachineReading, MemoryUse, ProcessUse
from autotune.device.session import DeviceSession, DeviceSpec, Evidence, open_session
from autotune.errors import DeviceError
from autotune.units import GIB, MIB

INTERVAL = (200 * MIB, 500 * MIB)


class Card:
    """A stand-in for `torch.cuda` with one card, and for NVML on it."""

    def __init__(self) -> None:
        self.free = 11 * GIB
        self.nvml_free: int | None = 11 * GIB
        self.reserved = 0
        self.own: int | None = None
        self.fractions: list[float] = []

    def machine(self) -> MachineReading:
        memory = MemoryUse(12 * GIB, self.nvml_free, GIB, 0, "nvml")
        uses = (ProcessUse(os.getpid(), self.own),) if self.own else (ProcessUse(1, GIB),)
        return MachineReading((GpuReading(0, "Card", "GPU-aa", "0:1:0.0", memory, uses),))

    @property
    def allowed(self) -> int:
        return int(self.fractions[-1] * 12 * GIB)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    fake = Card()
    properties = SimpleNamespace(name="Card", total_memory=12 * GIB, uuid="aa")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name, function in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_properties": lambda _: properties,
        "memory_reserved": lambda _: fake.reserved,
        "mem_get_info": lambda _: (fake.free, 12 * GIB),
        "memory_stats": lambda _: {"num_ooms": 2, "allocated_bytes.all.peak": 7, "other": 1},
        "set_per_process_memory_fraction": lambda fraction, _: fake.fractions.append(fraction),
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr("autotune.device.cuda._start", lambda _: 12 * GIB)
    return fake


def opened(card: Card) -> CudaSession:
    return CudaSession(0, INTERVAL, card.machine)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_is_named_as_the_reason() -> None:
    with pytest.raises(DeviceError, match=r"torch .* is built without CUDA"):
        open_session(DeviceSpec.parse("cuda:0"))


def test_hidden_cards_are_named_with_the_setting(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(DeviceError, match=r"sees no card \(CUDA_VISIBLE_DEVICES='-1'\)"):
        opened(card)


def test_an_ordinal_that_is_too_large_is_named_with_the_count(card: Card) -> None:
    with pytest.raises(DeviceError, match=r"no cuda:3: torch sees 1 card\(s\).*Use cuda:0 to cuda:0"):
        CudaSession(3, INTERVAL, card.machine)


def test_a_card_that_refuses_to_work_is_a_device_error(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with ...")

    monkeypatch.undo()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "ones", refuse)
    with pytest.raises(DeviceError, match="refuses to work: CUDA error: no kernel image is available Close"):
        opened(card)


def test_the_session_keeps_the_contract_and_measures(card: Card) -> None:
    session: DeviceSession = opened(card)
    assert (session.name, session.evidence) == ("cuda:0", Evidence.MEASURED)
    assert session.torch_device == torch.device("cuda", 0)
    with session.host():
        assert torch.zeros(1).device.type == "cpu"


def test_statistics_have_every_counter_of_the_contract(card: Card) -> None:
    assert opened(card).statistics() == {
        "allocated_bytes.all.current": 0,
        "allocated_bytes.all.peak": 7,
        "reserved_bytes.all.current": 0,
        "reserved_bytes.all.peak": 0,
        "num_alloc_retries": 0,
        "num_ooms": 2,
    }


def test_the_context_is_what_nvml_says_beyond_the_reserved_bytes(card: Card) -> None:
    session = opened(card)
    card.own, card.reserved = 3 * GIB + 700 * MIB, 3 * GIB
    assert session.context_bytes() == 700 * MIB


def test_where_the_pid_is_hidden_the_context_is_what_left_free_memory(card: Card) -> None:
    session = opened(card)
    card.reserved, card.free = GIB, 10 * GIB - 300 * MIB
    assert session.context_bytes() == 300 * MIB


@pytest.mark.parametrize(("moved", "context"), [(3 * GIB, INTERVAL[1]), (-GIB, INTERVAL[0])])
def test_a_neighbour_that_moved_can_not_push_the_context_out_of_its_interval(
    moved: int, context: int, card: Card
) -> None:
    session = opened(card)
    card.free = 11 * GIB - moved
    assert session.context_bytes() == context


def test_a_context_that_can_not_be_measured_counts_at_its_upper_end(card: Card) -> None:
    card.nvml_free = None
    assert opened(card).context_bytes() == INTERVAL[1]


@pytest.mark.parametrize(
    ("name", "upper_end"), [("NVIDIA GeForce RTX 3060", 380 * MIB), ("a card nobody knows", 800 * MIB)]
)
def test_without_an_interval_the_catalogue_says_what_a_context_takes(
    name: str, upper_end: int, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name=name, total_memory=12 * GIB, uuid="aa")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    card.nvml_free = None
    assert CudaSession(0, read_machine=card.machine).context_bytes() == upper_end


def test_the_cap_leaves_room_for_the_context_within_the_budget(card: Card) -> None:
    session = opened(card)
    card.own = 400 * MIB
    session.limit(6 * GIB)
    assert 0 <= 6 * GIB - 400 * MIB - card.allowed <= 512


def test_a_budget_smaller_than_the_context_is_an_error(card: Card) -> None:
    session = opened(card)
    card.own = 400 * MIB
    with pytest.raises(DeviceError, match="used up by the CUDA context"):
        session.limit(300 * MIB)
    assert card.fractions == []


def test_a_card_whose_memory_pytorch_does_not_count_is_refused(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with pytest.raises(DeviceError, match=r"PYTORCH_NO_CUDA_MEMORY_CACHING is set.* Unset it"):
        opened(card)
