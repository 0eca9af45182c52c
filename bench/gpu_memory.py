"""Parts of the GPU check that hold a card themselves: what it says of itself, the cap, a real out-of-memory.

Each part takes an open session, so that it can be tried on another device, and records what it finds. Runs in
a child process of the check. Must never leave memory allocated or a cap set beyond its part.
"""

import os
import resource
from collections.abc import Callable
from typing import Any

import torch

from autotune.device.catalogue import match_card
from autotune.device.nvml import GpuReading, MigInstance, read_nvml
from autotune.device.ordinals import CudaDevice
from autotune.device.probe import read_gpus, reading_for, visible_devices
from autotune.device.session import DeviceSession, DeviceSpec
from autotune.trial import oom
from autotune.trial.trial import settle
from autotune.units import GIB, MIB, format_mib
from bench.findings import Findings

BLOCK_BYTES = 64 * MIB
CLOSE_BYTES = 96 * MIB  # two readings of one card may differ by what others did between them
LIMIT_BYTES = 4 * GIB
OwnBytes = Callable[[], int | None]


def check_probe(spec: DeviceSpec, found: Findings) -> None:
    """NVML's reading against CUDA's, and both against the catalogue. Opens the card."""
    from autotune.device.cuda import CudaSession

    ordinal = int(spec.argument or 0)
    reading = reading_for(spec)  # before this process has a context
    machine = read_gpus()
    ordinals = visible_devices(machine)
    device = ordinals.devices[ordinal]
    before_bytes = reading.free_bytes
    session = CudaSession(ordinal)
    found.note(
        card=reading.name,
        driver=machine.driver_version,
        cuda_driver=machine.cuda_driver_version,
        torch=torch.__version__,
        budget=reading.budget.explain(),
        notes=list(reading.notes),
        processes_visible=own_bytes(device) is not None,
    )
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    told = [one.name for one in ordinals.devices]
    found.check("ordinals: NVML's cards in CUDA's order", told == names, f"{told} and {names}")
    _check_identity(device, ordinal, found)
    _check_memory(ordinal, device, found)
    _check_context(session, before_bytes, ordinal, found)


def check_budget(session: DeviceSession, limit_bytes: int, own: OwnBytes, found: Findings) -> None:
    """Fill the card up to a cap: the allocation past it fails cleanly, and everything comes back."""
    settle(session, 0)
    before = session.statistics()
    host_before = _host_peak_bytes()
    session.limit(limit_bytes)
    context = context_of(session)
    blocks: list[torch.Tensor] = []
    text, kind = fill(session, blocks, limit_bytes)
    full, own_full = session.statistics(), own()
    held = full["reserved_bytes.all.current"]
    blocks.clear()
    after = settle(session, before["allocated_bytes.all.current"])
    found.note(limit_bytes=limit_bytes, context_bytes=context, held_bytes=held, own_bytes=own_full, oom_text=text)
    found.check("the allocation past the cap fails as torch.OutOfMemoryError", kind == "OutOfMemoryError", kind)
    found.check("its text names what is allowed", "allowed" in text, text)
    found.check("context and reserved bytes stay within the limit", held + context <= limit_bytes)
    room = limit_bytes - context - held
    found.check("the cap is used up to the last block", room < BLOCK_BYTES + 2 * MIB, format_mib(max(room, 0)))
    if own_full is not None:
        within = own_full <= limit_bytes + 2 * MIB
        found.check("the driver counts this process within the limit", within, format_mib(own_full))
    grown = _host_peak_bytes() - host_before
    found.check("nothing was paged to the host", grown < limit_bytes // 4, format_mib(max(grown, 0)))
    found.check("the failure is counted", full["num_ooms"] > before["num_ooms"])
    found.check("memory is back at its baseline", after.clean and after.usable, format_mib(after.leftover_bytes))


def check_oom(session: DeviceSession, total_bytes: int, found: Findings) -> None:
    """A real out-of-memory in the middle of a backward is recognised as memory and leaves nothing."""
    baseline = settle(session, 0).leftover_bytes
    session.limit(min(LIMIT_BYTES // 2, total_bytes // 2))
    try:
        with session.scope():
            _grow_a_graph(session)
        found.check("memory runs out", False, "it did not")
        return
    except Exception as error:
        finding = oom.examine(error)
        asked = oom.requested_bytes(str(finding.culprit))
        found.check("it is recognised as device memory", finding.kind is oom.Kind.DEVICE_MEMORY, repr(error))
        found.check("the process may go on", finding.reusable)
        found.check("the text tells what was asked for", asked)
        found.note(oom_text=oom.one_line(error), asked_bytes=asked)
        oom.forget(error)
    state = settle(session, baseline)
    found.check("everything it held comes back", state.clean, format_mib(state.leftover_bytes))


def fill(session: DeviceSession, blocks: list[torch.Tensor], most_bytes: int) -> tuple[str, str]:
    """Allocate blocks until it fails, at most a block beyond `most_bytes`: the error's text and class."""
    try:
        with session.scope():
            for _ in range(most_bytes // BLOCK_BYTES + 1):
                blocks.append(torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=session.torch_device))
    except RuntimeError as error:
        return oom.one_line(error), type(error).__name__
    return "", "nothing"


def context_of(session: DeviceSession) -> int:
    """What the process takes beside PyTorch's own bytes; zero on a device without a context."""
    read: Callable[[], int] | None = getattr(session, "context_bytes", None)
    return read() if read else 0


def own_bytes(device: CudaDevice) -> int | None:
    """What NVML says this process has on `device` now; None where it hides that (a container, WDDM)."""
    part = _reading_now(device)
    uses = part.processes if part else ()
    return next((use.used_bytes for use in uses if use.pid == os.getpid()), None)


def _reading_now(device: CudaDevice) -> GpuReading | MigInstance | None:
    """NVML's reading of `device` at this moment; None if it was read through CUDA only."""
    known = device.instance or device.gpu
    gpus = read_nvml().gpus
    parts: list[GpuReading | MigInstance] = [*gpus, *(part for gpu in gpus for part in gpu.mig_instances)]
    return next((part for part in parts if part.uuid and part.uuid == known.uuid), None)


def _check_identity(device: CudaDevice, ordinal: int, found: Findings) -> None:
    properties: Any = torch.cuda.get_device_properties(ordinal)
    uuid = str(getattr(properties, "uuid", ""))
    told = device.instance.uuid if device.instance else device.gpu.uuid
    if told and uuid:
        same = told.lower().removeprefix("gpu-").removeprefix("mig-") == uuid.lower()
        found.check("uuid: NVML's is CUDA's", same, "they differ" if not same else "")  # it names a machine
    capability = (properties.major, properties.minor)
    found.check("compute capability", device.gpu.compute_capability in (None, capability), str(capability))
    found.note(compute_capability=list(capability), sm_count=properties.multi_processor_count)


def _check_memory(ordinal: int, device: CudaDevice, found: Findings) -> None:
    part = _reading_now(device) or device.instance or device.gpu
    told = part.memory
    free, total = torch.cuda.mem_get_info(ordinal)
    found.note(cuda_total_bytes=total, cuda_free_bytes=free, nvml_total_bytes=told.total_bytes)
    found.note(nvml_free_bytes=told.free_bytes, driver_bytes=told.driver_bytes)
    same = total == torch.cuda.get_device_properties(ordinal).total_memory
    found.check("total: mem_get_info's is totalGlobalMem", same, str(total))
    if told.total_bytes is not None and told.free_bytes is not None:
        near = 0 <= told.total_bytes - total <= 0.05 * told.total_bytes
        found.check("total: NVML's is CUDA's and at most 5 % more", near, f"{told.total_bytes} and {total}")
        apart = abs(told.free_bytes - free)
        found.check("free: NVML's is CUDA's", apart <= CLOSE_BYTES, f"{format_mib(apart)} apart")


def _check_context(session: DeviceSession, before_bytes: int | None, ordinal: int, found: Findings) -> None:
    fresh = context_of(session)
    _load_kernels(session.torch_device)
    loaded = context_of(session)
    free, total = torch.cuda.mem_get_info(ordinal)
    left = None if before_bytes is None else before_bytes - free - torch.cuda.memory_reserved(ordinal)
    found.note(context_bytes=fresh, context_with_kernels_bytes=loaded, left_free_memory_bytes=left)
    card = match_card(torch.cuda.get_device_name(ordinal), total)
    found.check("the catalogue knows this card", card is not None, torch.cuda.get_device_name(ordinal))
    if card is None:
        return
    found.note(catalogue=card.slug, catalogue_total_bytes=card.total_bytes)
    found.note(catalogue_context_bytes=[card.context.low_bytes, card.context.high_bytes])
    off = total - card.total_bytes
    found.check("its total is the catalogue's within 1 %", abs(off) <= card.total_bytes / 100, f"{off:+d} bytes")
    inside = card.context.low_bytes <= loaded <= card.context.high_bytes
    found.check("its context is inside the catalogue's interval", inside, format_mib(loaded))


def _load_kernels(device: torch.device) -> None:
    """Run what a training runs once, so that its kernels are in the context: they are loaded on first use."""
    with torch.autocast(device.type, dtype=torch.float16):
        picture = torch.randn(1, 4, 64, 64, device=device, requires_grad=True)
        features = torch.nn.Conv2d(4, 64, 3, padding=1, device=device)(picture)
        tokens = torch.nn.GroupNorm(8, 64, device=device)(features).flatten(2).transpose(1, 2).unsqueeze(1)
        mixed = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        mixed.float().mean().backward()  # type: ignore[no-untyped-call]
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _grow_a_graph(session: DeviceSession) -> None:
    """Double a tensor whose graph keeps every size until memory runs out, then go backward."""
    value = torch.ones(MIB, device=session.torch_device, requires_grad=True)
    for _ in range(40):
        value = torch.cat([value, value]).sin()
    value.sum().backward()  # type: ignore[no-untyped-call]


def _host_peak_bytes() -> int:
    """The most host memory this process has had resident (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
