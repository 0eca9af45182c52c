"""Recognising why something failed: device memory or one of the things that look like it.

Owns the judgement over exceptions and over the last words of a dead process. The exception's class counts
first, then the kind of its message, anchored so that a user's own text never counts; a failure of a CUDA
library that may or may not be memory counts as memory only with a witness. Must never import torch (classes
are known by their qualified names, so the controller can judge too) and must never decide what to do about
it.
"""

import errno
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from autotune.errors import OutOfDeviceMemory
from autotune.units import GIB, KIB, MIB


class Kind(StrEnum):
    """What ran out, or that nothing did."""

    DEVICE_MEMORY = "device memory"
    HOST_MEMORY = "host memory"
    DISK = "disk"
    SHARED_MEMORY = "shared memory"
    SIZE_LIMIT = "size limit"  # a kernel can't take tensors this large: smaller ones help, memory does not
    POISONED_CONTEXT = "poisoned context"  # every later CUDA call of this process fails too
    KERNEL_RESOURCES = "kernel resource limit"
    OTHER = "other"


@dataclass(frozen=True)
class Finding:
    """What an exception means. `culprit` is the exception of the chain that says so (the whole chain's head
    for OTHER); `reusable` is whether the process can go on after it."""

    kind: Kind
    culprit: BaseException
    reusable: bool = True


def recognise(error: BaseException, memory_was_short: bool = False) -> Kind:
    """The kind of `error`. See `examine`."""
    return examine(error, memory_was_short).kind


def examine(error: BaseException, memory_was_short: bool = False) -> Finding:
    """Judge `error` and everything it was raised from.

    `memory_was_short` is the witness: the allocator's counters moved or the budget was nearly used up. With
    it the ambiguous failures of cuBLAS, cuDNN and their kin count as device memory. A poisoned context
    anywhere in the chain wins, because the process must go; else the outermost link that means something.
    """
    findings = [_judge(link, memory_was_short) for link in chain(error)]
    telling = [finding for finding in findings if finding.kind is not Kind.OTHER]
    poisoned = [finding for finding in telling if finding.kind is Kind.POISONED_CONTEXT]
    reusable = all(finding.reusable for finding in findings)
    first = (poisoned or telling or findings)[0]
    return Finding(first.kind, first.culprit if telling else error, reusable)


def recognise_exit(returncode: int, stderr_tail: str) -> Kind:
    """The kind of a process death that raised nothing: its exit status and last lines on stderr.

    bitsandbytes prints a C macro's line and calls exit(1); a kill by the host's OOM killer shows as SIGKILL
    only (see `autotune.posix.count_oom_kills` for the witness) and is not judged here.
    """
    if returncode > 0 and _EXIT_LINE.search(stderr_tail):
        return Kind.DEVICE_MEMORY
    return Kind.OTHER


def chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, then all it was raised from or while handling, and the members of groups; each once."""
    seen: set[int] = set()
    pending = [error]
    while pending:
        link = pending.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        members = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        pending += [cause for cause in (*members, link.__cause__, link.__context__) if cause is not None]


def forget(error: BaseException) -> None:
    """Let go of all that `error` and its causes hold: local variables of dead frames, tracebacks, the chain."""
    for link in list(chain(error)):
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = link.__cause__ = link.__context__ = None


def one_line(error: BaseException) -> str:
    """`Class: message` on one line, without the help text that PyTorch appends."""
    text = str(error).split("\nSearch for `cuda")[0].split("\nCUDA kernel errors might be asynchronously")[0]
    name = type(error).__qualname__
    return f"{name}: {' '.join(text.split())}" if text.strip() else name


def shorten(text: str) -> str:
    """An out-of-memory text up to what is free; the rest is bookkeeping and advice on PyTorch's settings."""
    told = text.split(" Of the allocated")[0].split(" If reserved but unallocated")[0]
    return told.rstrip(" ;.") + "."


def root_cause(error: BaseException) -> str:
    """One line: the error that reached us and, where it hides another, the one it began with."""
    root = error
    seen = {id(root)}
    while (earlier := _raised_from(root)) is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        root = earlier
    place = _place(root)
    if root is error:
        return one_line(error) + place
    return f"{one_line(error)} (root cause: {one_line(root)}{place})"


def requested_bytes(text: str) -> int | None:
    """The bytes an out-of-memory text says were asked for, or None. Never more than what was asked: PyTorch
    rounds to two decimals, so half of the last digit is taken off."""
    match = _REQUEST.search(text)
    if not match:
        return None
    number, unit = float(match.group(1)), match.group(2)
    if unit == "bytes":
        return int(number)
    return int((number - 0.005) * {"KiB": KIB, "MiB": MIB, "GiB": GIB}[unit])


_REQUEST = re.compile(r"Tried to allocate ([0-9]+(?:\.[0-9]+)?) (bytes|KiB|MiB|GiB)")
_EXIT_LINE = re.compile(r"^Error out of memory at line \d+ in file \S+\s*$", re.MULTILINE)

# Qualified class names whose mere presence decides.
_DEVICE_CLASSES = {
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "torch._C.OutOfMemoryError",
    "cupy.cuda.memory.OutOfMemoryError",
}
_KERNEL_CLASSES = {"triton.runtime.errors.OutOfResources", "triton.runtime.autotuner.OutOfResources"}
_HOST_CLASSES = {"ray.exceptions.OutOfMemoryError"}

# A size overflow that the allocators report as memory. A bug, and no plan that is only smaller mends it.
_OVERFLOW = "Tried to allocate more than 1EB memory"

# Message kinds of runtime errors. `start` matches at the beginning of the message; `line` at the beginning
# of any of its lines, for texts that wrappers (compilers, data loaders, collectives) put below their own.
_OOM_TEXT = r"(?:CUDA|HIP|XPU) out of memory\. "
_POISON = (
    r"(?:device-side assert triggered|an illegal memory access was encountered|unspecified launch failure"
    r"|misaligned address|an illegal instruction was encountered|the launch timed out and was terminated"
    r"|invalid program counter|hardware stack error|uncorrectable ECC error encountered)"
)
_CPU_ALLOCATOR = (
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate \d+ bytes"
)
_LOADER_WORKER = r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\)"


@dataclass(frozen=True)
class _Rule:
    kind: Kind
    pattern: re.Pattern[str]
    ambiguous: bool = False  # counts only with a witness of short memory
    reusable: bool = True


def _start(kind: Kind, pattern: str, **flags: bool) -> _Rule:
    return _Rule(kind, re.compile(rf"\A\s*{pattern}"), **flags)


def _line(kind: Kind, pattern: str, **flags: bool) -> _Rule:
    return _Rule(kind, re.compile(rf"^\s*{pattern}", re.MULTILINE), **flags)


_LIBRARY = r"(?:CUDA error: |cuDNN error: |cusolver error: |cusparse error: )?"
_SUSPECT = {"ambiguous": True, "reusable": False}

_RULES = (
    _line(Kind.POISONED_CONTEXT, rf"(?:CUDA|HIP) error: {_POISON}", reusable=False),
    _line(Kind.POISONED_CONTEXT, rf"Cuda failure (?:\d+ )?'{_POISON}'", reusable=False),
    # NCCL before plain CUDA texts: its communicator is dead afterwards.
    _line(Kind.DEVICE_MEMORY, r"Cuda failure (?:\d+ )?'out of memory'", reusable=False),
    _line(Kind.DEVICE_MEMORY, r"Failed to CUDA calloc async \d+ bytes", reusable=False),
    _start(Kind.DEVICE_MEMORY, _OOM_TEXT),
    _line(Kind.DEVICE_MEMORY, rf"(?:[\w.]+\.)?(?:OutOfMemoryError|RuntimeError): {_OOM_TEXT}"),
    _line(Kind.DEVICE_MEMORY, r"(?:[\w.]+: )?(?:CUDA|HIP) error: out of memory\s*$"),
    _start(Kind.DEVICE_MEMORY, r"hipErrorOutOfMemory\b"),
    _start(Kind.DEVICE_MEMORY, r"MPS backend out of memory \("),
    _start(Kind.DEVICE_MEMORY, r"Invalid buffer size: [0-9.]+ [KMGT]i?B"),
    _line(Kind.DEVICE_MEMORY, rf"{_LIBRARY}CU(?:BLAS|SOLVER|SPARSE)_STATUS_ALLOC_FAILED\b"),
    _line(Kind.HOST_MEMORY, rf"{_LIBRARY}CUDNN_STATUS_\w*HOST_ALLOC\w*_FAILED\b"),
    _line(Kind.DEVICE_MEMORY, rf"{_LIBRARY}CUDNN_STATUS_\w*ALLOC\w*FAILED\b"),
    # The report of an OOM fails where NVML may not be asked: MIG, Jetson, containers.
    _start(Kind.DEVICE_MEMORY, r"NVML_SUCCESS == .{1,200} INTERNAL ASSERT FAILED at \S*CUDACachingAlloc"),
    _line(Kind.DEVICE_MEMORY, r"RESOURCE_EXHAUSTED: Out of memory "),
    _start(Kind.DEVICE_MEMORY, r"OOM when allocating tensor with shape\["),
    _start(Kind.DEVICE_MEMORY, r"(?:\[ONNXRuntime.*)?Failed to allocate memory for requested buffer of size \d"),
    _line(Kind.KERNEL_RESOURCES, r"(?:[\w.]+: )?out of resource: "),
    _start(Kind.KERNEL_RESOURCES, r"CUDA error: too many resources requested for launch"),
    _start(Kind.SIZE_LIMIT, r"(?:CUDA|HIP) error: invalid configuration argument"),
    _start(Kind.SIZE_LIMIT, r"[^\n]{0,200}\btensors with (?:less|more) than INT_MAX elements"),
    _line(Kind.HOST_MEMORY, rf"(?:\[enforce fail at \S*alloc_cpu\.cpp:\d+\].*)?{_CPU_ALLOCATOR}"),
    _start(Kind.HOST_MEMORY, rf"{_LOADER_WORKER} (?:is killed by signal: Killed|.*exit code 137)"),
    _start(Kind.HOST_MEMORY, r"[^\n]{0,400}\(os error 1455\)\s*\Z"),
    _line(Kind.SHARED_MEMORY, rf"{_LOADER_WORKER} is killed by signal: Bus error"),
    _line(Kind.SHARED_MEMORY, r"(?:ERROR: )?Unexpected bus error encountered in worker\."),
    _start(Kind.SHARED_MEMORY, r"unable to \w+(?: to)? (?:a )?(?:shared memory \w+|file) <?/(?:dev/shm|torch_)"),
    _start(Kind.DISK, r"\[enforce fail at \S*inline_container\.cc:\d+\].*(?:file write failed|unexpected pos)"),
    _start(Kind.DISK, r"Error while serializing: .*(?:os error 28|code: 28\b|No space left on device)"),
    _line(Kind.DEVICE_MEMORY, rf"{_LIBRARY}CUBLAS_STATUS_(?:NOT_INIT|INTERNAL_E|EXECUTION_F)\w+", **_SUSPECT),
    _line(Kind.DEVICE_MEMORY, rf"{_LIBRARY}CUDNN_STATUS_(?:NOT_SUPP|INTERNAL|EXECUTION|MAPPING)", **_SUSPECT),
    _line(Kind.DEVICE_MEMORY, rf"{_LIBRARY}CUSOLVER_STATUS_(?:INTERNAL_ERROR|NOT_INITIALIZED)\b", **_SUSPECT),
    _line(Kind.DEVICE_MEMORY, rf"{_LIBRARY}CUSPARSE_STATUS_INSUFFICIENT_RESOURCES\b", **_SUSPECT),
    _start(Kind.DEVICE_MEMORY, r"(?:FIND|GET) was unable to find an engine to execute this", ambiguous=True),
)  # fmt: skip

# Errors of other classes that carry one of the message kinds above without being RuntimeErrors.
_CLASSES_WITH_RUNTIME_TEXT = {
    "safetensors_rust.SafetensorError",
    "safetensors.SafetensorError",
    "jaxlib.xla_extension.XlaRuntimeError",
    "jaxlib._jax.XlaRuntimeError",
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError",
}
_NO_CACHE_BLOCKS = re.compile(r"\ANo available memory for the cache blocks\.")  # vLLM, a ValueError
_SHARED_MEMORY_FOLDER = PurePath("/dev/shm")
_PAGING_FILE_TOO_SMALL = 1455  # Windows, ERROR_COMMITMENT_LIMIT


def _judge(error: BaseException, memory_was_short: bool) -> Finding:
    by_class = _kind_by_class(error)
    if by_class is not None:
        return Finding(by_class, error)
    if type(error) is ValueError and _NO_CACHE_BLOCKS.match(str(error)):
        return Finding(Kind.DEVICE_MEMORY, error, reusable=False)
    if not _speaks_for_the_runtime(error):
        return Finding(Kind.OTHER, error)
    rule = next((rule for rule in _RULES if rule.pattern.search(str(error))), None)
    if rule is None or _OVERFLOW in str(error):
        return Finding(Kind.OTHER, error)
    kind = Kind.OTHER if rule.ambiguous and not memory_was_short else rule.kind
    return Finding(kind, error, rule.reusable)


def _kind_by_class(error: BaseException) -> Kind | None:
    names = _class_names(error)
    if isinstance(error, OutOfDeviceMemory):
        return Kind.DEVICE_MEMORY
    if names & _DEVICE_CLASSES:
        return Kind.OTHER if _OVERFLOW in str(error) else Kind.DEVICE_MEMORY
    if names & _KERNEL_CLASSES:
        return Kind.KERNEL_RESOURCES
    if isinstance(error, MemoryError) or names & _HOST_CLASSES:
        return Kind.HOST_MEMORY
    return _kind_of_os_error(error) if isinstance(error, OSError) else None


def _kind_of_os_error(error: OSError) -> Kind | None:
    if error.errno == errno.ENOMEM or getattr(error, "winerror", None) == _PAGING_FILE_TOO_SMALL:
        return Kind.HOST_MEMORY
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        name = error.filename if isinstance(error.filename, str) else ""
        return Kind.SHARED_MEMORY if _SHARED_MEMORY_FOLDER in PurePath(name).parents else Kind.DISK
    return None


def _speaks_for_the_runtime(error: BaseException) -> bool:
    """Whether the message is a library's own: a ValueError or KeyError may quote the user instead."""
    names = _class_names(error)
    if names & _CLASSES_WITH_RUNTIME_TEXT or any(name.startswith("onnxruntime.") for name in names):
        return True
    return isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError | RecursionError)


def _class_names(error: BaseException) -> set[str]:
    return {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}


def _raised_from(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return None if error.__suppress_context__ else error.__context__


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
