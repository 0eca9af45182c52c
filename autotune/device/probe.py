"""What the controller asks about devices: which cards, which one is `cuda:N`, what a run may use there.

Joins NVML's reading, CUDA's order and the budget, and takes the way on when one of them fails: what NVML does
not tell, torch is asked in a short-lived child. Must never import torch or create a CUDA context in this
process.
"""

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autotune.device.budget import Budget, choose_reserve, make_budget, plain_budget
from autotune.device.nvml import GpuReading, MachineReading, MemoryUse, MigInstance, ProcessUse, read_nvml
from autotune.device.ordinals import (
    VISIBLE,
    CudaDevice,
    Ordinals,
    Seen,
    match_device,
    order_from_cuda,
    order_from_environment,
)
from autotune.device.questions import Source
from autotune.device.session import DeviceSpec
from autotune.device.torch_answer import TorchAnswer, TorchDevice, ask_torch
from autotune.errors import DeviceError
from autotune.units import parse_size

AskTorch = Callable[..., TorchAnswer]
DEFAULT_VIRTUAL = DeviceSpec("virtual", "2GiB")


@dataclass(frozen=True)
class DeviceReading:
    """A device and what a run may use of it.

    `name` is the card's (or MIG instance's) display name, or `virtual:SIZE`. Bytes; `free_bytes` is None
    where it can't be known. `gpu` is None for a virtual GPU. `notes` are sentences for the user.
    """

    spec: DeviceSpec
    name: str
    total_bytes: int
    free_bytes: int | None
    budget: Budget
    notes: tuple[str, ...] = ()
    gpu: GpuReading | None = None
    processes: tuple[ProcessUse, ...] = ()
    driver_version: str = ""
    cuda_driver_version: str = ""


@dataclass(frozen=True)
class DefaultDevice:
    """The device to use when none is named, and why, as a sentence."""

    spec: DeviceSpec
    reason: str


def read_gpus(
    environ: Mapping[str, str] | None = None, source: Source | None = None, ask: AskTorch = ask_torch
) -> MachineReading:
    """All cards of this machine. Never raises: notes tell what could not be read and what was done instead.

    NVML tells; where it does not (no library, no driver, memory info not supported),
    `torch.cuda.mem_get_info` is asked in a child process under `environ` (default: this process's), which
    sees only the cards shown there.
    """
    machine = read_nvml(source)
    if machine.gpus and not any(_lacks_memory(gpu) for gpu in machine.gpus):
        return machine
    return _fill_from_cuda(machine, ask(os.environ if environ is None else environ, memory=True))


def visible_devices(
    machine: MachineReading, environ: Mapping[str, str] | None = None, ask: AskTorch = ask_torch
) -> Ordinals:
    """The devices of `machine` by CUDA ordinal. CUDA is asked only where the environment leaves it open."""
    environ = os.environ if environ is None else environ
    if machine.in_cuda_order:  # CUDA has applied the environment already
        return Ordinals(tuple(CudaDevice(gpu) for gpu in machine.gpus), True)
    implied = order_from_environment(machine.gpus, environ)
    if implied.certain or len(implied.devices) < 1:
        return implied
    answer = ask(environ)
    if not answer.devices:
        return replace(implied, notes=(*implied.notes, f"CUDA could not be asked: {answer.reason}."))
    seen = order_from_cuda(machine.gpus, [Seen(one.uuid, one.pci_bus_id) for one in answer.devices])
    return seen if seen.certain else replace(implied, notes=(*implied.notes, *seen.notes))


def list_cuda_devices(
    environ: Mapping[str, str] | None = None, source: Source | None = None, ask: AskTorch = ask_torch
) -> tuple[DeviceSpec, ...]:
    """`cuda:0` to the last card CUDA shows, for a probe of every card."""
    ordinals = visible_devices(read_gpus(environ, source, ask), environ, ask)
    return tuple(DeviceSpec("cuda", str(ordinal)) for ordinal in range(len(ordinals.devices)))


def reading_for(
    spec: DeviceSpec,
    environ: Mapping[str, str] | None = None,
    limit_bytes: int | None = None,
    own_pids: frozenset[int] = frozenset(),
    source: Source | None = None,
    ask: AskTorch = ask_torch,
) -> DeviceReading:
    """The device behind `spec` and its budget, under `--vram-limit` (`limit_bytes`) if one is given.

    `own_pids` are processes of this run, whose memory is not others'. Raises DeviceError if there is no such
    device, or its memory is unknown and no limit is given, or nothing of it is left.
    """
    if spec.kind == "virtual":
        size = parse_size(spec.argument)
        budget = plain_budget(size, limit_bytes)
        return DeviceReading(spec, str(spec), size, size, budget, budget.notes)
    if spec.kind == "null":
        return _read_null(spec, limit_bytes)
    machine = read_gpus(environ, source, ask)
    ordinals = visible_devices(machine, environ, ask)
    device = _pick(machine, ordinals, int(spec.argument or 0), os.environ if environ is None else environ)
    notes = (*machine.notes, *ordinals.notes)
    reading = _read_device(spec, device, notes, limit_bytes, own_pids)
    return replace(reading, driver_version=machine.driver_version, cuda_driver_version=machine.cuda_driver_version)


def _read_null(spec: DeviceSpec, limit_bytes: int | None) -> DeviceReading:
    """A null card as the card it stands for would be read with nobody on it: the same reserve is kept."""
    from autotune.device.null.card import NullCard

    card = NullCard.parse(spec.argument)
    memory = MemoryUse(card.total_bytes, card.total_bytes, 0, None, "catalogue")
    budget = make_budget(str(spec), memory, choose_reserve(False, False), limit_bytes=limit_bytes)
    return DeviceReading(spec, card.name, card.total_bytes, card.total_bytes, budget, budget.notes)


def detect_default_device(
    environ: Mapping[str, str] | None = None, source: Source | None = None, ask: AskTorch = ask_torch
) -> DefaultDevice:
    """The first card that the installed torch can really use, else a virtual GPU; with the reason."""
    answer = ask(os.environ if environ is None else environ, use=True)
    problems = []
    for ordinal, device in enumerate(answer.devices):
        if not device.problem:
            reason = f"{device.name} is there and torch {answer.version} can use it."
            return DefaultDevice(DeviceSpec("cuda", str(ordinal)), reason)
        problems.append(f"torch {answer.version} can't use {device.name}: {device.problem}")
    machine = read_nvml(source)
    cards = ", ".join(gpu.name for gpu in machine.gpus)
    there = f"There is {cards}, but" if cards else "No NVIDIA card can be used:"
    why = "; ".join(problems) or answer.reason
    return DefaultDevice(DEFAULT_VIRTUAL, f"{there} {why.rstrip('.')}. {DEFAULT_VIRTUAL} stands in, on the CPU.")


def pages_to_host(gpu: GpuReading) -> bool:
    """Whether the driver moves device memory to the host when it is short: Windows and WSL2."""
    return gpu.hides_processes or sys.platform == "win32" or "microsoft" in platform.release().lower()


def _lacks_memory(gpu: GpuReading) -> bool:
    if not gpu.reachable:
        return False
    memories = [instance.memory for instance in gpu.mig_instances] or [gpu.memory]
    return any(memory.free_bytes is None for memory in memories)


def _fill_from_cuda(machine: MachineReading, answer: TorchAnswer) -> MachineReading:
    if not answer.devices:
        note = f"CUDA could not be asked instead: {answer.reason}."
        return replace(machine, notes=(*machine.notes, note))
    if not machine.gpus:
        gpus = tuple(_gpu_from_cuda(ordinal, device) for ordinal, device in enumerate(answer.devices))
        note = "The cards were read through CUDA: driver, processes, display and MIG are not known."
        return replace(machine, gpus=gpus, notes=(*machine.notes, note), in_cuda_order=True)
    gpus = machine.gpus
    for device in answer.devices:
        gpus = _fill_one(gpus, device, alone=len(answer.devices) == 1)
    return replace(machine, gpus=gpus)


def _gpu_from_cuda(index: int, device: TorchDevice) -> GpuReading:
    uuid = f"GPU-{device.uuid}" if device.uuid else ""
    note = (f"GPU {index}: CUDA could not read its memory: {device.problem}.",) if device.problem else ()
    return GpuReading(
        index,
        device.name,
        uuid,
        device.pci_bus_id,
        _memory_from_cuda(device),
        compute_capability=device.compute_capability,
        notes=note,
    )


def _memory_from_cuda(device: TorchDevice) -> MemoryUse:
    if device.free_bytes is None or device.total_bytes is None:
        return MemoryUse()
    used = max(device.total_bytes - device.free_bytes, 0)
    return MemoryUse(device.total_bytes, device.free_bytes, used, None, "cuda")


def _fill_one(gpus: tuple[GpuReading, ...], device: TorchDevice, alone: bool) -> tuple[GpuReading, ...]:
    """`gpus` with the memory CUDA told of `device`, where NVML told none."""
    match = match_device(gpus, Seen(device.uuid, device.pci_bus_id))
    if match is None and alone and len(gpus) == 1 and not gpus[0].mig_enabled:
        match = CudaDevice(gpus[0])  # a Jetson has no PCI address, and its UUID need not be the same in both
    if match is None:
        return gpus
    told = _memory_from_cuda(device)
    note = f"Memory of {match.name} was read through CUDA (mem_get_info) instead."
    if device.problem:
        note = f"CUDA could not read the memory of {match.name} either: {device.problem}."
    filled = _with_memory(match, told, note)
    return tuple(filled if gpu is match.gpu else gpu for gpu in gpus)


def _with_memory(device: CudaDevice, told: MemoryUse, note: str) -> GpuReading:
    gpu, instance = device.gpu, device.instance
    if instance is None:
        return gpu if gpu.memory.source else replace(gpu, memory=told, notes=(*gpu.notes, note))
    if instance.memory.source:
        return gpu
    filled = replace(instance, memory=told, notes=(*instance.notes, note))
    return replace(gpu, mig_instances=tuple(filled if i is instance else i for i in gpu.mig_instances))


def _pick(machine: MachineReading, ordinals: Ordinals, ordinal: int, environ: Mapping[str, str]) -> CudaDevice:
    if ordinal < len(ordinals.devices):
        return ordinals.devices[ordinal]
    shown = len(ordinals.devices)
    if not machine.gpus:
        raise DeviceError(
            f"cuda:{ordinal} can't be found: no NVIDIA card can be read. {' '.join(machine.notes)}",
            "Use --device virtual:2GiB to try without a card.",
        )
    setting = f" under {VISIBLE}={environ[VISIBLE]!r}" if VISIBLE in environ else ""
    reasons = " ".join((*ordinals.notes, *(gpu.notes[0] for gpu in machine.gpus if not gpu.reachable)))
    raise DeviceError(
        f"there is no cuda:{ordinal}: CUDA shows {shown} of {len(machine.gpus)} cards{setting}. {reasons}",
        f"Use cuda:0 to cuda:{shown - 1}." if shown else "Use --device virtual:2GiB to try without a card.",
    )


def _read_device(
    spec: DeviceSpec,
    device: CudaDevice,
    notes: tuple[str, ...],
    limit_bytes: int | None,
    own_pids: frozenset[int],
) -> DeviceReading:
    part: GpuReading | MigInstance = device.instance or device.gpu
    display = device.gpu.display_active and device.instance is None
    reserve = choose_reserve(display, pages_to_host(device.gpu))
    try:
        budget = make_budget(str(spec), part.memory, reserve, part.processes, own_pids, limit_bytes)
    except DeviceError as error:
        raise DeviceError(" ".join((error.fact, *notes, *part.notes)), error.way_out) from None
    return DeviceReading(
        spec,
        device.name,
        part.memory.total_bytes or budget.total_bytes,
        part.memory.free_bytes,
        budget,
        (*notes, *part.notes, *budget.notes),
        device.gpu,
        part.processes,
    )
