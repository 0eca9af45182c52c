"""The cuda session on a real card: the cap is kept, an out-of-memory is clean, memory comes back."""

import os

import pytest
import torch

from autotune.device.cuda import CudaSession
from autotune.device.nvml import read_nvml
from autotune.device.probe import reading_for
from autotune.device.session import DeviceSpec
from autotune.units import GIB, MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


@pytest.fixture(scope="module")
def session() -> CudaSession:
    return CudaSession(0)


def test_a_limit_makes_a_run_fail_cleanly_and_give_everything_back(session: CudaSession) -> None:
    session.limit(2 * GIB)
    with session.scope(), pytest.raises(torch.OutOfMemoryError, match="allowed"):
        torch.empty(2 * GIB, dtype=torch.uint8, device=session.torch_device)
    session.empty_cache()
    assert session.statistics()["allocated_bytes.all.current"] == 0
    assert session.statistics()["num_ooms"] >= 1


def test_context_and_reserved_bytes_together_stay_within_the_limit(session: CudaSession) -> None:
    session.limit(2 * GIB)
    blocks: list[torch.Tensor] = []
    with session.scope(), pytest.raises(torch.OutOfMemoryError):
        _fill(session, blocks)
    own = [use.used_bytes for use in read_nvml().gpus[0].processes if use.pid == os.getpid()]
    held = session.statistics()["reserved_bytes.all.current"] + session.context_bytes()
    blocks.clear()
    session.empty_cache()
    assert held <= 2 * GIB
    assert not own or own[0] is None or own[0] <= 2 * GIB


def test_placing_and_evicting_a_module_moves_it(session: CudaSession) -> None:
    module = session.place(torch.nn.Linear(8, 8))
    assert module.weight.device == session.torch_device
    assert session.evict(module).weight.device.type == "cpu"


def test_the_card_is_read_with_a_budget_below_its_total() -> None:
    reading = reading_for(DeviceSpec("cuda", "0"))
    assert reading.name == torch.cuda.get_device_name(0)
    assert 0 < reading.budget.bytes < reading.total_bytes


def _fill(session: CudaSession, blocks: list[torch.Tensor]) -> None:
    while True:
        blocks.append(torch.empty(64 * MIB, dtype=torch.uint8, device=session.torch_device))
