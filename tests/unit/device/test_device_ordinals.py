"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER decide as in CUDA which card is cuda:N."""

from dataclasses import replace

import pytest

from autotune.device.nvml import GpuReading, MemoryUse, MigInstance, pci_key
from autotune.device.ordinals import (
    CudaDevice,
    Ordinals,
    Seen,
    match_device,
    order_from_cuda,
    order_from_environment,
    parse_visible,
)

OLD = GpuReading(0, "GTX 1060", "GPU-aa00", "00000000:01:00.0", compute_capability=(6, 1), cores=1280)
FAST = GpuReading(1, "RTX 3090", "GPU-ab11", "00000000:02:00.0", compute_capability=(8, 6), cores=10496)
TWIN = replace(FAST, index=2, uuid="GPU-ac22", pci_bus_id="00000000:03:00.0")
SLICES = tuple(MigInstance(f"A100 MIG {n}", f"MIG-{n}000", MemoryUse(), ()) for n in "ab")
MIG = GpuReading(0, "A100", "GPU-ff", "0:7:0.0", compute_capability=(8, 0), mig_enabled=True, mig_instances=SLICES)
BY_ADDRESS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def uuids(ordinals: Ordinals) -> list[str]:
    return [device.uuid for device in ordinals.devices]


def visible(text: str, *gpus: GpuReading, **environ: str) -> list[str]:
    return uuids(order_from_environment(gpus, {"CUDA_VISIBLE_DEVICES": text, **environ}))


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("0,-1,1", [0]),
        ("0,,1", [0]),
        ("0,x,1", [0]),
        ("NoDevFiles", []),
        ("1gpu,2ampere", [1, 2]),
        ("+1", [1]),
        ("0,0", []),
        ("0,1,0", []),
        ("GPU-aa,GPU-ab", ["GPU-aa", "GPU-ab"]),
        ("GPU-aa,1", ["GPU-aa"]),
        ("0,GPU-aa", [0]),
        ("GPU-aa,GPU-aa", []),
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
        ("MIG-a,GPU-aa", ["MIG-a"]),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(text: str, entries: list[int] | list[str]) -> None:
    assert parse_visible(text) == entries


@pytest.mark.parametrize("text", ["", "-1", "0", "1,0", "0,-1,1", "0,x,1", "0,0", "1gpu,2ampere", "GPU-a,GPU-b"])
def test_the_list_is_read_as_torch_reads_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.cuda import _parse_visible_devices

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert parse_visible(text) == _parse_visible_devices()


def test_without_settings_the_fastest_comes_first_and_that_is_called_a_guess() -> None:
    ordinals = order_from_environment([OLD, FAST], {})
    assert uuids(ordinals) == ["GPU-ab11", "GPU-aa00"]
    assert not ordinals.certain
    assert "guessed" in ordinals.notes[0]


def test_by_address_the_order_is_certain() -> None:
    ordinals = order_from_environment([FAST, OLD], BY_ADDRESS)
    assert uuids(ordinals) == ["GPU-aa00", "GPU-ab11"]
    assert ordinals == Ordinals(ordinals.devices, True)


def test_like_cards_stay_in_the_order_of_their_addresses_for_certain() -> None:
    ordinals = order_from_environment([TWIN, FAST], {})
    assert uuids(ordinals) == ["GPU-ab11", "GPU-ac22"]
    assert ordinals.certain


def test_indices_count_in_cudas_order_and_reorder_it() -> None:
    assert visible("1,0", OLD, FAST, **BY_ADDRESS) == ["GPU-ab11", "GPU-aa00"]
    assert visible("1", OLD, FAST) == ["GPU-aa00"]
    assert visible("1", OLD, FAST, **BY_ADDRESS) == ["GPU-ab11"]


def test_an_index_that_is_too_large_ends_the_list() -> None:
    ordinals = order_from_environment([FAST, TWIN], {"CUDA_VISIBLE_DEVICES": "1,7,0"})
    assert uuids(ordinals) == ["GPU-ac22"]
    assert ordinals.notes == ("CUDA_VISIBLE_DEVICES='1,7,0' shows 1 of 3 named devices.",)


def test_uuids_need_only_a_unique_prefix_and_make_the_order_certain() -> None:
    ordinals = order_from_environment([OLD, FAST], {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-ab1"})
    assert uuids(ordinals) == ["GPU-aa00", "GPU-ab11"]
    assert ordinals.certain


def test_an_ambiguous_or_unknown_uuid_ends_the_list() -> None:
    assert visible("GPU-a", OLD, FAST) == []
    assert visible("GPU-ab,GPU-zz,GPU-aa", OLD, FAST) == ["GPU-ab11"]


def test_two_names_of_one_card_empty_the_list() -> None:
    assert visible("GPU-ab,GPU-ab1", OLD, FAST) == []


def test_an_empty_list_hides_every_card() -> None:
    ordinals = order_from_environment([OLD], {"CUDA_VISIBLE_DEVICES": ""})
    assert ordinals == Ordinals((), True)


def test_a_mig_card_is_replaced_by_one_of_its_instances() -> None:
    ordinals = order_from_environment([MIG], {})
    assert uuids(ordinals) == ["MIG-a000"]
    assert not ordinals.certain
    assert "MIG instance" in ordinals.notes[0]


def test_a_mig_instance_is_chosen_by_its_uuid_and_only_one_is_shown() -> None:
    ordinals = order_from_environment([MIG], {"CUDA_VISIBLE_DEVICES": "MIG-b"})
    assert uuids(ordinals) == ["MIG-b000"]
    assert ordinals.devices[0].name == "A100 MIG b"
    assert ordinals.certain
    assert visible("MIG-b,MIG-a", MIG) == ["MIG-b000"]


def test_a_card_that_is_lost_is_left_out_and_said_so() -> None:
    ordinals = order_from_environment([replace(OLD, reachable=False), FAST], BY_ADDRESS)
    assert uuids(ordinals) == ["GPU-ab11"]
    assert ordinals.notes == ("GPU 0 is left out: CUDA can't use it.",)


def test_cudas_own_answer_is_matched_by_uuid_and_else_by_address() -> None:
    seen = [Seen("AB11", ""), Seen("", "0000:01:00.0")]
    assert uuids(order_from_cuda([OLD, FAST], seen)) == ["GPU-ab11", "GPU-aa00"]


def test_a_device_that_nvml_does_not_show_makes_the_order_uncertain() -> None:
    ordinals = order_from_cuda([OLD], [Seen("aa00", ""), Seen("dead", "0:9:0.0")])
    assert uuids(ordinals) == ["GPU-aa00"]
    assert not ordinals.certain
    assert "cuda:1 matches no card" in ordinals.notes[0]


def test_a_mig_slice_is_matched_by_uuid_or_as_the_only_one_of_its_card() -> None:
    single = replace(MIG, mig_instances=SLICES[:1])
    assert match_device([MIG], Seen("b000", "")) == CudaDevice(MIG, SLICES[1])
    assert match_device([single], Seen("", "0:7:0.0")) == CudaDevice(single, SLICES[0])
    assert match_device([MIG], Seen("", "0:7:0.0")) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("00000000:01:00.0", (0, 1, 0)),
        ("0000000F:01:00.0", (15, 1, 0)),
        ("3B:00.0", (0, 0x3B, 0)),
        ("", None),
        ("nonsense", None),
    ],
)
def test_addresses_compare_by_number_whatever_their_spelling(text: str, key: tuple[int, ...] | None) -> None:
    assert pci_key(text) == key
