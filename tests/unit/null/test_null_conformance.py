"""The null GPU's accounting equals PyTorch's documented allocator behaviour, to the byte.

The vectors were read from the released 2.13.0 library; they do not depend on the addresses a driver returns.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NullGpu

PROGRAM = Path(__file__).with_name("allocator_vectors.py")
EIGHT, ONE = "8GiB@8.6", "1GiB@8.6"

# Counters in the order of allocator_vectors.COUNTERS, then reserved after empty_cache.
VECTORS = {
    "plain": (
        EIGHT,
        "",
        1.0,
        "3322637312 3584694784 4322230272 4322230272 3298568942 97 280 115 695505920 0 0 97 0 4018143232",
    ),
    "full card": (
        ONE,
        "",
        1.0,
        "838788608 995346432 1071644672 1073741824 832502850 27 105 55 232856064 184 175 51 24 1071644672",
    ),
    "fraction": (
        EIGHT,
        "",
        0.125,
        "838788608 995346432 1071644672 1073741824 832502850 27 105 55 232856064 184 175 51 24 1071644672",
    ),
    "expandable": (
        EIGHT,
        "expandable_segments:True",
        1.0,
        "3298618368 3561102848 4164943872 4164943872 3298568942 0 280 0 0 0 0 102 0 3724541952",
    ),
    "expandable, full card": (
        ONE,
        "expandable_segments:True",
        1.0,
        "721444352 1038993408 1069547520 1073741824 721429150 0 90 0 0 215 190 112 105 901775360",
    ),
    "max split": (
        ONE,
        "max_split_size_mb:32",
        1.0,
        "800587264 1040194048 1044381696 1073741824 778803227 41 97 47 59245056 228 183 246 205 859832320",
    ),
    "garbage collection": (
        EIGHT,
        "garbage_collection_threshold:0.6",
        0.125,
        "756231168 995076096 1073741824 1073741824 750979553 29 109 59 244110336 171 171 57 28 1000341504",
    ),
    "rounding up": (
        ONE,
        "roundup_power2_divisions:4",
        1.0,
        "729027584 1040525312 1052770304 1073741824 657046263 26 96 38 206302208 191 184 60 34 935329792",
    ),
    "large segments": (
        ONE,
        "large_segment_size_mb:32",
        1.0,
        "654505472 999254016 1029701632 1073741824 644602711 27 107 59 375196160 189 173 70 43 1029701632",
    ),
}

SMALL = """
import json, torch
sizes = (1, 512, 513, 1048576, 1048577, 10485760, 10485248, 30000000)
live = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
stats = torch.cuda.memory_stats()
size_of = lambda b: b["size"] if b["state"] != "inactive" else -b["size"]
blocks = [[size_of(b) for b in s["blocks"]] for s in torch.cuda.memory_snapshot()]
print(json.dumps([blocks, stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"],
                  stats["inactive_split.all.current"], stats["inactive_split_bytes.all.current"]]))
"""
TEXTS = """
import json, torch
def text(size, fill):
    live = torch.empty(fill, dtype=torch.uint8, device="cuda") if fill else None
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return str(error)
whole = torch.cuda.get_device_properties(0).total_memory
answers = [text(9_000_000_000, 0), text(1024**3 * 800_000_000, 0), text(1024**3 * 8_000_000_000, 0)]
torch.cuda.empty_cache()
answers += [text(size, whole) for size in (100, 3_000_000, 12_000_001)]
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(0.5, 0)
answers.append(text(9_000_000_000, 0))
print(json.dumps(answers))
"""
GRAPHS = """
import gc, json, torch
torch.cuda.init()
held = torch.empty(1, device="cuda")  # keeps a small segment, where the graphs' random state goes
rows = []
for size in (512, 1048576, 1049088, 10485248, 10486272):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    stream = torch.cuda.Stream()
    a = torch.ones(size // 4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        kept = torch.cuda.memory_stats()["segment.all.current"], torch.cuda.memory_reserved()
        graph.capture_begin()
        b = a.clone()
        for _ in range(5):
            b = b.clone() + 1
        graph.capture_end()
    stats = torch.cuda.memory_stats()
    rows.append([stats["segment.all.current"] - kept[0], stats["reserved_bytes.all.current"] - kept[1]])
    del graph, a, b
    gc.collect()
print(json.dumps(rows))
"""


@pytest.mark.parametrize("name", list(VECTORS))
def test_a_generated_workload_leaves_every_counter_as_the_library_does(null_gpu: NullGpu, name: str) -> None:
    card, setting, fraction, expected = VECTORS[name]
    environment = null_gpu.environment(card, PYTORCH_CUDA_ALLOC_CONF=setting)
    command = [sys.executable, str(PROGRAM), str(fraction)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [int(number) for number in expected.split()]


def test_small_requests_lie_in_the_segments_the_rules_say(null_gpu: NullGpu) -> None:
    blocks, allocated, reserved, count, split = null_gpu.answer(SMALL, EIGHT)
    assert sorted(blocks) == sorted([
        [512, 512, 1024, 1048576, -1046528],
        [1049088, 10485760, -9436672],
        [10485248, -10486272],
        [30000128, -1457152],
    ])  # fmt: skip
    assert (allocated, reserved, count, split) == (53070848, 75497472, 4, 22426624)


def test_out_of_memory_says_what_pytorch_says(null_gpu: NullGpu) -> None:
    large, huge, endless, tiny, small, middle, halved = null_gpu.answer(TEXTS, EIGHT)
    assert "Tried to allocate 8.38 GiB. GPU 0 has a total capacity of 8.00 GiB" in large
    assert "Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of" in huge
    assert "Tried to allocate more than 1EB memory" in endless
    assert "Tried to allocate 2.00 MiB." in tiny
    assert "Tried to allocate 20.00 MiB." in small
    assert "Tried to allocate 12.00 MiB." in middle
    assert "4.00 GiB allowed; " in halved


def test_a_captured_graph_keeps_a_pool_of_its_own(null_gpu: NullGpu) -> None:
    rows = null_gpu.answer(GRAPHS, EIGHT)
    assert rows == [[1, 2097152], [2, 4194304], [1, 20971520], [2, 41943040], [3, 37748736]]
