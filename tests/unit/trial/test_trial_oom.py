"""What ran out is recognised by kind: the shapes people met, and the look-alikes."""
# ruff: noqa: E501 - messages are quoted whole

import errno

import pytest
import torch

from autotune.errors import OutOfDeviceMemory
from autotune.trial.oom import (
    Kind,
    chain,
    examine,
    forget,
    one_line,
    recognise,
    recognise_exit,
    requested_bytes,
    root_cause,
)

MODERN = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 5.93 GiB of which 14.62 MiB "
    "is free. Process 4242 has 5.90 GiB memory in use. 5.80 GiB allowed; Of the allocated memory 5.40 GiB is "
    "allocated by PyTorch, and 213.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD = (
    "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 8.00 GiB total capacity; 5.00 GiB already allocated; "
    "1.10 GiB free; 5.70 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation."
)
ASYNCHRONOUS = (
    "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/ for more "
    "information.\nCUDA kernel errors might be asynchronously reported at some other API call."
)
ENGINE = "FIND was unable to find an engine to execute this computation"
NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function "
    "failed.\nLast error:\nCuda failure 2 'out of memory'"
)
NVML = (
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1154, please report'
)
CPU_LINUX = (
    "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"
)
CPU_WINDOWS = "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes."
SHARED = (
    "DataLoader worker (pid 99) is killed by signal: Bus error. It is possible that dataloader's workers are out "
    "of shared memory. Please try to raise your shared memory limit."
)
TRITON = "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes may help."
CAPTION = "caption 'CUDA out of memory. Tried to allocate' has no picture"


def named(module: str, name: str, text: str, base: type[Exception] = Exception) -> Exception:
    """An exception of a class that is not installed here, known by its qualified name."""
    return type(name, (base,), {"__module__": module, "__qualname__": name})(text)


def raised_from(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


DEVICE_MEMORY = [
    torch.OutOfMemoryError(MODERN),
    RuntimeError(OLD),
    RuntimeError(MODERN),
    named("torch", "AcceleratorError", ASYNCHRONOUS, RuntimeError),
    RuntimeError(ASYNCHRONOUS),
    torch.OutOfMemoryError(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 20971520"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    RuntimeError(NVML),
    RuntimeError("NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
                 '"../c10/cuda/CUDACachingAllocator.cpp":963, please report a bug to PyTorch.'),
    RuntimeError(NCCL),
    RuntimeError("Failed to CUDA calloc async 608 bytes"),
    raised_from(ValueError("the batch can't be built"), torch.OutOfMemoryError(MODERN)),
    torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("HIP error: out of memory\nHIP kernel errors might be asynchronously reported"),
    RuntimeError("hipErrorOutOfMemory"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.0 GB, other allocations: 1 MB, max allowed: 9.07 GB)."),
    RuntimeError("Invalid buffer size: 24.00 GB"),
    named("onnxruntime.capi.onnxruntime_pybind11_state", "RuntimeException",
          "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9000"),
    named("jaxlib.xla_extension", "XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"),
    named("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", "OOM when allocating tensor with shape[4,4]"),
    named("cupy.cuda.memory", "OutOfMemoryError", "Out of memory allocating 4,096 bytes", MemoryError),
    ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
    RuntimeError("backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ExceptionGroup("ranks", [KeyError("x"), torch.OutOfMemoryError(MODERN)]),
    OutOfDeviceMemory("training ran out of device memory."),
]  # fmt: skip

AMBIGUOUS = [
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx(...)`",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUBLAS",
    "cuDNN error: CUDNN_STATUS_MAPPING_ERROR",
    ENGINE,
    "GET was unable to find an engine to execute this computation",
    "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
    "CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseSpMM(...)`",
]

OTHER_KINDS = [
    (Kind.HOST_MEMORY, MemoryError()),
    (Kind.HOST_MEMORY, named("numpy._core._exceptions", "_ArrayMemoryError", "Unable to allocate 8. GiB", MemoryError)),
    (Kind.HOST_MEMORY, RuntimeError(CPU_LINUX)),
    (Kind.HOST_MEMORY, RuntimeError(CPU_WINDOWS)),
    (Kind.HOST_MEMORY, OSError(errno.ENOMEM, "Cannot allocate memory")),
    (Kind.HOST_MEMORY, named("safetensors_rust", "SafetensorError", "The paging file is too small for this operation to complete. (os error 1455)")),
    (Kind.HOST_MEMORY, named("ray.exceptions", "OutOfMemoryError", "Task was killed due to the node running low on memory")),
    (Kind.HOST_MEMORY, RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")),
    (Kind.HOST_MEMORY, RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED")),
    (Kind.SHARED_MEMORY, RuntimeError(SHARED)),
    (Kind.SHARED_MEMORY, RuntimeError("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).")),
    (Kind.SHARED_MEMORY, OSError(errno.ENOSPC, "No space left on device", "/dev/shm/torch_123")),
    (Kind.DISK, OSError(errno.ENOSPC, "No space left on device", "/data/lora.safetensors")),
    (Kind.DISK, OSError(errno.EDQUOT, "Disk quota exceeded")),
    (Kind.DISK, named("safetensors_rust", "SafetensorError", "Error while serializing: I/O error: No space left on device (os error 28)")),
    (Kind.DISK, RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 4096 vs 3968")),
    (Kind.KERNEL_RESOURCES, named("triton.runtime.errors", "OutOfResources", TRITON)),
    (Kind.KERNEL_RESOURCES, RuntimeError(TRITON)),
    (Kind.KERNEL_RESOURCES, RuntimeError("CUDA error: too many resources requested for launch")),
    (Kind.SIZE_LIMIT, RuntimeError("CUDA error: invalid configuration argument\nCUDA kernel errors might be")),
    (Kind.SIZE_LIMIT, RuntimeError("upsample_nearest2d only supports output tensors with less than INT_MAX elements")),
]  # fmt: skip

NOT_MEMORY = [
    ValueError(CAPTION),
    KeyError("out of memory"),
    ValueError(MODERN),
    RuntimeError(CAPTION),
    RuntimeError("out of memory"),
    OSError(errno.ENOENT, "No such file", "/photos/CUDA out of memory. Tried.png"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory."),
    RuntimeError("CUDA out of memory. Tried to allocate more than 1EB memory."),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)"),
    RuntimeError("Watchdog caught collective operation timeout: WorkNCCL(ALLREDUCE) ran for 600054 milliseconds"),
    SystemExit(1),
]

POISONED = [
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: misaligned address",
]


@pytest.mark.parametrize("error", DEVICE_MEMORY, ids=lambda e: f"{type(e).__name__}: {str(e)[:40]}")
def test_every_known_shape_of_device_memory_is_recognised(error: BaseException) -> None:
    assert recognise(error) is Kind.DEVICE_MEMORY


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_an_ambiguous_library_failure_counts_as_memory_only_with_a_witness(text: str) -> None:
    assert recognise(RuntimeError(text)) is Kind.OTHER
    assert recognise(RuntimeError(text), memory_was_short=True) is Kind.DEVICE_MEMORY


@pytest.mark.parametrize(("kind", "error"), OTHER_KINDS, ids=lambda v: str(v)[:40])
def test_what_else_ran_out_keeps_its_own_kind(kind: Kind, error: BaseException) -> None:
    assert recognise(error, memory_was_short=True) is kind


@pytest.mark.parametrize("error", NOT_MEMORY, ids=lambda e: f"{type(e).__name__}: {str(e)[:40]}")
def test_look_alikes_and_users_own_words_are_not_memory(error: BaseException) -> None:
    assert recognise(error, memory_was_short=True) is Kind.OTHER


@pytest.mark.parametrize("text", POISONED)
def test_a_poisoned_context_ends_the_process_even_if_an_oom_came_first(text: str) -> None:
    finding = examine(raised_from(RuntimeError(text), torch.OutOfMemoryError(MODERN)))
    assert finding.kind is Kind.POISONED_CONTEXT
    assert not finding.reusable


def test_a_dead_communicator_is_memory_but_its_process_can_not_go_on() -> None:
    finding = examine(RuntimeError(NCCL))
    assert (finding.kind, finding.reusable) == (Kind.DEVICE_MEMORY, False)


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = RuntimeError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert list(chain(first)) == [first, second]
    assert root_cause(first) == "RuntimeError: a (root cause: ValueError: b)"


def test_the_root_cause_is_one_line_with_both_ends_and_the_place() -> None:
    try:
        try:
            {}["latents"]
        except KeyError as error:
            raise RuntimeError("the batch\ncan't be built") from error
    except RuntimeError as error:
        line = root_cause(error)
    assert line.startswith(
        "RuntimeError: the batch can't be built (root cause: KeyError: 'latents' at test_trial_oom.py:"
    )
    assert "\n" not in line


def test_help_texts_of_pytorch_are_left_out_of_the_line() -> None:
    assert one_line(RuntimeError(ASYNCHRONOUS)) == "RuntimeError: CUDA error: out of memory"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("Tried to allocate 512 bytes. ", 512),
        ("Tried to allocate 20.00 MiB. GPU", int(19.995 * (1 << 20))),
        ("Tried to allocate 1.50 GiB (GPU 0;", int(1.495 * (1 << 30))),
        ("Tried to allocate more than 1EB memory.", None),
        ("hipErrorOutOfMemory", None),
    ],
)
def test_the_request_read_from_the_text_is_never_more_than_what_was_asked(text: str, size: int | None) -> None:
    assert requested_bytes(text) == size


def test_a_c_macro_that_ends_the_process_is_recognised_by_exit_status_and_line() -> None:
    line = "Error out of memory at line 88 in file /src/csrc/ops.cu"
    assert recognise_exit(1, f"step 3\n{line}\n") is Kind.DEVICE_MEMORY
    assert recognise_exit(0, line) is Kind.OTHER
    assert recognise_exit(1, f"caption: {line}") is Kind.OTHER
    assert recognise_exit(-11, "Segmentation fault") is Kind.OTHER


def test_forgetting_an_error_lets_go_of_what_its_frames_held() -> None:
    class Held:
        pass

    import weakref

    kept: list[weakref.ref[Held]] = []

    def fail() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        raise RuntimeError("x")

    try:
        fail()
    except RuntimeError as error:
        outer = raised_from(ValueError("y"), error)
    assert kept[0]() is not None
    forget(outer)
    assert kept[0]() is None
