"""What the NVIDIA driver says of the cards here: names, identities, memory, who uses it, MIG, display.

NVML (through pynvml) is the source of truth. This module owns the readings and turns every answer that did
not come into a sentence. It must never create a CUDA context, never import torch, and never fail because a
card or the driver does: what could not be read is None and a note.
"""

from dataclasses import dataclass, replace

from autotune.device.questions import (
    FUNCTION_NOT_FOUND,
    NOT_AVAILABLE,
    SYSTEM,
    Answer,
    NvmlSource,
    Source,
)

NOT_SUPPORTED = 3  # NVML_ERROR_NOT_SUPPORTED
UNREACHABLE = frozenset({15, 16})  # NVML_ERROR_GPU_IS_LOST, RESET_REQUIRED: CUDA can't use it either


@dataclass(frozen=True)
class ProcessUse:
    """One process on a card and its bytes there; None where the driver does not tell (WDDM, WSL2)."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class MemoryUse:
    """Device memory in bytes: total = driver + used + free. None is what could not be read.

    `driver_bytes` is what the driver keeps for itself: told apart by memory info v2 only; without it the same
    bytes are part of `used_bytes`. `source` is `nvml`, `cuda` (mem_get_info in a child process) or empty.
    """

    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    driver_bytes: int | None = None
    source: str = ""


@dataclass(frozen=True)
class MigInstance:
    """A slice of a card in MIG mode; to CUDA a device of its own."""

    name: str
    uuid: str
    memory: MemoryUse
    processes: tuple[ProcessUse, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuReading:
    """One card as NVML sees it. `index` is NVML's, never a CUDA ordinal; None or empty: could not be read.

    `pci_bus_id` is `domain:bus:device.function` in hexadecimal; `reachable` is False for a card that is lost,
    needs a reset or may not be opened by this user. `notes` has one sentence for each thing not read.
    """

    index: int
    name: str
    uuid: str = ""
    pci_bus_id: str = ""
    memory: MemoryUse = MemoryUse()
    processes: tuple[ProcessUse, ...] = ()
    compute_capability: tuple[int, int] | None = None
    cores: int | None = None
    display_active: bool | None = None
    mig_enabled: bool = False
    mig_instances: tuple[MigInstance, ...] = ()
    reachable: bool = True
    notes: tuple[str, ...] = ()

    @property
    def hides_processes(self) -> bool:
        """Whether the driver lists processes but keeps their bytes to itself: the sign of WDDM and WSL2."""
        return any(use.used_bytes is None for use in self.processes)


@dataclass(frozen=True)
class MachineReading:
    """All cards, the driver, and what could not be read of the machine as a whole.

    `cuda_driver_version` is the newest CUDA the driver supports, such as `12.8`. `in_cuda_order` is True
    where the cards were read through CUDA alone: then they are those it shows, in its order.
    """

    gpus: tuple[GpuReading, ...]
    driver_version: str = ""
    cuda_driver_version: str = ""
    notes: tuple[str, ...] = ()
    in_cuda_order: bool = False


def read_nvml(source: Source | None = None) -> MachineReading:
    """Read every card through NVML, by default from the driver. Never raises; see the notes."""
    if source is not None:
        return _read_machine(source)
    driver = NvmlSource()
    try:
        return _read_machine(driver)
    finally:
        driver.close()


def pci_key(pci_bus_id: str) -> tuple[int, int, int] | None:
    """(domain, bus, device) of an address such as `00000000:01:00.0`, or None if it is not one."""
    parts = pci_bus_id.partition(".")[0].split(":")
    try:
        numbers = [int(part, 16) for part in parts]
    except ValueError:
        return None
    if len(numbers) == 2:
        numbers.insert(0, 0)
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _read_machine(source: Source) -> MachineReading:
    started = source.ask(SYSTEM, "init")
    if not started.ok:
        return MachineReading((), notes=(f"NVML can't be used: {started.why}.",))
    asked = _Asked(source, SYSTEM, "The machine")
    driver = asked.text("driver", "driver version")
    cuda = asked.numbers("cuda", "CUDA version of the driver", 1)
    count = asked.numbers("count", "number of cards", 1)
    gpus = tuple(_read_gpu(source, index) for index in range(count[0] if count else 0))
    version = f"{cuda[0] // 1000}.{cuda[0] % 1000 // 10}" if cuda else ""
    return MachineReading(gpus, driver, version, tuple(asked.notes))


def _read_gpu(source: Source, index: int) -> GpuReading:
    subject = f"gpu{index}"
    found = source.ask(subject, "handle")
    if not found.ok:
        note = f"GPU {index} can't be read: {found.why}."
        return GpuReading(index, f"GPU {index}", reachable=False, notes=(note,))
    asked = _Asked(source, subject, f"GPU {index}")
    name = asked.text("name", "name") or f"GPU {index}"
    reading = GpuReading(
        index,
        name,
        uuid=asked.text("uuid", "UUID"),
        pci_bus_id=asked.text("pci", "PCI address"),
        memory=_read_memory(asked),
        processes=_read_processes(asked),
        compute_capability=_pair(asked.numbers("capability", "compute capability", 2)),
        cores=_first(asked.numbers("cores", "number of cores", 1)),
        display_active=_flag(asked.numbers("display", "display state", 1)),
    )
    return _add_mig(reading, source, asked)


def _add_mig(reading: GpuReading, source: Source, asked: "_Asked") -> GpuReading:
    mode = asked.numbers("mig_mode", "MIG mode", 2, expected=(NOT_SUPPORTED, FUNCTION_NOT_FOUND))
    enabled = bool(mode and mode[0])
    slots = _first(asked.numbers("mig_slots", "number of MIG slots", 1)) if enabled else 0
    found = [_read_instance(source, f"gpu{reading.index}.mig{slot}") for slot in range(slots or 0)]
    return replace(
        reading,
        mig_enabled=enabled,
        mig_instances=tuple(instance for instance in found if instance),
        reachable=not asked.unreachable,
        notes=tuple(asked.notes),
    )


def _read_instance(source: Source, subject: str) -> MigInstance | None:
    if not source.ask(subject, "handle").ok:  # an empty slot
        return None
    asked = _Asked(source, subject, f"MIG instance {subject.removeprefix('gpu').replace('.mig', ':')}")
    name = asked.text("name", "name") or "MIG instance"
    uuid = asked.text("uuid", "UUID")
    return MigInstance(name, uuid, _read_memory(asked), _read_processes(asked), tuple(asked.notes))


def _read_memory(asked: "_Asked") -> MemoryUse:
    """Memory info v2 (drivers from 510 on) tells the driver's own part apart; else the first version."""
    v2 = asked.numbers("memory_v2", "", 4)
    if v2:
        total, driver, free, used = v2
        return MemoryUse(total, free, used, driver, "nvml")
    v1 = asked.numbers("memory", "memory", 3)
    return MemoryUse(v1[0], v1[1], v1[2], None, "nvml") if v1 else MemoryUse()


def _read_processes(asked: "_Asked") -> tuple[ProcessUse, ...]:
    """Compute and graphics processes; one that does both is listed once, with the larger number."""
    uses: dict[int, int | None] = {}
    for kind in ("compute", "graphics"):
        for item in asked.versioned(f"{kind}_processes", f"{kind} processes").split():
            pid, _, used = item.partition(":")
            known = uses.get(int(pid))
            told = None if used == NOT_AVAILABLE else int(used)
            uses[int(pid)] = max((n for n in (known, told) if n is not None), default=None)
    if any(used is None for used in uses.values()):
        asked.notes.append(f"{asked.label}: the driver does not tell the memory of single processes.")
    return tuple(ProcessUse(pid, used) for pid, used in sorted(uses.items()))


class _Asked:
    """Asks a source about one subject and keeps a sentence for each answer that did not come."""

    def __init__(self, source: Source, subject: str, label: str) -> None:
        self._source, self._subject, self.label = source, subject, label
        self.notes: list[str] = []
        self.unreachable = False

    def text(self, question: str, noun: str, expected: tuple[int, ...] = ()) -> str:
        """The answer's text, or empty and a note about `noun` (none without a noun or if expected)."""
        answer = self._source.ask(self._subject, question)
        if not answer.ok:
            self._keep(answer, noun, expected)
        return answer.text

    def numbers(self, question: str, noun: str, count: int, expected: tuple[int, ...] = ()) -> list[int]:
        """`count` integers, or none and a note."""
        fields = self.text(question, noun, expected).split()
        return [int(field) for field in fields] if len(fields) == count else []

    def versioned(self, question: str, noun: str) -> str:
        """The answer's text; a driver too old for `question` is asked its `_v2` form."""
        answer = self._source.ask(self._subject, question)
        if answer.code == FUNCTION_NOT_FOUND:
            return self.text(f"{question}_v2", noun)
        if not answer.ok:
            self._keep(answer, noun, ())
        return answer.text

    def _keep(self, answer: Answer, noun: str, expected: tuple[int, ...]) -> None:
        # A refusal (no permission to list processes, say) does not make a card unreachable.
        self.unreachable = self.unreachable or answer.code in UNREACHABLE
        if noun and answer.code not in expected:
            self.notes.append(f"{self.label}: {noun} could not be read: {answer.why}.")


def _pair(numbers: list[int]) -> tuple[int, int] | None:
    return (numbers[0], numbers[1]) if numbers else None


def _first(numbers: list[int]) -> int | None:
    return numbers[0] if numbers else None


def _flag(numbers: list[int]) -> bool | None:
    return bool(numbers[0]) if numbers else None
