"""What programs on one null card share: its memory, a neighbour, and the record of calls without a model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.device.null.build import touches_memory, unmodelled_functions
from autotune.device.null.card import NullCard
from autotune.device.null.control import ControlBlock
from autotune.device.null.install import cuda_torch
from autotune.device.null.symbols import read_libraries
from autotune.device.null.toolkit import look_at
from autotune.errors import DeviceError
from autotune.units import GIB, MIB
from tests.conftest import NullGpu

CARD = "4GiB@8.6"
GOLDEN = Path(__file__).parents[2] / "golden" / "null_unmodelled_memory.txt"

HOLD = """
import sys, torch
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("holding", flush=True)
sys.stdin.readline()
"""
FREE = "import json, torch; print(json.dumps(torch.cuda.mem_get_info()[0]))"
SQUEEZED = """
import json, torch
from autotune.device.null.control import ControlBlock
import os, pathlib
block = ControlBlock(pathlib.Path(os.environ["AUTOTUNE_NULL_CONTROL"]))
def fits(size):
    torch.cuda.empty_cache()
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return False
    return True
answers = [fits(3 << 30)]
block.set_neighbour(0, 2 << 30)
answers += [fits(3 << 30), fits(1 << 30)]
block.set_neighbour(0, 0)
answers.append(fits(3 << 30))
print(json.dumps(answers))
"""
UNMODELLED = """
import torch
try:
    sparse = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (4, 4)).cuda()
    sparse @ torch.ones(4, 4).cuda()
except RuntimeError as error:
    print(error)
"""
CONTEXT = """
import json, torch
before = torch.cuda.mem_get_info()[0]
print(json.dumps([torch.cuda.get_device_properties(0).total_memory - before, torch.cuda.memory_reserved()]))
"""


@pytest.fixture
def block(tmp_path: Path) -> ControlBlock:
    return ControlBlock.create(tmp_path / "control", [NullCard.parse(CARD)])


def test_a_process_sees_what_another_holds_until_that_one_ends(null_gpu: NullGpu, block: ControlBlock) -> None:
    environment = null_gpu.environment(CARD, control=block.path)
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        assert block.used_bytes(0) == GIB
        assert null_gpu.answer(FREE, CARD, control=block.path) == 3 * GIB
        holder.kill()
    assert block.used_bytes(0) == 0
    assert null_gpu.answer(FREE, CARD, control=block.path) == 4 * GIB


def test_a_neighbour_takes_and_gives_back_memory_while_a_program_runs(
    null_gpu: NullGpu, block: ControlBlock
) -> None:
    assert null_gpu.answer(SQUEEZED, CARD, control=block.path) == [True, False, True, True]


def test_a_context_takes_its_bytes_off_the_free_memory(null_gpu: NullGpu) -> None:
    environment = null_gpu.environment(CARD)
    environment["AUTOTUNE_NULL_CARDS"] = NullCard.parse(CARD).with_context(300 * MIB).encode()
    done = subprocess.run([sys.executable, "-c", CONTEXT], env=environment, capture_output=True, text=True)
    assert json.loads(done.stdout) == [300 * MIB, 0]


def test_a_call_without_a_model_is_recorded_by_name(null_gpu: NullGpu, block: ControlBlock) -> None:
    done = null_gpu.run(UNMODELLED, CARD, control=block.path)
    assert done.returncode == 0, done.stderr
    assert any(name.startswith("cusparse") for name in block.unmodelled())
    assert block.last_unmodelled() in block.unmodelled()


def test_no_function_that_touches_memory_is_without_a_model_but_the_reviewed_ones(null_gpu: NullGpu) -> None:
    torch, _ = cuda_torch()
    libraries = read_libraries([*torch.libraries(), *look_at().extensions(torch.cuda or "")])
    found = {name for names in unmodelled_functions(libraries).values() for name in names if touches_memory(name)}
    assert found <= set(GOLDEN.read_text("utf-8").split())


def test_a_file_that_is_no_control_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(os.urandom(1 << 20))
    with pytest.raises(DeviceError, match="no control file"):
        ControlBlock(tmp_path / "other")
    with pytest.raises(DeviceError, match="can't be opened"):
        ControlBlock(tmp_path / "absent")
