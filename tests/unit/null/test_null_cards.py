"""Cards: what a user may write, and what PyTorch and NVML then see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.device.catalogue import load_catalogue
from autotune.device.null.card import NullCard
from autotune.device.session import DeviceSpec
from autotune.errors import DeviceError
from autotune.units import GIB
from tests.conftest import NullGpu

SEEN = """
import json, pynvml, torch
p = torch.cuda.get_device_properties(0)
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([p.name, p.total_memory, p.major, p.minor, p.multi_processor_count,
    p.shared_memory_per_block_optin,
    p.shared_memory_per_multiprocessor, p.max_threads_per_multi_processor, torch.cuda.mem_get_info()[1],
    pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    list(pynvml.nvmlDeviceGetCudaComputeCapability(handle))]))
"""
COUNT = """
import json, torch
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
"""


@pytest.mark.parametrize("slug", ["rtx-3060-12gb", "rtx-4090", "h100-sxm-80gb", "t4"])
def test_pytorch_and_nvml_see_the_catalogues_figures(null_gpu: NullGpu, slug: str) -> None:
    card = NullCard.parse(slug)
    major, minor = card.compute_capability
    limits = card.limits
    assert null_gpu.answer(SEEN, slug) == [
        card.name, card.total_bytes, major, minor, card.sm_count, limits.block_shared_bytes,
        limits.shared_bytes, limits.threads, card.total_bytes, card.name, card.total_bytes, [major, minor],
    ]  # fmt: skip


def test_a_program_sees_as_many_cards_as_it_is_given(null_gpu: NullGpu) -> None:
    assert null_gpu.answer(COUNT, "rtx-3060-12gb", "rtx-4090") == [
        "NVIDIA GeForce RTX 3060",
        "NVIDIA GeForce RTX 4090",
    ]


def test_every_card_of_the_catalogue_is_a_null_card() -> None:
    for card in load_catalogue():
        made = NullCard.parse(card.slug)
        assert (made.total_bytes, made.compute_capability) == (card.total_bytes, card.compute_capability)
        assert made.encode().count("|") == 9


@given(st.integers(1, 512), st.sampled_from([(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)]))
def test_any_size_and_capability_is_a_card(gib: int, capability: tuple[int, int]) -> None:
    card = NullCard.parse(f"{gib}GiB@{capability[0]}.{capability[1]}")
    assert (card.total_bytes, card.compute_capability) == (gib * GIB, capability)
    assert card.context_low_bytes <= card.context_high_bytes


@pytest.mark.parametrize(
    "text",
    ["", "12", "12GiB@", "12GiB@8", "12GiB@5.0", "rtx-9999", "12XB", "@8.6", "-3GiB", "0GiB", "9e9GiB", "a|b;c"],
)
def test_what_is_no_card_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(DeviceError) as refused:
        NullCard.parse(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["12GB@8.6", "12GiB@8.6", "11906MiB@7.5", "8500MB@12.0", "123456789B@8.9"])
def test_a_sized_card_is_called_as_it_is_written(text: str) -> None:
    assert NullCard.parse(text.lower()).slug == text


def test_a_device_names_its_null_card_and_refuses_an_unknown_one() -> None:
    assert str(DeviceSpec.parse("null:12GiB@8.6")) == "null:12GiB@8.6"
    with pytest.raises(DeviceError, match="catalogue"):
        DeviceSpec.parse("null:rtx-9999")
