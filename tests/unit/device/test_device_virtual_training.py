"""Real training under the virtual GPU: values as without it, every byte of state charged, memory that runs
out in forward, backward and the optimizer, and comes back after."""

import gc
import io

import bitsandbytes
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from autotune.device.virtual import VirtualSession

WIDTH = 64
LAYER_BYTES = 4 * WIDTH * WIDTH  # 16 KiB; a bias of 256 bytes takes a block


@pytest.fixture
def gpu():
    return VirtualSession(1 << 30)


def live(gpu):
    return gpu.statistics()["allocated_bytes.all.current"]


def peak_of(gpu, run):
    """Device bytes `run` takes at most above what is live now."""
    gpu.reset_peak()
    before = live(gpu)
    with gpu.scope():
        run()
    return gpu.statistics()["allocated_bytes.all.peak"] - before


def small_network(layers=4):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def batch(gpu, rows=WIDTH):
    return gpu.place(torch.linspace(-1, 1, rows * WIDTH).view(rows, WIDTH))


def adamw_for_loop(parameters):
    return torch.optim.AdamW(parameters, foreach=False)


def adamw_foreach(parameters):
    return torch.optim.AdamW(parameters, foreach=True)


def adamw_fused(parameters):
    return torch.optim.AdamW(parameters, fused=True)


@pytest.mark.parametrize("make", [adamw_for_loop, adamw_foreach, adamw_fused])
def test_adamw_state_is_charged_to_the_byte(gpu, make):
    network = gpu.place(small_network())
    optimizer = make(network.parameters())
    with gpu.scope():
        network(batch(gpu)).square().sum().backward()
        before = live(gpu)
        optimizer.step()
        assert live(gpu) - before == 4 * (2 * LAYER_BYTES + 512)  # two moments and a step count
        before = live(gpu)
        optimizer.step()
        assert live(gpu) == before
        optimizer.zero_grad()
        assert before - live(gpu) == 4 * LAYER_BYTES
    del optimizer, network
    gc.collect()
    assert live(gpu) == 0


def test_adamw8bit_state_is_charged_to_the_byte(gpu):
    network = gpu.place(small_network(2))
    with gpu.scope():
        before = live(gpu)
        optimizer = bitsandbytes.optim.AdamW8bit(network.parameters(), min_8bit_size=1024)
        assert live(gpu) - before == 2 * 1024  # two maps that all parameters share
        network(batch(gpu)).square().sum().backward()
        before = live(gpu)
        optimizer.step()
        scales = 4 * (WIDTH * WIDTH // 256)  # one for each block of 256 numbers
        assert live(gpu) - before == 2 * 2 * (WIDTH * WIDTH + max(512, scales))
        before = live(gpu)
        optimizer.step()
        assert live(gpu) == before
    del optimizer, network
    gc.collect()
    assert live(gpu) == 0


@pytest.mark.parametrize("under_host", [False, True])
def test_optimizer_state_that_is_loaded_in_scope_is_charged(gpu, under_host):
    network = gpu.place(small_network())
    with gpu.scope():
        optimizer = adamw_foreach(network.parameters())
        network(batch(gpu)).square().sum().backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        state_bytes = 4 * (2 * LAYER_BYTES + 512)
        optimizer.zero_grad()
        del optimizer
        gc.collect()
        before = live(gpu)
        file.seek(0)
        if under_host:
            with gpu.host():
                state = torch.load(file)
            assert live(gpu) == before
            state["state"] = {
                at: {name: gpu.place(value) for name, value in values.items()}
                for at, values in state["state"].items()
            }
        else:
            state = torch.load(file)
        optimizer = adamw_foreach(network.parameters())
        optimizer.load_state_dict(state)
        del state
        assert live(gpu) - before == state_bytes
        network(batch(gpu)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert live(gpu) - before == state_bytes


def test_training_computes_the_same_values_bit_for_bit(gpu):
    def train(scope, place):
        network = place(small_network())
        optimizer = adamw_foreach(network.parameters())
        with scope:
            for _ in range(3):
                loss = network(batch(gpu)).square().mean()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return [parameter.detach() for parameter in network.parameters()]

    plain = train(gpu.host(), lambda network: network)
    virtual = train(gpu.scope(), gpu.place)
    assert all(map(torch.equal, plain, virtual))


def full_step(network, inputs, optimizer):
    network(inputs).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("spare", "frame"),
    [
        (3 * LAYER_BYTES, "forward"),
        (5 * LAYER_BYTES + 1024, "backward"),
        (4 * LAYER_BYTES + 4 * LAYER_BYTES + 4 * 512 + LAYER_BYTES, "step"),
    ],
    ids=["forward", "backward", "optimizer"],
)
def test_memory_runs_out_in_forward_backward_and_optimizer_and_comes_back_exactly(gpu, spare, frame):
    network = gpu.place(small_network())
    inputs = batch(gpu)
    optimizer = adamw_for_loop(network.parameters())
    baseline = live(gpu)
    gpu.limit(baseline + spare)
    with gpu.scope():
        with pytest.raises(torch.OutOfMemoryError, match="Virtual GPU out of memory") as caught:
            full_step(network, inputs, optimizer)
        names = [entry.name for entry in caught.traceback]
        assert frame in names
        assert (frame == "forward") == ("backward" not in names and "step" not in names)
        del caught
        optimizer.state.clear()
        network.zero_grad()
        gc.collect()
        assert live(gpu) == baseline
        gpu.limit(1 << 30)
        full_step(network, inputs, optimizer)
    assert gpu.statistics()["num_ooms"] == 1


def test_a_budget_equal_to_the_peak_passes_and_one_block_less_does_not(gpu):
    network = gpu.place(small_network())
    inputs = batch(gpu)

    def step():
        optimizer = adamw_foreach(network.parameters())
        full_step(network, inputs, optimizer)
        optimizer.zero_grad()

    need_bytes = peak_of(gpu, step)
    gc.collect()
    gpu.limit(live(gpu) + need_bytes)
    assert peak_of(gpu, step) == need_bytes
    gc.collect()
    gpu.limit(live(gpu) + need_bytes - 512)
    with pytest.raises(torch.OutOfMemoryError):
        peak_of(gpu, step)


@pytest.mark.parametrize("inputs_need_grad", [False, True])
def test_non_reentrant_checkpointing_saves_memory_and_changes_no_gradient(gpu, inputs_need_grad):
    network = gpu.place(small_network(8))
    inputs = batch(gpu, 4 * WIDTH).requires_grad_(inputs_need_grad)

    def run(segment):
        hidden = inputs
        for at in range(0, 8, 2):
            hidden = segment(network[at : at + 2], hidden)
        hidden.square().sum().backward()

    plain_bytes = peak_of(gpu, lambda: run(lambda part, hidden: part(hidden)))
    gradients = [parameter.grad for parameter in network.parameters()]
    network.zero_grad()
    inputs.grad = None
    saved_bytes = peak_of(gpu, lambda: run(lambda part, hidden: checkpoint(part, hidden, use_reentrant=False)))
    assert saved_bytes < plain_bytes
    assert all(torch.equal(one, two.grad) for one, two in zip(gradients, network.parameters(), strict=True))


def test_memory_that_runs_out_while_a_checkpoint_recomputes_comes_back(gpu):
    network = gpu.place(small_network(8))
    inputs = batch(gpu, 4 * WIDTH).requires_grad_()
    baseline = live(gpu)

    def run():
        checkpoint(network, inputs, use_reentrant=False).square().sum().backward()

    with gpu.scope():
        gpu.limit(baseline + 6 * 4 * LAYER_BYTES)
        with pytest.raises(torch.OutOfMemoryError):
            run()
        network.zero_grad()
        inputs.grad = None
        gc.collect()
        assert live(gpu) == baseline
        gpu.limit(1 << 30)
        run()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_copies_are_half_as_large_and_charged(gpu, dtype):
    network = gpu.place(small_network(2))
    inputs = batch(gpu)
    with gpu.scope(), torch.autocast("cpu", dtype):
        before = live(gpu)
        result = network(inputs)
        assert result.dtype is dtype
        # weights (cached), input, hidden and result, each of half the bytes
        assert live(gpu) - before == 5 * LAYER_BYTES // 2
    assert live(gpu) - before == 4 * LAYER_BYTES // 2  # the graph does not need the first weight
    del result
    assert live(gpu) == before


def test_a_grad_scaler_steps_and_its_state_is_charged(gpu):
    network = gpu.place(small_network(1))
    optimizer = adamw_foreach(network.parameters())
    with gpu.scope():
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        with torch.autocast("cpu", torch.float16):
            loss = network(batch(gpu)).float().square().mean()
        before_weight = network[0].weight.detach().clone()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert not torch.equal(network[0].weight, before_weight)
        optimizer.zero_grad()
        optimizer.state.clear()
        del loss, before_weight
        gc.collect()
        held = live(gpu) - LAYER_BYTES
    assert held == 2 * 512  # scale and growth tracker
    assert scaler.get_scale() == 128.0


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_compiled_code_runs_and_is_counted(gpu):
    compiled = torch.compile(lambda values: (values * 2).sin(), backend="eager")
    inputs = batch(gpu)
    with gpu.scope():
        before = live(gpu)
        result = compiled(inputs)
        assert live(gpu) - before == LAYER_BYTES
    assert torch.equal(result, (inputs * 2).sin())
