"""The account against an independent count of the same programs, and budgets exact to one block."""

import copy
import gc
import io
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.device.virtual import VirtualSession

SIZE_BYTES = 1 << 30


class Program:
    """Runs random operations and keeps its own record of which tensors are device memory.

    `pool` holds every live tensor with where the rule puts it; the expected count walks their storages.
    """

    def __init__(self):
        self.gpu = VirtualSession(SIZE_BYTES)
        self.pool = []

    def add(self, tensor, on_device):
        self.pool.append((tensor, on_device))

    def expected_bytes(self):
        sizes = {}
        for tensor, on_device in self.pool:
            storage = tensor.untyped_storage()
            if on_device:
                sizes[storage.data_ptr()] = -(-storage.nbytes() // 512) * 512
        return sum(sizes.values())

    def live_bytes(self):
        return self.gpu.statistics()["allocated_bytes.all.current"]


def same_storage(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def reload(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


FACTORIES = [
    lambda n: torch.zeros(n, 4),
    lambda n: torch.rand(4, n),
    lambda n: torch.tensor([[float(n)] * 4] * (n % 9 + 1)),
    lambda n: torch.empty(n, 4).fill_(1.0),
    lambda n: torch.arange(4.0 * n).view(n, 4),
]
OPERATIONS = [
    lambda t: t + 1,
    lambda t: t.to(torch.float64).to(torch.float32),
    lambda t: t.to(torch.float32),
    lambda t: t.t(),
    lambda t: t.reshape(-1, 1),
    lambda t: t.contiguous(),
    lambda t: t[:1],
    lambda t: t.add_(1),
    lambda t: t.sum(0, keepdim=True),
    lambda t: torch.cat([t, t]),
    lambda t: t.unsqueeze(0).unbind()[0],
    lambda t: torch.ops.aten.unsafe_chunk(t, 2)[0],
    lambda t: torch.ops.aten._conj_physical(t),
    lambda t: torch.native_dropout(t, 0.5, False)[0],
    lambda t: torch.sort(t).values,
    lambda t: t[t > 0.5].reshape(-1, 1),
    lambda t: torch.where(t > 0.5, t, -t),
    lambda t: torch.add(t, 1, out=torch.empty(0)),
    lambda t: torch._foreach_mul([t, t], 2.0)[1],
    lambda t: torch.softmax(t, -1),
    lambda t: t.detach(),
    lambda t: torch.empty(0).set_(t),
    lambda t: torch.empty(0).set_(t.untyped_storage()).view(-1, 1),
    copy.deepcopy,
    reload,
]
ACTIONS = ["make", "make", "run", "run", "run", "run", "place", "evict", "drop", "grow"]
PLACES = ["scope", "scope", "host", "outside"]
STEPS = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000), st.integers(1, 700), st.sampled_from(PLACES))


def run_step(program, action, choice, size, where):
    in_scope = where == "scope"
    if action == "make":
        program.add(FACTORIES[choice % len(FACTORIES)](size), in_scope)
    elif program.pool:
        at = choice % len(program.pool)
        tensor, on_device = program.pool[at]
        if action == "run" and tensor.numel() < 20_000:
            result = OPERATIONS[size % len(OPERATIONS)](tensor)
            program.add(result, on_device if same_storage(result, tensor) else in_scope)
        elif action == "place":
            program.add(program.gpu.place(tensor), True)
        elif action == "evict":
            program.add(program.gpu.evict(tensor), False)
        elif action == "drop":
            del program.pool[at]
        elif action == "grow" and where != "outside":  # there growth is not seen
            tensor.resize_(size, 4)


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=5, max_size=30), st.booleans())
def test_random_programs_are_counted_to_the_byte_at_every_step(steps, inference):
    program = Program()
    with torch.inference_mode(inference):
        for action, choice, size, where in steps:
            with program.gpu.scope() if where != "outside" else nullcontext():
                with program.gpu.host() if where == "host" else nullcontext():
                    run_step(program, action, choice, size, where)
            assert program.live_bytes() == program.expected_bytes()
    program.pool.clear()
    assert program.live_bytes() == 0
    assert program.gpu._account.live == {}


def chain(gpu):
    """1 KiB, then 2 KiB from it, then 3 KiB from that, each dropping the one before: the peak is 2 + 3."""
    tensor = torch.zeros(256)
    tensor = torch.cat([tensor, tensor])
    return torch.nn.functional.pad(tensor, (0, 256))


def square_and_back(gpu):
    weight = gpu.place(torch.zeros(256)).requires_grad_()
    weight.exp().sum().backward()
    return weight


def adamw_step(gpu):
    layer = gpu.place(torch.nn.Linear(256, 1, bias=False))
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
    layer.weight.grad = torch.ones(1, 256)
    optimizer.step()
    return layer, optimizer


PEAKS = {
    chain: 2048 + 3072,
    # weight, exp (kept for backward), loss; then the gradient of the loss and of the weight
    square_and_back: 1024 + 1024 + 512 + 512 + 1024,
    # weight, gradient, step, two moments; then sqrt of the second moment and its quotient
    adamw_step: 1024 + 1024 + 512 + 2 * 1024 + 2 * 1024,
}


@pytest.mark.parametrize("program", PEAKS, ids=lambda program: program.__name__)
def test_peaks_of_small_programs_are_those_counted_by_hand_and_a_budget_is_exact(program):
    peak_bytes = PEAKS[program]
    gpu = VirtualSession(SIZE_BYTES)
    gpu.limit(peak_bytes)
    with gpu.scope():
        kept = program(gpu)
    assert gpu.statistics()["allocated_bytes.all.peak"] == peak_bytes
    del kept
    gc.collect()
    assert gpu.statistics()["allocated_bytes.all.current"] == 0
    gpu.limit(peak_bytes - 512)
    with gpu.scope(), pytest.raises(torch.OutOfMemoryError):
        program(gpu)
    gc.collect()
    assert gpu.statistics()["allocated_bytes.all.current"] == 0
    assert gpu.statistics()["num_ooms"] == 1
