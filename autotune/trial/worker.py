"""The worker process: `python -m autotune.trial.worker`. It owns the device, so that nothing else has to.

Speaks JSON lines on what were its stdin and stdout; both are moved away at once, so that a library's prints
or reads never touch the protocol. Ends with its controller, however that ends. Must never decide what to
try, and must never write to a user's files by itself.
"""

import contextlib
import gc
import os
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from autotune import posix
from autotune.device.session import DeviceSession, DeviceSpec, Evidence, open_session
from autotune.errors import AutotuneError, ConfigError, WorkerError
from autotune.ladder.plan import Plan
from autotune.trial import oom
from autotune.trial.protocol import Failure, Op, Ready, Recording, Say, decode, encode
from autotune.trial.trial import Bench, run_trial, settle
from autotune.trial.workload import Job, Trainable, Workload, load_factory
from autotune.units import parse_size

if TYPE_CHECKING:
    from autotune.device.null.session import NullSession

HEARTBEAT_S = 1.0
EXIT_PARENT_GONE = 17
_ENOUGH_BYTES = 1 << 40  # where the host does not tell how much it has

# Packages whose version changes what a plan needs.
PACKAGES = (
    "torch",
    "diffusers",
    "transformers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "safetensors",
    "xformers",
)


def main(arguments: list[str]) -> int:
    """Serve requests until `close` or the end of stdin. Arguments: the parent's pid, or nothing."""
    channel = Channel.take_over_stdio()
    sys.meta_path.append(_CurrentFolder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    if hasattr(signal, "SIGUSR1"):
        posix.dump_stacks_when_asked()
    if arguments:
        posix.die_with_parent(int(arguments[0]))
    channel.start()
    Server(channel).serve()
    return 0


class Channel:
    """The worker's end of the pipe. `send` may be called from any thread."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._lock = threading.Lock()
        self.requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    @classmethod
    def take_over_stdio(cls) -> "Channel":
        """Move stdin and stdout to private descriptors; then point stdin at nothing and stdout at stderr."""
        read_fd, write_fd = os.dup(0), os.dup(1)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        if hasattr(os, "register_at_fork"):  # a forked data loader must not keep the pipe open
            os.register_at_fork(after_in_child=lambda: _close_quietly(read_fd, write_fd))
        return cls(read_fd, write_fd)

    def start(self) -> None:
        """Begin to read requests and to send heartbeats, each in its own thread."""
        threading.Thread(target=self._read_until_parent_is_gone, name="requests", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def send(self, kind: Say, **values: Any) -> None:
        """Send one message. If nobody reads any more, this process ends."""
        line = encode({"kind": kind.value, **values})
        try:
            with self._lock:
                _write_all(self._write_fd, line)
        except OSError:
            _end_with_children()

    def _read_until_parent_is_gone(self) -> None:
        with os.fdopen(self._read_fd, "rb") as pipe:
            for line in pipe:
                self.requests.put(line)
        _end_with_children()

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_S):
            self.send(Say.HEARTBEAT)


class _CurrentFolder(MetaPathFinder):
    """Modules in the current folder, looked for last: a stray torch.py or trainer/ there must not shadow ours, not
    even where ours are installed in development mode, which has a finder of its own after `sys.path`."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [""]) if path is None else None


class Server:
    """Answers requests, one at a time, on the main thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._workload: Workload | None = None
        self._bench: Bench | None = None
        self._operations: dict[str, Callable[[Mapping[str, Any]], tuple[Say, Mapping[str, Any]]]] = {
            Op.OPEN: self._open,
            Op.TRIAL: self._trial,
            Op.RUN: self._run,
            Op.CLOSE: lambda request: (Say.CLOSED, {}),
        }

    def serve(self) -> None:
        """Answer until asked to close."""
        while self._respond(self._channel.requests.get()):
            pass

    def _respond(self, line: bytes) -> bool:
        """Answer one request, with an error if need be; whether to go on."""
        request_id: Any = None
        try:
            request = decode(line)
            request_id = request.get("id")
            kind, body = self._answer(request)
            self._channel.send(kind, id=request_id, body=body)
            return kind is not Say.CLOSED
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            failure = describe_failure(error)
            oom.forget(error)
        if self._bench is not None:  # a run that failed must not cost what comes next
            settle(self._bench.device, self._bench.baseline_bytes)
        self._channel.send(Say.ERROR, id=request_id, body=failure.to_json())
        return True

    def _answer(self, request: Mapping[str, Any]) -> tuple[Say, Mapping[str, Any]]:
        operation = self._operations.get(str(request.get("op")))
        if operation is None:
            known = ", ".join(Op)
            raise WorkerError(f"unknown operation {request.get('op')!r}; this worker knows {known}.")
        return operation(request)

    def _open(self, request: Mapping[str, Any]) -> tuple[Say, Mapping[str, Any]]:
        if self._bench is not None:
            raise WorkerError("the worker is open already.", "Start another worker for another workload.")
        with _collected_warnings() as noticed:
            workload, job = self._make_workload(request)
            self._progress({"phase": "device"})
            spec = DeviceSpec.parse(request["device"])
            device = open_session(spec)
            if request.get("budget_bytes") is not None:
                device.limit(request["budget_bytes"])
            baseline = settle(device, 0).leftover_bytes
        gc.freeze()  # what is there now stays: each trial's clean-up need not look through it again
        self._workload = workload
        self._bench = Bench(device, baseline, self._progress, request.get("budget_bytes"))
        facts = device_facts(device, spec)
        return Say.READY, Ready(job, facts, versions(), tuple(noticed)).to_json()

    def _make_workload(self, request: Mapping[str, Any]) -> tuple[Workload, Job]:
        self._progress({"phase": "import"})
        factory = load_factory(request["workload"])
        self._progress({"phase": "create"})
        workload = factory(request["config"])
        return workload, workload.job()

    def _trial(self, request: Mapping[str, Any]) -> tuple[Say, Mapping[str, Any]]:
        workload, bench = self._opened()
        if request.get("lift_budget"):
            bench = self._without_budget(bench)
        recording = Recording.from_json(request.get("record"))
        plan, to_the_end = Plan.from_json(request["plan"]), bool(request.get("to_the_end", True))
        with _within(bench, request.get("room_bytes")) as bench:
            report = run_trial(workload, plan, bench, request["steps"], recording, to_the_end=to_the_end)
        if report.traceback:
            print(report.traceback, file=sys.stderr, flush=True)
        return Say.OUTCOME, report.to_json()

    def _run(self, request: Mapping[str, Any]) -> tuple[Say, Mapping[str, Any]]:
        workload, bench = self._opened()
        if not isinstance(workload, Trainable):
            raise ConfigError(
                f"workload {type(workload).__qualname__} can be tried but not trained: it has no `train`."
            )
        plan = Plan.from_json(request["plan"])
        summary = workload.train(plan, bench.device, self._report)
        return Say.SUMMARY, dict(summary)

    def _without_budget(self, bench: Bench) -> Bench:
        """A virtual GPU as large as the host's memory allows, beside the one in use."""
        if bench.device.evidence is not Evidence.SIMULATED:
            raise WorkerError(f"the budget of {bench.device.name} can't be lifted: its memory is real.")
        size_bytes = posix.read_available_bytes() or _ENOUGH_BYTES
        device = open_session(DeviceSpec("virtual", str(size_bytes)))
        return Bench(device, settle(device, 0).leftover_bytes, self._progress, size_bytes)

    def _opened(self) -> tuple[Workload, Bench]:
        if self._workload is None or self._bench is None:
            raise WorkerError("no workload is open in this worker.", "Send `open` first.")
        if self._bench.budget_bytes is not None:  # what the context takes may have grown: cap anew
            self._bench.device.limit(self._bench.budget_bytes)
        return self._workload, self._bench

    def _progress(self, event: Mapping[str, Any]) -> None:
        self._channel.send(Say.PROGRESS, body=dict(event))

    def _report(self, event: Mapping[str, Any]) -> None:
        self._channel.send(Say.EVENT, body=dict(event))


def describe_failure(error: BaseException) -> Failure:
    """The record of `error` for the controller: an error for users as it is, anything else by what ran out."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, AutotuneError):
        return Failure.of_error(error, trace)
    finding = oom.examine(error)
    is_memory = finding.kind is oom.Kind.DEVICE_MEMORY
    fact = oom.shorten(oom.one_line(finding.culprit)) if is_memory else oom.root_cause(error)
    return Failure.of_kind(finding.kind, fact, trace)


def device_facts(device: DeviceSession, spec: DeviceSpec) -> dict[str, Any]:
    """What the process that holds the device knows of it; what only the driver knows is the controller's part."""
    import torch

    facts: dict[str, Any] = {
        "name": device.name,
        "evidence": device.evidence.value,
        "torch_device": str(device.torch_device),
        "cuda_build": torch.version.cuda,
    }
    if spec.kind == "virtual":
        facts["total_bytes"] = parse_size(spec.argument)
    if device.torch_device.type == "cuda":
        properties = torch.cuda.get_device_properties(device.torch_device)
        facts["compute_capability"] = f"{properties.major}.{properties.minor}"
        facts["total_bytes"] = properties.total_memory
        facts["cuda_driver"] = _cuda_driver_version()
        facts["context_bytes"] = int(getattr(device, "context_bytes", lambda: 0)())
    return facts


def versions() -> dict[str, str]:
    """Python's version and those of the installed packages that shape memory, read without importing them."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _cuda_driver_version() -> str | None:
    """The CUDA version the driver supports, such as `13.0`."""
    import torch

    read = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = int(read()) if read else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


@contextlib.contextmanager
def _within(bench: Bench, room_bytes: int | None) -> Iterator[Bench]:
    """The bench while PyTorch may reserve `room_bytes` at most (None: whatever it may outside)."""
    if room_bytes is None:
        yield bench
        return
    if bench.device.evidence is not Evidence.FORECAST:
        raise WorkerError(f"the room of {bench.device.name} can't be set: only a null card's can.")
    device = cast("NullSession", bench.device)
    budget_bytes = room_bytes + device.context_bytes()
    device.limit(budget_bytes)
    try:
        yield replace(bench, budget_bytes=budget_bytes)
    finally:
        device.limit(bench.budget_bytes or device.card.total_bytes + device.context_bytes())


@contextlib.contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    """Warnings meant for people (plain UserWarning), one line each, without repeats; they reach the log too."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield lines
        finally:
            for warning in caught:
                text = warnings.formatwarning(warning.message, warning.category, warning.filename, warning.lineno)
                print(text, file=sys.stderr, end="", flush=True)
                line = " ".join(str(warning.message).split())
                if warning.category is UserWarning and line not in lines:
                    lines.append(line)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _close_quietly(*fds: int) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _end_with_children() -> None:
    """End at once, also in the middle of a step, and take along what this process started."""
    if hasattr(os, "killpg") and posix.leads_its_group():
        posix.kill_group(os.getpid())
    os._exit(EXIT_PARENT_GONE)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to do, and to take torch and diffusers apart takes seconds
