"""The trainer on a real card: a walk under a limit ends where it must, and what is trained reloads.

The same parts as `python -m bench.gpu_check`, on the tiny model alone; the card belongs to worker processes.
"""

from pathlib import Path

import pytest
import torch

from autotune.device.cuda import CudaSession
from autotune.device.session import DeviceSpec
from bench.findings import Findings
from bench.gpu_jobs import Job, check_training, check_walk, check_worker, tiny_job
from bench.gpu_memory import check_oom, context_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
CARD = DeviceSpec("cuda", "0")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return tiny_job(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def context_bytes() -> int:
    return context_of(CudaSession(0))


def require(found: Findings) -> None:
    broken = [f"{check.name}: {check.detail}" for check in found.checks if not check.passed]
    assert found.passed, broken


def test_a_walk_under_a_limit_ends_on_the_first_plan_that_fits_it(job: Job, context_bytes: int) -> None:
    found = Findings()
    check_walk(CARD, job, context_bytes, 3, found)
    require(found)


def test_a_worker_proves_its_baseline_after_a_real_out_of_memory(job: Job, context_bytes: int) -> None:
    found = Findings()
    check_worker(CARD, job, context_bytes, found)
    require(found)


def test_a_trained_lora_reloads_in_diffusers(job: Job) -> None:
    found = Findings()
    check_training(CARD, job, found)
    require(found)


def test_a_backward_that_runs_out_of_memory_leaves_nothing(tmp_path: Path) -> None:
    found = Findings(tmp_path / "found.json")
    check_oom(CudaSession(0), torch.cuda.mem_get_info(0)[0], found)
    require(found)
