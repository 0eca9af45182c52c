"""What is device memory on the virtual GPU and what is not, case by case, in exact bytes."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch.nn import functional

from autotune.device.session import DeviceSpec, Evidence, open_session
from autotune.device.virtual import VirtualSession
from autotune.errors import DeviceError

KIB = 1024
FLOATS_1K = 256  # numbers of four bytes in 1 KiB


@pytest.fixture
def gpu():
    return VirtualSession(1 << 20)


def live(gpu):
    return gpu.statistics()["allocated_bytes.all.current"]


def peak(gpu):
    return gpu.statistics()["allocated_bytes.all.peak"]


def test_a_session_says_that_it_is_simulated_and_what_size_it_has():
    gpu = open_session(DeviceSpec.parse("virtual:700MiB"))
    assert (gpu.name, gpu.evidence, gpu.torch_device.type) == ("virtual:700MiB", Evidence.SIMULATED, "cpu")
    assert VirtualSession(2 << 30).name == "virtual:2GiB"
    assert VirtualSession(1000).name == "virtual:1000B"


def test_new_storages_in_scope_are_charged_in_blocks_and_given_back_when_they_die(gpu):
    with gpu.scope():
        one_byte = torch.zeros(1, dtype=torch.uint8)
        more_than_a_block = torch.zeros(513, dtype=torch.uint8)
        nothing = torch.zeros(0)
        assert live(gpu) == 512 + 1024
        del one_byte, nothing
        assert live(gpu) == 1024
    del more_than_a_block
    assert live(gpu) == 0


def test_outside_the_scope_and_under_host_nothing_is_charged(gpu):
    outside = torch.zeros(FLOATS_1K)
    with gpu.scope():
        with gpu.host():
            inside = torch.zeros(FLOATS_1K) + 1
        assert live(gpu) == 0
        device = inside + outside
        assert live(gpu) == KIB
    assert device.sum() == FLOATS_1K


def test_views_and_in_place_operations_of_host_memory_stay_free(gpu):
    host = torch.zeros(4, FLOATS_1K)
    with gpu.scope():
        kept = [host[1:], host.t(), host.view(-1), host.expand(2, 4, -1), host.detach(), *host.unbind()]
        kept += [host.contiguous(), host.to("cpu"), host.reshape(2, -1), *host.chunk(2)]
        kept += [torch.ops.aten._unsafe_view(host, [FLOATS_1K, 4])]
        kept += [host.add_(1), host.relu_(), torch.add(host, 1, out=host)]
        assert live(gpu) == 0


LIBRARY = torch.library.Library("virtual_test", "DEF")
for schema, kernel in {
    "itself(Tensor x) -> Tensor": lambda x: x,
    "keyword(*, Tensor x) -> Tensor": lambda x: x,
    "item(Tensor[] xs) -> Tensor": lambda xs: xs[0],
    "items(Tensor[] xs) -> Tensor[]": lambda xs: list(xs),
    "pair(Tensor x) -> (Tensor, Tensor)": lambda x: (x, x.view(-1)),
}.items():
    LIBRARY.define(schema)
    LIBRARY.impl(schema.split("(")[0], kernel, "CPU")


@pytest.mark.parametrize(
    "operation",
    [
        lambda t: torch.ops.virtual_test.itself(t),
        lambda t: torch.ops.virtual_test.keyword(x=t),
        lambda t: torch.ops.virtual_test.item([t]),
        lambda t: torch.ops.virtual_test.items([t]),
        lambda t: torch.ops.virtual_test.pair(t),
        lambda t: torch.ops.aten.unsafe_chunk(t, 2),
        lambda t: torch.ops.aten.unsafe_split(t, 1)[0],
    ],
    ids=["itself", "keyword", "item", "items", "pair", "unsafe-chunk", "unsafe-split"],
)
def test_operations_that_return_an_input_without_saying_so_are_not_charged_for_it(gpu, operation):
    host = torch.ones(2, FLOATS_1K)
    with gpu.scope():
        kept = [operation(host)]
        assert live(gpu) == 0
        device = gpu.place(host)
        kept.append(operation(device))
        assert live(gpu) == 2 * KIB
    del device, kept
    assert live(gpu) == 0


def test_a_view_of_device_memory_is_charged_once_and_keeps_all_of_it(gpu):
    with gpu.scope():
        whole = torch.zeros(4, FLOATS_1K)
        row = whole[0]
        assert live(gpu) == 4 * KIB
    del whole
    assert live(gpu) == 4 * KIB
    del row
    assert live(gpu) == 0


def test_tensors_from_python_and_numpy_values_are_device_memory_in_scope(gpu):
    with gpu.scope():
        kept = [torch.tensor([1.0, 2.0])]
        assert live(gpu) == 512
        kept.append(torch.from_numpy(np.zeros(FLOATS_1K, dtype=np.float32)))
        assert live(gpu) == 512 + KIB
        kept.append(torch.as_tensor([1, 2]))
        assert live(gpu) == 1024 + KIB


def test_operations_with_several_results_charge_each(gpu):
    source = torch.rand(FLOATS_1K)
    with gpu.scope():
        kept = torch.topk(source, 128)
        assert live(gpu) == 512 + 1024
        kept = torch._foreach_add([source, source], 1.0)
        assert live(gpu) == 2 * KIB
    del kept
    assert live(gpu) == 0


def test_in_place_growth_is_charged_with_old_and_new_block_at_the_peak(gpu):
    with gpu.scope():
        grown = torch.zeros(FLOATS_1K)
        grown.resize_(3 * FLOATS_1K)
        assert (live(gpu), peak(gpu)) == (3 * KIB, 4 * KIB)
        grown.resize_(FLOATS_1K)  # the storage keeps its size
        assert live(gpu) == 3 * KIB
        result = torch.empty(0)
        torch.add(torch.ones(FLOATS_1K), 1, out=result)
        assert live(gpu) == 4 * KIB
        with gpu.host():
            grown.resize_(5 * FLOATS_1K)
    del result
    assert live(gpu) == 5 * KIB
    host = torch.zeros(FLOATS_1K)
    with gpu.scope():
        host.resize_(4 * FLOATS_1K)
    assert live(gpu) == 5 * KIB


def test_growth_that_does_not_fit_leaves_the_old_charge(gpu):
    with gpu.scope():
        grown = torch.zeros(FLOATS_1K)
        gpu.limit(2 * KIB)
        with pytest.raises(torch.OutOfMemoryError):
            grown.resize_(2 * FLOATS_1K)
        assert live(gpu) == KIB
    del grown
    assert live(gpu) == 0


@pytest.mark.parametrize("inference", [False, True])
def test_set_charges_a_storage_that_no_tensor_had_and_no_other(gpu, inference):
    host = torch.zeros(FLOATS_1K)
    with torch.inference_mode(inference), gpu.scope():
        fresh = torch.empty(0).set_(torch.UntypedStorage(2 * KIB), 0, (2 * FLOATS_1K,))
        assert live(gpu) == 2 * KIB
        kept = [torch.empty(0).set_(host), torch.empty(0).set_(host.untyped_storage()), host.set_(host)]
        kept.append(host.set_(host.untyped_storage()))
        assert live(gpu) == 2 * KIB
        kept.append(torch.empty(0).set_(fresh.untyped_storage()))
        assert live(gpu) == 2 * KIB
        fresh.set_()
        kept.clear()
        assert live(gpu) == 0


def test_deepcopy_charges_the_copy_and_never_the_host_original(gpu):
    host = torch.zeros(FLOATS_1K)
    layer = torch.nn.Linear(FLOATS_1K, 1)
    with gpu.scope():
        copied = copy.deepcopy(host)
        assert live(gpu) == KIB
        copied = copy.deepcopy(copied)
        assert live(gpu) == KIB
        copied = copy.deepcopy(layer)
        assert live(gpu) == KIB + 512
        tied = copy.deepcopy([host, host[1:], host.view(2, -1)])
        assert live(gpu) == KIB + 512 + KIB
    del copied, tied
    assert live(gpu) == 0


def test_what_is_loaded_in_scope_is_device_memory_and_under_host_is_not(gpu):
    file = io.BytesIO()
    torch.save({"a": torch.ones(FLOATS_1K), "b": torch.ones(1)}, file)
    with gpu.scope():
        file.seek(0)
        loaded = torch.load(file)
        assert live(gpu) == KIB + 512
        file.seek(0)
        with gpu.host():
            on_host = torch.load(file)
        assert live(gpu) == KIB + 512
        pickled = pickle.loads(pickle.dumps(on_host["b"]))
    del loaded, on_host, pickled
    assert live(gpu) == 0


def test_place_charges_a_module_once_for_tied_weights_buffers_and_gradients(gpu):
    module = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False))
    module[1].weight = module[0].weight
    module.register_buffer("scale", torch.ones(1))
    assert gpu.place(module) is module
    assert live(gpu) == 1024 + 512
    assert gpu.place(module) is module
    assert live(gpu) == 1024 + 512
    module(torch.ones(1, 16)).sum().backward()
    gpu.place(module)
    assert live(gpu) == 2 * 1024 + 512
    assert gpu.evict(module) is module
    gpu.evict(module)
    assert live(gpu) == 0
    gpu.place(module)
    del module
    gc.collect()
    assert live(gpu) == 0


def test_place_that_does_not_fit_places_nothing_and_keeps_what_was_placed(gpu):
    first, second = torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 32, bias=False)
    gpu.limit(1024 + 512)
    gpu.place(first)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 2.00 KiB.*1.50 KiB allowed"):
        gpu.place(torch.nn.ModuleList([first, torch.nn.Linear(1, 1, bias=False), second]))
    assert live(gpu) == 1024
    assert gpu.statistics()["num_ooms"] == 1


@pytest.mark.parametrize("in_scope", [False, True])
def test_place_and_evict_copy_tensors_between_host_and_device(gpu, in_scope):
    host = torch.arange(4 * FLOATS_1K, dtype=torch.float32)
    with gpu.scope() if in_scope else gpu.host():
        device = gpu.place(host[:FLOATS_1K])
        assert live(gpu) == KIB
        assert gpu.place(device) is device
        back = gpu.evict(device)
        assert gpu.evict(host) is host
        assert live(gpu) == KIB
        device.zero_()
        assert back[1] == 1
        assert host[1] == 1
        del device
        assert live(gpu) == 0


def test_gradients_flow_through_place(gpu):
    host = torch.ones(4, requires_grad=True)
    with gpu.scope():
        gpu.place(host).mul(3).sum().backward()
    assert host.grad is not None
    assert host.grad.tolist() == [3.0] * 4


def test_memory_kept_by_autograd_alone_is_charged_until_the_graph_dies(gpu):
    weight = torch.ones(FLOATS_1K, requires_grad=True)
    with gpu.scope():
        loss = (weight * 2).square().sum()
        assert live(gpu) == KIB + 512  # weight * 2 lives in the graph, and the loss
        loss.backward()
        assert live(gpu) == KIB + 512  # the gradient, and the loss
        del loss
        weight.grad = None
        assert live(gpu) == 0


def test_scopes_nest_and_survive_exceptions(gpu):
    with gpu.scope():
        with gpu.host():
            with gpu.scope():
                inner = torch.zeros(1)
            assert live(gpu) == 512
            host = torch.zeros(1)
        with pytest.raises(KeyError), gpu.scope(), gpu.host():
            raise KeyError
        outer = torch.zeros(1)
        assert live(gpu) == 1024
    outside = torch.zeros(1)
    with pytest.raises(KeyError), gpu.scope():
        raise KeyError
    outside = torch.zeros(1)
    assert live(gpu) == 1024
    del inner, outer, host, outside
    assert live(gpu) == 0


def test_two_sessions_one_after_another_have_accounts_of_their_own(gpu):
    with gpu.scope():
        first = torch.zeros(FLOATS_1K)
    other = VirtualSession(1 << 20)
    with other.scope():
        second = first + 1
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1 << 20)
    assert (live(gpu), live(other)) == (KIB, KIB)
    assert gpu.statistics()["num_ooms"] == 0
    del first, second
    assert (live(gpu), live(other)) == (0, 0)


def test_an_account_that_died_before_its_storages_is_no_trouble(gpu):
    brief = VirtualSession(1 << 20)
    with brief.scope():
        kept = torch.zeros(8)
    del brief
    gc.collect()
    assert kept.sum() == 0
    del kept


def test_inference_mode_counts_the_same_as_no_grad(gpu):
    image = torch.rand(1, 3, 8, 8)
    weight = torch.rand(4, 3, 3, 3)

    def run():
        gpu.reset_peak()
        before = gpu.statistics()
        hidden = functional.conv2d(image, weight, padding=1).flatten(2).transpose(1, 2)
        hidden = functional.scaled_dot_product_attention(hidden, hidden, hidden)
        result = functional.linear(hidden.contiguous(), torch.rand(5, 4))
        after = gpu.statistics()
        allocated = after["allocated_bytes.all.allocated"] - before["allocated_bytes.all.allocated"]
        return (
            result.clone(),
            after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"],
            allocated,
        )

    with gpu.scope():
        with torch.no_grad():
            torch.manual_seed(0)
            value, peak_bytes, allocated_bytes = run()
        with torch.inference_mode():
            torch.manual_seed(0)
            value_2, peak_bytes_2, allocated_bytes_2 = run()
            other = torch.zeros(2, 256).t()
            base = live(gpu)
            kept = other.contiguous()  # a copy here, whatever its schema says
            assert live(gpu) == base + 2048
    assert (peak_bytes_2, allocated_bytes_2) == (peak_bytes, allocated_bytes)
    assert torch.equal(value, value_2)
    assert kept.is_inference()


def test_tensors_without_cpu_memory_are_not_charged(gpu):
    with gpu.scope():
        kept = [torch.zeros(1000, 1000, 1000, device="meta"), torch.nn.Linear(4096, 4096, device="meta")]
        assert kept[0].add(1).is_meta
        gpu.place(kept[1])
        assert gpu.place(kept[0]) is kept[0]
        assert live(gpu) == 0


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_the_parts_of_a_sparse_tensor_are_charged(gpu):
    dense = torch.eye(64)
    with gpu.scope():
        sparse = dense.to_sparse()
        assert live(gpu) == 2 * 64 * 8 + 512  # indices int64 (2, 64), values of 256 bytes in one block
        del sparse
        rows = dense.to_sparse_csr()
        assert live(gpu) == 1024 + 1024 + 512  # row ends, a view of both indices, values
        del rows
        assert live(gpu) == 0


def test_the_text_of_an_oom_has_the_shape_of_pytorchs_and_says_virtual(gpu):
    gpu.limit(700 * KIB)
    with gpu.scope():
        kept = torch.zeros(300 * FLOATS_1K)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.zeros(500 * FLOATS_1K)
    assert str(caught.value) == (
        "Virtual GPU out of memory. Tried to allocate 500.00 KiB. GPU virtual:1MiB has a total capacity of "
        "1024.00 KiB of which 724.00 KiB is free. 700.00 KiB allowed; Of the allocated memory 300.00 KiB is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. These bytes are "
        "simulated: live tensors counted on the CPU."
    )
    assert kept.sum() == 0


def test_a_caught_oom_holds_neither_the_refused_tensor_nor_the_inputs_of_its_operation(gpu):
    gpu.limit(3 * KIB)
    with gpu.scope():
        try:
            torch.ones(FLOATS_1K).expand(4, -1).add(torch.ones(FLOATS_1K))
        except torch.OutOfMemoryError as error:
            kept = error
        assert live(gpu) == 0
        assert kept.__traceback__ is not None
        gpu.limit(1 << 20)
        assert torch.ones(4).sum() == 4


def test_a_request_that_even_the_host_refuses_is_out_of_memory(gpu):
    with gpu.scope(), pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate .* GiB"):
        torch.empty(1 << 55, dtype=torch.uint8)
    assert gpu.statistics()["num_ooms"] == 1
    with gpu.scope(), gpu.host(), pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        torch.empty(1 << 55, dtype=torch.uint8)


def test_the_budget_can_be_lowered_below_what_is_live_and_never_passes_the_size(gpu):
    with gpu.scope():
        kept = torch.zeros(2 * FLOATS_1K)
        gpu.limit(KIB)
        empty = torch.zeros(0)  # zero bytes always fit
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1)
        gpu.limit(1 << 40)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1 << 20)
    assert live(gpu) == kept.nbytes + empty.nbytes
    with pytest.raises(ValueError, match="-1 bytes"):
        gpu.limit(-1)


def test_statistics_have_the_names_of_cuda_and_no_cache(gpu):
    with gpu.scope():
        kept = torch.zeros(1)
        torch.zeros(FLOATS_1K)
    gpu.empty_cache()
    gpu.synchronize()
    expected = {"current": 512, "peak": 512 + KIB, "allocated": 512 + KIB, "freed": KIB}
    statistics = gpu.statistics()
    for kind in ("allocated_bytes", "reserved_bytes"):
        assert {name: statistics[f"{kind}.all.{name}"] for name in expected} == expected
    assert (statistics["num_ooms"], statistics["num_alloc_retries"]) == (0, 0)
    gpu.reset_peak()
    assert peak(gpu) == live(gpu) == kept.nbytes + 508


def test_a_thread_is_counted_only_in_a_scope_of_its_own(gpu):
    made = []

    def work():
        made.append(torch.zeros(FLOATS_1K))
        with gpu.scope():
            made.append(torch.zeros(FLOATS_1K))

    with gpu.scope():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert live(gpu) == KIB
    made.clear()
    assert live(gpu) == 0


FORK = """
import os, sys, torch
from autotune.device.virtual import VirtualSession
from autotune.errors import DeviceError
gpu = VirtualSession(1 << 20)
with gpu.scope():
    kept = torch.zeros(256)
    with gpu.host():
        child = os.fork()
    if child == 0:
        big = torch.zeros(1 << 20)
        ok = gpu.statistics()["allocated_bytes.all.current"] == 1024
        try:
            gpu.place(big)
            ok = False
        except DeviceError as error:
            ok = ok and "spawn" in str(error)
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    torch.zeros(1)
    assert gpu.statistics()["allocated_bytes.all.peak"] == 1024 + 512
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_makes_host_memory_and_is_refused_the_session():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_process_is_told_the_way_out(gpu, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceError, match="spawn"), gpu.scope():
        pass
