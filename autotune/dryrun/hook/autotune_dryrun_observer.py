"""Watches one Python process that uses PyTorch on a null card, and keeps what it saw in one small JSON file.

Runs inside somebody else's program, in any Python from 3.8 on: standard library only, nothing of autotune. It
waits for `torch` to be imported and for CUDA to be initialised, then reads the allocator's counters now and then,
and is called by the allocator when memory runs out. Must never change what the program computes, prints or raises:
each entry from outside swallows its own errors. The file is whole at any time (written beside, then renamed), so a
process that is killed leaves its last state too.

The file: {pid, rank, visible, started, updated, ended, devices: {index: {allocated, reserved, retries, ooms,
place}}, oom: [{device, requested, allocated, free, user, library}], error: {type, text, user, library}}; sizes in
bytes, times from `time.time()`, places as "file:line function".
"""

import atexit
import json
import os
import sys
import threading
import time

FOLDER = "AUTOTUNE_DRYRUN_STATE"
_POLL_SECONDS = 0.01
_WRITE_SECONDS = 0.25
_MOST_OOMS = 20
_CHARS = 4000


def watch():
    """Wait for torch. Costs one entry in sys.meta_path until torch is imported."""
    folder = os.environ.get(FOLDER)
    if folder and "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchFinder(folder))


class _TorchFinder:
    """Finds nothing by itself: has the others find torch, and is told when it has been executed.

    Stays until then: libraries look torch up to see whether it is installed, long before they import it.
    """

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader):
        execute = loader.exec_module

        def execute_and_observe(module):
            del loader.exec_module  # the loader is as it was before torch's own code runs
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            _quietly(
                lambda: module.cuda._lazy_call(lambda: _quietly(lambda: Observer(module, self.folder).start()))
            )

        loader.exec_module = execute_and_observe


class Observer:
    """The counters of every card of one process, and where they rose. Made when CUDA is initialised."""

    def __init__(self, torch, folder):
        self.torch, self.pid = torch, os.getpid()
        self.path = os.path.join(folder, "%d-%x.json" % (self.pid, time.time_ns()))
        self.lock = threading.RLock()
        self.code = _UserCode(torch)
        self.state = {
            "pid": self.pid,
            "rank": os.environ.get("RANK"),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "started": time.time(),
            "updated": time.time(),
            "ended": False,
            "devices": {},
            "oom": [],
            "error": None,
        }
        self.main = threading.main_thread().ident
        self.stopping = threading.Event()

    def start(self):
        """Begin to watch: allocator callback, counters that the program may reset, a sampling thread, the end."""
        self.torch._C._cuda_attach_out_of_memory_observer(self._on_oom)
        for name in (
            "_cuda_resetPeakMemoryStats",
            "_cuda_resetAccumulatedMemoryStats",
            "_accelerator_resetPeakStats",
            "_accelerator_resetAccumulatedStats",
        ):
            self._read_before(name)
        atexit.register(lambda: _quietly(self._finish))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.stopping.set)
        self._write()
        threading.Thread(target=self._sample, name="autotune-dryrun", daemon=True).start()

    def _read_before(self, name):
        """Counters that are about to be set to zero are read first."""
        reset = getattr(self.torch._C, name, None)
        if reset is None:
            return

        def read_and_reset(*arguments):
            _quietly(lambda: self._read(self._user_place(), resets=name))
            return reset(*arguments)

        setattr(self.torch._C, name, read_and_reset)

    def _sample(self):
        written = time.monotonic()
        while not self.stopping.wait(_POLL_SECONDS):
            _quietly(lambda: self._read(None))
            if time.monotonic() - written > _WRITE_SECONDS:
                _quietly(self._write)
                written = time.monotonic()

    def _read(self, place, resets=None):
        """Take the counters over; a peak that rose is put down to `place`, by default where the main thread is."""
        with self.lock:
            for device in range(self.torch._C._cuda_getDeviceCount()):
                stats = self.torch._C._cuda_memoryStats(device)
                allocated = stats["allocated_bytes"]["all"]["peak"]
                reserved = stats["reserved_bytes"]["all"]["peak"]
                if allocated or reserved or str(device) in self.state["devices"]:
                    self._keep(str(device), allocated, reserved, stats, place, resets)

    def _keep(self, device, allocated, reserved, stats, place, resets):
        seen = self.state["devices"].setdefault(
            device, {"allocated": 0, "reserved": 0, "retries": 0, "ooms": 0, "place": None, "base": [0, 0]}
        )
        if allocated > seen["allocated"]:
            seen["place"] = place or self._user_place()
        seen["allocated"] = max(seen["allocated"], allocated)
        seen["reserved"] = max(seen["reserved"], reserved)
        counts = [stats["num_alloc_retries"], stats["num_ooms"]]
        seen["retries"], seen["ooms"] = (base + now for base, now in zip(seen["base"], counts))
        if resets is not None and "Accumulated" in resets:
            seen["base"] = [seen["retries"], seen["ooms"]]

    def _on_oom(self, device, requested, allocated, free):
        _quietly(lambda: self._keep_oom(device, requested, allocated, free))

    def _keep_oom(self, device, requested, allocated, free):
        user, library = self.code.places(self._frame())
        with self.lock:
            if len(self.state["oom"]) < _MOST_OOMS:
                self.state["oom"].append(
                    {
                        "device": device,
                        "requested": requested,
                        "allocated": allocated,
                        "free": free,
                        "user": user,
                        "library": library,
                    }
                )
            self._write()  # no reading here: the allocator holds its lock while it calls

    def _frame(self):
        """The frame to blame: this thread's, or the main thread's where this one runs no Python (backward)."""
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        return frame or sys._current_frames().get(self.main)

    def _user_place(self):
        return self.code.places(sys._current_frames().get(self.main))[0]

    def _finish(self):
        if os.getpid() != self.pid:
            return
        self.stopping.set()
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        with self.lock:
            if error is not None:
                user, library = self.code.places_of_traceback(error.__traceback__)
                kind = type(error)
                self.state["error"] = {
                    "type": "%s.%s" % (kind.__module__, kind.__qualname__),
                    "text": str(error)[:_CHARS],
                    "user": user,
                    "library": library,
                }
            self._read(None)
            self.state["ended"] = True
            self._write()

    def _write(self):
        with self.lock:
            self.state["updated"] = time.time()
            beside = self.path + ".tmp"
            with open(beside, "w") as file:
                json.dump(self.state, file)
            os.replace(beside, self.path)


class _UserCode:
    """Tells a user's files from those of installed packages and of Python itself."""

    def __init__(self, torch):
        library = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
        standard = os.path.dirname(os.path.abspath(os.__file__))
        self.foreign = (library + os.sep, standard + os.sep)

    def places(self, frame):
        """(innermost line of user code or None, innermost line at all or None) of a running frame."""
        return self._pick(_walk_frames(frame))

    def places_of_traceback(self, trace):
        """The same of a traceback."""
        links = []
        while trace is not None:
            links.append((trace.tb_frame.f_code, trace.tb_lineno))
            trace = trace.tb_next
        return self._pick(reversed(links))

    def _pick(self, links):
        user = library = None
        for code, line in links:
            if code.co_filename == __file__:
                continue
            place = "%s:%s %s" % (code.co_filename, line, code.co_name)
            if library is None:
                library = place
            if self._is_users(code.co_filename):
                user = place
                break
        return user, library

    def _is_users(self, path):
        if path.startswith("<") or not os.path.isabs(path):
            return not path.startswith("<")
        return not path.startswith(self.foreign) and "-packages" + os.sep not in path


def _walk_frames(frame):
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _quietly(action):
    try:
        action()
    except Exception:
        if os.environ.get("AUTOTUNE_DRYRUN_DEBUG"):
            import traceback

            traceback.print_exc()
