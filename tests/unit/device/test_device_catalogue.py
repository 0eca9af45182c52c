"""The GPU catalogue: complete, plausible, sourced, and found by every name a card goes by."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.device.catalogue import (
    Card,
    find_card,
    load_catalogue,
    match_card,
    multiprocessor_limits,
)
from autotune.errors import DeviceError
from autotune.units import GIB, KIB, MIB

REPOSITORY = Path(__file__).parents[3]
CARDS = load_catalogue()
each_card = pytest.mark.parametrize("card", CARDS, ids=lambda card: card.slug)

# MiB in use outside PyTorch's allocator, from public out-of-memory messages. A message names a total, not a
# card: every card it may come from is listed.
CONTEXT_ROWS = [
    (768, "h100-sxm-80gb a100-sxm-80gb a100-pcie-80gb"),
    (749, "h100-sxm-80gb a100-sxm-80gb a100-pcie-80gb"),
    (670, "h200-141gb"),
    (522, "h200-141gb"),
    (543, "a100-pcie-40gb a100-sxm-40gb"),
    (389, "v100-32gb"),
    (399, "v100-32gb"),
    (461, "rtx-5090-32gb"),
    (499, "rtx-5090-32gb"),
    (299, "rtx-5090-32gb"),
    (349, "a6000-48gb rtx-6000-ada-48gb"),
    (309, "a6000-48gb rtx-6000-ada-48gb"),
    (317, "a6000-48gb rtx-6000-ada-48gb"),
    (328, "a6000-48gb rtx-6000-ada-48gb"),
    (201, "l40s-48gb a40-48gb l40-48gb"),
    (420, "rtx-3090-24gb a5000-24gb"),
    (315, "rtx-3090-24gb a5000-24gb"),
    (255, "rtx-3090-24gb a5000-24gb"),
    (439, "rtx-4090-24gb"),
    (164, "rtx-4060-ti-16gb rtx-4070-ti-super-16gb rtx-4080-16gb rtx-4080-super-16gb"),
    (111, "t4-16gb"),
    (164, "t4-16gb"),
    (198, "t4-16gb"),
    (250, "rtx-3060-12gb rtx-4070-12gb rtx-4070-ti-12gb rtx-3080-ti-12gb"),
    (118, "titan-xp-12gb"),
]

# Total capacity in GiB as public PyTorch messages of 2023 to 2026 print it: other messages than the sources
# of the catalogue, so other drivers.
PRINTED_TOTALS_GIB = [
    ("t4-16gb", 14.57, 14.76),
    ("rtx-3060-12gb", 11.56, 11.65),
    ("rtx-3090-24gb", 23.68, 23.69),
    ("rtx-4060-ti-16gb", 15.57, 15.60),
    ("rtx-4090-24gb", 23.64, 23.64),
    ("rtx-5070-ti-16gb", 15.47, 15.49),
    ("rtx-5090-32gb", 31.36, 31.37),
    ("v100-32gb", 31.73, 31.73),
    ("a6000-48gb", 47.40, 47.53),
    ("l40s-48gb", 44.34, 44.47),
    ("a100-sxm-40gb", 39.38, 39.59),
    ("h100-sxm-80gb", 79.10, 79.19),
    ("h200-141gb", 139.72, 139.81),
    ("b200-180gb", 178.36, 178.36),
]


def card_of(slug: str) -> Card:
    return next(card for card in CARDS if card.slug == slug)


def test_the_catalogue_spans_the_cards_people_train_on() -> None:
    assert len(CARDS) >= 100
    expected = "gtx-1060-6gb rtx-2080-ti-11gb t4-16gb rtx-3060-12gb rtx-3090-24gb rtx-4090-24gb l4-24gb"
    expected += " a100-sxm-80gb h100-sxm-80gb h200-141gb rtx-5090-32gb b200-180gb gb10-128gb"
    assert set(expected.split()) <= {card.slug for card in CARDS}


def test_no_slug_names_two_cards() -> None:
    assert len({card.slug for card in CARDS}) == len(CARDS)


@each_card
def test_an_entry_is_complete(card: Card) -> None:
    assert card.slug == card.slug.lower()
    assert card.slug.endswith("gb")
    assert all(name.strip() == name and name for name in card.names)
    assert card.names
    assert 5 <= card.sm_count <= 200
    assert 100 <= card.bandwidth_gb_s <= 10_000
    assert card.limits.block_shared_bytes <= card.limits.shared_bytes
    assert len(card.source) > 30
    assert len(card.context.basis) > 10


@each_card
def test_a_total_is_below_the_size_on_the_box_and_close_to_it(card: Card) -> None:
    assert 0.90 * card.sold_bytes < card.total_bytes < card.sold_bytes


@each_card
def test_a_driver_keeps_back_some_of_what_nvidia_smi_shows_and_never_a_whole_gib(card: Card) -> None:
    if card.nvml_total_bytes is None:
        assert card.unified_memory
        return
    assert 50 * MIB < card.nvml_total_bytes - card.total_bytes < GIB
    assert card.nvml_total_bytes <= card.sold_bytes + MIB * 512


@each_card
def test_a_total_that_was_not_printed_says_what_it_was_derived_from(card: Card) -> None:
    assert (card.total_precision == "derived") == (card.derived_from is not None)
    assert card.source.startswith("derived") == (card.derived_from is not None)
    if card.derived_from is None:
        return
    origin = card_of(card.derived_from)
    assert origin.derived_from is None
    assert origin.nvml_total_bytes is not None
    assert card.nvml_total_bytes is not None
    kept_back = origin.nvml_total_bytes - origin.total_bytes
    assert card.total_bytes == card.nvml_total_bytes - kept_back


@each_card
def test_a_printed_total_is_as_fine_as_it_claims(card: Card) -> None:
    if card.total_precision in {"1 MiB", "0.01 GiB"}:
        assert card.total_bytes % MIB == 0
    else:
        assert card.total_precision in {"exact", "derived"}


@pytest.mark.parametrize(("slug", "low_gib", "high_gib"), PRINTED_TOTALS_GIB)
def test_a_total_agrees_within_a_hundredth_with_what_others_saw(
    slug: str, low_gib: float, high_gib: float
) -> None:
    assert 0.99 * low_gib <= card_of(slug).total_bytes / GIB <= 1.01 * high_gib


@pytest.mark.parametrize(("overhead_mib", "slugs"), CONTEXT_ROWS)
def test_every_context_overhead_seen_lies_in_the_interval_of_its_card(overhead_mib: int, slugs: str) -> None:
    for slug in slugs.split():
        context = card_of(slug).context
        assert context.low_bytes <= overhead_mib * MIB <= context.high_bytes, slug


def test_context_intervals_are_intervals() -> None:
    assert all(0 < card.context.low_bytes < card.context.high_bytes < 2 * GIB for card in CARDS)


@each_card
def test_a_card_is_found_by_its_slug_and_by_what_the_driver_calls_it(card: Card) -> None:
    assert find_card(card.slug) is card
    assert find_card(card.slug.upper().replace("-", " ")) is card
    for name in card.names:
        assert match_card(name, card.total_bytes) is card


@pytest.mark.parametrize(
    ("written", "slug"),
    [
        ("rtx-3060", "rtx-3060-12gb"),
        ("RTX 4090", "rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 4070 SUPER", "rtx-4070-super-12gb"),
        ("T4", "t4-16gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
    ],
)
def test_a_card_is_found_however_people_write_it(written: str, slug: str) -> None:
    assert find_card(written).slug == slug


@pytest.mark.parametrize("written", ["rtx-3061-12gb", "rtx-3060-12g", "rtx3060-12gb"])
def test_a_mistyped_card_gets_the_nearest_as_a_suggestion(written: str) -> None:
    with pytest.raises(DeviceError, match=r"Did you mean rtx-3060-12gb") as caught:
        find_card(written)
    assert repr(written) in caught.value.fact


@pytest.mark.parametrize("written", ["voodoo", "", "-"])
def test_an_unknown_card_gets_a_way_out(written: str) -> None:
    with pytest.raises(DeviceError) as caught:
        find_card(written)
    assert "not in the catalogue" in caught.value.fact
    assert "rtx-3060-12gb" in caught.value.way_out


@pytest.mark.parametrize(
    ("written", "choices"),
    [
        ("rtx 3080", ["rtx-3080-10gb", "rtx-3080-12gb"]),
        ("NVIDIA GeForce RTX 4060 Ti", ["rtx-4060-ti-8gb", "rtx-4060-ti-16gb"]),
        ("h100", ["h100-pcie-80gb", "h100-sxm-80gb", "h100-nvl-94gb"]),
    ],
)
def test_a_name_of_several_cards_is_never_guessed(written: str, choices: list[str]) -> None:
    with pytest.raises(DeviceError, match="several cards") as caught:
        find_card(written)
    assert caught.value.way_out == f"Use one of {', '.join(choices)}."


@pytest.mark.parametrize(
    ("name", "total_mib", "slug"),
    [
        ("NVIDIA GeForce RTX 3060", 12044, "rtx-3060-12gb"),  # an earlier Linux driver
        ("NVIDIA GeForce RTX 3060", 12287, "rtx-3060-12gb"),  # Windows
        ("GeForce RTX 2080 Ti", 11019, "rtx-2080-ti-11gb"),  # a driver from before the NVIDIA prefix
        ("NVIDIA GeForce GTX 1660", 5747, "gtx-1660-6gb"),  # a later driver than the catalogue's figure
        ("NVIDIA GeForce RTX 4060 Ti", 8187, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16379, "rtx-4060-ti-16gb"),
        ("NVIDIA RTX 6000 Ada Generation", 45496, "rtx-6000-ada-48gb"),  # ECC switched on
        ("Orin", 7620, "jetson-orin-8gb"),
        ("Orin", 62827, "jetson-agx-orin-64gb"),
        ("NVIDIA GB10", 124610, "gb10-128gb"),
    ],
)
def test_a_card_is_recognised_whatever_the_driver_reports(name: str, total_mib: int, slug: str) -> None:
    card = match_card(name, total_mib * MIB)
    assert card is not None
    assert card.slug == slug


@pytest.mark.parametrize(
    ("name", "total_mib"),
    [
        ("NVIDIA GeForce RTX 6090", 32000),  # newer than the catalogue
        ("NVIDIA A100-SXM4-40GB", 4864),  # a MIG slice
        ("NVIDIA GeForce RTX 3080", 20479),  # memory modified
        ("NVIDIA GeForce RTX 3060", 8191),  # a variant that is not in the catalogue
        ("", 8191),
    ],
)
def test_a_card_that_is_not_in_the_catalogue_is_not_mistaken_for_one(name: str, total_mib: int) -> None:
    assert match_card(name, total_mib * MIB) is None


def test_shared_memory_follows_the_compute_capability() -> None:
    assert multiprocessor_limits((8, 6)).block_shared_bytes == 99 * KIB
    assert multiprocessor_limits((9, 0)).shared_bytes == 228 * KIB
    assert multiprocessor_limits((7, 5)).threads == 1024
    with pytest.raises(DeviceError, match=r"3\.5 is not known"):
        multiprocessor_limits((3, 5))


def test_the_shared_profiles_folder_and_the_package_hold_one_catalogue() -> None:
    in_package = REPOSITORY / "autotune" / "device" / "gpus.toml"
    assert (REPOSITORY / "profiles" / "gpus.toml").resolve() == in_package.resolve()


def test_reading_the_catalogue_loads_neither_torch_nor_nvml() -> None:
    program = (
        "import sys; from autotune.device.catalogue import load_catalogue; load_catalogue();"
        "print(sorted({'torch', 'numpy', 'pynvml', 'pydantic'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"
