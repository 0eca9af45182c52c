"""The questions put to NVML through pynvml, and their answers as plain text.

Owns every pynvml call the product makes, so that a capture can record all of them and a replay can answer all
of them. Must never interpret an answer (autotune.device.nvml does) and never let an NVML error escape: that
is an answer too. Creates no CUDA context: NVML needs none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

SYSTEM = "system"
FUNCTION_NOT_FOUND = 13  # NVML_ERROR_FUNCTION_NOT_FOUND: the driver is older than the question
UNKNOWN_ERROR = 999  # NVML_ERROR_UNKNOWN
LIBRARY_NOT_FOUND = 12  # NVML_ERROR_LIBRARY_NOT_FOUND
NOT_AVAILABLE = "-"  # a process's bytes where the driver keeps them to itself (WDDM)

ERROR_WORDS = {
    1: "NVML was not initialised",
    3: "not supported on this card",
    4: "no permission",
    6: "not found",
    9: "the NVIDIA driver is not loaded",
    10: "NVML timed out",
    LIBRARY_NOT_FOUND: "the NVML library (libnvidia-ml.so.1) was not found",
    FUNCTION_NOT_FOUND: "this driver is too old to tell",
    15: "the GPU is lost (fallen off the bus)",
    16: "the GPU needs a reset",
    17: "the operating system blocked the request",
    18: "driver and NVML library have different versions (a reboot after a driver update mends it)",
    UNKNOWN_ERROR: "unknown NVML error",
}


@dataclass(frozen=True)
class Answer:
    """One answer: `code` is the NVML return code (0 is success), `text` its value as fields with spaces."""

    code: int
    text: str = ""

    @property
    def ok(self) -> bool:
        """Whether NVML gave a value."""
        return self.code == 0

    @property
    def why(self) -> str:
        """Why there is no value, as words for a sentence."""
        return ERROR_WORDS.get(self.code, f"NVML error {self.code}")


class Source(Protocol):
    """Who answers: the driver, or something that listens in between."""

    def ask(self, subject: str, question: str) -> Answer:
        """The answer to `question` about `subject`: `system`, `gpu0`, `gpu0.mig1`."""


class NvmlSource:
    """The driver's answers. `system init` must be asked first; `close` ends the NVML session."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self._open = False

    def ask(self, subject: str, question: str) -> Answer:
        """See Source.ask. Raises nothing that comes from NVML; KeyError for a question that is not known."""
        call = _SYSTEM_QUESTIONS[question] if subject == SYSTEM else _CARD_QUESTIONS.get(question)
        if call is None:
            return self._find_handle(subject)
        answer = _guarded(lambda: call(self._handles.get(subject)))
        self._open = self._open or (question == "init" and answer.ok)
        return answer

    def close(self) -> None:
        """End the session with the driver, if one was begun."""
        if self._open:
            _guarded(_shut_down)
        self._open = False

    def _find_handle(self, subject: str) -> Answer:
        card, _, slot = subject.partition(".mig")

        def find() -> str:
            import pynvml

            if slot:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handles[card], int(slot))
            else:
                handle = pynvml.nvmlDeviceGetHandleByIndex(int(card.removeprefix("gpu")))
            self._handles[subject] = handle
            return ""

        return _guarded(find)


class Recorder:
    """A source that passes questions on and remembers every answer in the order asked."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.answers: list[tuple[str, str, Answer]] = []

    def ask(self, subject: str, question: str) -> Answer:
        """See Source.ask."""
        answer = self._source.ask(subject, question)
        self.answers.append((subject, question, answer))
        return answer


def _guarded(call: Callable[[], str]) -> Answer:
    try:
        import pynvml
    except ImportError:
        return Answer(LIBRARY_NOT_FOUND)
    try:
        return Answer(0, call())
    except pynvml.NVMLError as error:
        return Answer(int(error.value))
    except AttributeError:  # a pynvml older than the question
        return Answer(FUNCTION_NOT_FOUND)
    except UnicodeDecodeError:
        return Answer(UNKNOWN_ERROR)


def _init(_: Any) -> str:
    import pynvml

    pynvml.nvmlInit()
    return ""


def _shut_down() -> str:
    import pynvml

    pynvml.nvmlShutdown()
    return ""


def _call(function: str, *arguments: Any) -> Callable[[Any], str]:
    """Ask `function` of pynvml about a handle; a list or tuple becomes fields with spaces."""

    def ask(handle: Any) -> str:
        import pynvml

        value = getattr(pynvml, function)(handle, *arguments)
        return " ".join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)

    return ask


def _system_call(function: str) -> Callable[[Any], str]:
    def ask(_: Any) -> str:
        import pynvml

        return str(getattr(pynvml, function)())

    return ask


def _pci(handle: Any) -> str:
    import pynvml

    bus_id = pynvml.nvmlDeviceGetPciInfo_v3(handle).busId
    return bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)


def _memory(handle: Any) -> str:
    import pynvml

    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return f"{memory.total} {memory.free} {memory.used}"


def _memory_v2(handle: Any) -> str:
    import pynvml

    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return f"{memory.total} {memory.reserved} {memory.free} {memory.used}"


def _processes(function: str) -> Callable[[Any], str]:
    def ask(handle: Any) -> str:
        import pynvml

        found = getattr(pynvml, function)(handle)
        return " ".join(f"{item.pid}:{_bytes_or_dash(item.usedGpuMemory)}" for item in found)

    return ask


def _bytes_or_dash(used: int | None) -> str:
    return NOT_AVAILABLE if used is None else str(used)


_SYSTEM_QUESTIONS: dict[str, Callable[[Any], str]] = {
    "init": _init,
    "driver": _system_call("nvmlSystemGetDriverVersion"),
    "cuda": _system_call("nvmlSystemGetCudaDriverVersion_v2"),
    "count": _system_call("nvmlDeviceGetCount"),
}
_CARD_QUESTIONS: dict[str, Callable[[Any], str] | None] = {
    "handle": None,  # found by index, not asked about a handle
    "name": _call("nvmlDeviceGetName"),
    "uuid": _call("nvmlDeviceGetUUID"),
    "pci": _pci,
    "memory_v2": _memory_v2,
    "memory": _memory,
    "capability": _call("nvmlDeviceGetCudaComputeCapability"),
    "cores": _call("nvmlDeviceGetNumGpuCores"),
    "display": _call("nvmlDeviceGetDisplayActive"),
    "mig_mode": _call("nvmlDeviceGetMigMode"),
    "mig_slots": _call("nvmlDeviceGetMaxMigDeviceCount"),
    "compute_processes": _processes("nvmlDeviceGetComputeRunningProcesses_v3"),
    "compute_processes_v2": _processes("nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics_processes": _processes("nvmlDeviceGetGraphicsRunningProcesses_v3"),
    "graphics_processes_v2": _processes("nvmlDeviceGetGraphicsRunningProcesses_v2"),
}
