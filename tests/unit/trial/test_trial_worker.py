"""Real worker processes: what they answer, how they die, and that nothing of them is left."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import posix
from autotune.device.session import DeviceSpec, Evidence
from autotune.errors import ConfigError, DataError, DiskError, OutOfDeviceMemory, WorkerError
from autotune.trial.client import Worker
from autotune.trial.oom import Kind
from autotune.trial.outcome import Verdict
from autotune.trial.process import Launch
from autotune.trial.protocol import decode
from tests.workloads.troubled import Trouble, plan_with

ROOT = Path(__file__).parents[3]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
VIRTUAL = DeviceSpec.parse("virtual:64MiB")
WITHIN_S = 60  # a bound for broken code, not a measure of speed

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open")


def make_worker(workload: str, config: Mapping[str, Any] | None = None, **launch: Any) -> Worker:
    launch = {"environment": ENVIRONMENT, **launch}
    return Worker(f"tests.workloads.{workload}", config or {}, VIRTUAL, launch=Launch(**launch))


@pytest.fixture(scope="module")
def shared() -> Iterator[list[Worker]]:
    """One worker for the tests that leave it alive; see `warm`."""
    held: list[Worker] = []
    yield held
    for worker in held:
        worker.close()


@pytest.fixture
def warm(shared: list[Worker]) -> Worker:
    """A worker on the troubled workload; a new one if the test before ended it."""
    if not shared or shared[0].pid is None:
        shared[:] = [make_worker("troubled:create")]
        shared[0].open()
    shared[0]._on_event = lambda event: None
    shared[0].launch = replace(shared[0].launch, clock=lambda: 0.0)
    return shared[0]


def wait_until_gone(pidfd: int) -> bool:
    """Whether the process behind `pidfd` has ended, within a generous bound."""
    return bool(select.select([pidfd], [], [], WITHIN_S)[0])


def test_an_open_worker_tells_its_job_its_device_and_the_versions_that_matter(warm: Worker) -> None:
    ready = warm.ready
    assert ready.job.label == "troubled"
    assert ready.evidence is Evidence.SIMULATED
    assert ready.device["total_bytes"] == 64 << 20
    assert {"python", "torch", "diffusers"} <= set(ready.versions)


def test_prints_of_libraries_and_children_do_not_break_the_protocol(warm: Worker) -> None:
    assert warm.trial(plan_with(Trouble.PRINT)).outcome.fits
    assert warm.trial(plan_with(Trouble.NONE)).outcome.fits


def test_a_worker_goes_on_after_out_of_memory_and_after_an_error_for_the_user(warm: Worker) -> None:
    before = warm.pid
    report = warm.trial(plan_with(Trouble.OOM_BACKWARD))
    assert (report.outcome.verdict, report.clean) == (Verdict.OOM, True)
    with pytest.raises(DataError, match="cat"):
        warm.trial(plan_with(Trouble.USER_ERROR))
    assert warm.trial(plan_with(Trouble.NONE)).outcome.fits
    assert warm.pid == before


def test_without_its_budget_a_virtual_plan_tells_its_true_need(warm: Worker) -> None:
    report = warm.trial(plan_with(Trouble.NONE), lift_budget=True)
    assert report.outcome.fits
    assert report.outcome.evidence is Evidence.SIMULATED


def test_only_a_null_card_can_be_given_another_room_for_one_trial(warm: Worker) -> None:
    before = warm.pid
    with pytest.raises(WorkerError, match="only a null card's can"):
        warm.trial(plan_with(Trouble.NONE), room_bytes=1 << 20)
    assert warm.trial(plan_with(Trouble.NONE)).outcome.fits
    assert warm.pid == before


def test_an_aborted_worker_is_a_death_for_whoever_waits(warm: Worker) -> None:
    def abort_from_another_thread(event: Mapping[str, Any]) -> None:
        if event.get("step") == 1:
            thread = threading.Thread(target=warm.abort)
            thread.start()
            thread.join()

    warm._on_event = abort_from_another_thread
    report = warm.trial(plan_with(Trouble.HANG))
    assert report.outcome.verdict is Verdict.CRASHED
    assert (report.reusable, warm.pid) == (False, None)
    warm.abort()  # nobody is there any more


def test_training_that_runs_out_of_memory_is_an_error_with_a_way_out(warm: Worker) -> None:
    with pytest.raises(OutOfDeviceMemory, match="--fit-vram"):
        warm.run(plan_with(Trouble.OOM_WRAPPED))


def test_a_full_run_streams_its_events_and_ends_with_its_summary(warm: Worker) -> None:
    events: list[Mapping[str, Any]] = []
    assert warm.run(plan_with(Trouble.NONE), events.append) == {"files": [], "steps": 1}
    assert [event["phase"] for event in events] == ["train"]


def test_a_worker_killed_in_a_trial_is_a_crash_that_names_the_signal(warm: Worker) -> None:
    def kill_at_the_first_step(event: Mapping[str, Any]) -> None:
        if event.get("step") == 1 and warm.pid is not None:
            os.kill(warm.pid, signal.SIGKILL)

    warm._on_event = kill_at_the_first_step
    report = warm.trial(plan_with(Trouble.HANG))
    assert report.outcome.verdict is Verdict.CRASHED
    assert "killed by SIGKILL (the host may be out of memory)" in report.outcome.reason
    assert report.outcome.failed_phase == "step"
    assert not report.reusable
    assert warm.pid is None


def test_a_worker_without_progress_is_hung_and_the_line_says_where(warm: Worker) -> None:
    now = [0.0]
    warm.launch = replace(warm.launch, clock=lambda: now[0])
    pid = warm.pid

    def let_an_hour_pass(event: Mapping[str, Any]) -> None:
        now[0] += 3600 if event.get("step") == 1 else 0

    warm._on_event = let_an_hour_pass
    assert pid is not None
    pidfd = os.pidfd_open(pid)
    report = warm.trial(plan_with(Trouble.HANG))
    assert report.outcome.verdict is Verdict.HUNG
    assert re.search(r"no progress for 3600 s in phase 'step', in \w+\.py:\d+ \(\w+\)", report.outcome.reason)
    assert wait_until_gone(pidfd)


def test_a_c_macro_that_ends_the_worker_for_memory_is_an_oom(warm: Worker) -> None:
    report = warm.trial(plan_with(Trouble.BITSANDBYTES))
    assert (report.outcome.verdict, report.kind) == (Verdict.OOM, Kind.DEVICE_MEMORY)
    assert "ops.cu" in report.outcome.reason


@pytest.mark.parametrize(
    ("workload", "error", "text"),
    [
        ("absent:create", ConfigError, "no module named 'tests.workloads.absent'"),
        ("stuck:absent", ConfigError, "no callable 'absent'"),
        ("stuck:fail", WorkerError, "root cause: ValueError: invalid literal.* at stuck.py:"),
        (
            "stuck:die",
            WorkerError,
            "exit status 3; its last lines: first line | the driver is too old in phase",
        ),
        ("stuck:abort", WorkerError, "SIGABRT; its last lines: Unrecognized key 'garbage' in"),
    ],
)
def test_a_worker_that_can_not_open_says_why_and_is_gone(workload: str, error: type, text: str) -> None:
    worker = make_worker(workload, {"rank": "many"})
    with pytest.raises(error, match=text.replace("|", r"\|")):
        with worker:
            pass
    assert worker.pid is None


def test_a_folder_with_modules_named_as_ours_shadows_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("trainer/__init__.py", "torch.py", "mine.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('a stray file was imported')\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no callable 'absent'"), Worker("trainer.forecast:absent", {}, VIRTUAL):
        pass
    # What is nowhere else is found there.
    with pytest.raises(WorkerError, match="a stray file was imported"), Worker("mine:create", {}, VIRTUAL):
        pass


def test_an_interpreter_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(WorkerError, match="no worker could be started with /absent/python"):
        make_worker("stuck:die", python="/absent/python").open()


def test_the_log_keeps_what_it_held_and_gets_what_the_worker_wrote(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("before\n")
    with pytest.raises(WorkerError, match=r"Its log is .*train\.log") as caught:
        make_worker("stuck:die", log_path=log).open()
    assert log.read_text().startswith("before\n")
    assert "the driver is too old" in log.read_text()
    assert "before" not in str(caught.value)


def test_a_log_that_can_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    with pytest.raises(DiskError, match="the worker's log can't be written"):
        make_worker("stuck:die", log_path=tmp_path / "logs" / "train.log").open()


def test_an_interrupted_controller_leaves_no_worker() -> None:
    worker = make_worker("stuck:create")
    seen: list[int] = []

    def interrupt(event: Mapping[str, Any]) -> None:
        assert worker.pid is not None
        seen.append(os.pidfd_open(worker.pid))
        raise KeyboardInterrupt

    worker._on_event = interrupt
    with pytest.raises(KeyboardInterrupt):
        with worker:
            pass
    assert wait_until_gone(seen[0])


CONTROLLER = """
import sys
from tests.unit.trial.test_trial_worker import make_worker
make_worker(sys.argv[1], {"tell": sys.argv[2]}).open()
"""


@pytest.mark.parametrize(
    ("workload", "processes"), [("stuck:wait_with_a_child", 2), ("stuck:hold_the_interpreter", 1)]
)
def test_a_killed_controller_takes_its_worker_along_and_what_that_started(
    workload: str, processes: int, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, workload, str(pipe)], env=ENVIRONMENT, cwd=ROOT
    )
    pidfds = [os.pidfd_open(int(pid)) for pid in pipe.read_text().split()]
    controller.kill()
    controller.wait()
    assert len(pidfds) == processes
    assert all(map(wait_until_gone, pidfds))


@pytest.fixture
def raw() -> Iterator[Callable[[bytes], dict[str, Any]]]:
    """A worker spoken to in bytes: sends one line, returns the first answer that is no heartbeat."""
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.trial.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pipe_in, pipe_out = process.stdin, process.stdout

    def ask(line: bytes) -> dict[str, Any]:
        pipe_in.write(line)
        pipe_in.flush()
        return next(message for message in map(decode, pipe_out) if message["kind"] != "heartbeat")

    with process:
        yield ask
        pipe_in.close()  # the worker ends at the end of its stdin: `with` waits for it


def test_nonsense_gets_an_answer_and_the_worker_goes_on(raw: Callable[[bytes], dict[str, Any]]) -> None:
    assert "broken message" in raw(b"hello\n")["body"]["fact"]
    assert "unknown operation 'fly'" in raw(b'{"op":"fly","id":7}\n')["body"]["fact"]
    answer = raw(b'{"op":"trial","id":8,"plan":{},"steps":2}\n')
    assert (answer["id"], answer["body"]["fact"]) == (8, "no workload is open in this worker.")
    assert raw(b'{"op":"close","id":10}\n') == {"kind": "closed", "id": 10, "body": {}}


def test_oom_kills_are_counted_where_the_kernel_tells(tmp_path: Path) -> None:
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    assert posix.count_oom_kills(root=tmp_path) is None
    (proc / "cgroup").write_text("0::/user.slice/train\n")
    events = tmp_path / "sys/fs/cgroup/user.slice/train"
    events.mkdir(parents=True)
    (events / "memory.events").write_text("low 0\nmax 4\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert posix.count_oom_kills(root=tmp_path) == 2
    (proc / "cgroup").write_text("7:cpu:/\n5:memory:/docker/x\n")
    old = tmp_path / "sys/fs/cgroup/memory/docker/x"
    old.mkdir(parents=True)
    (old / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert posix.count_oom_kills(root=tmp_path) == 1


@pytest.mark.parametrize(("set_by_user", "expected"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_a_workers_threads_sleep_at_barriers_so_a_busy_machine_stays_usable(
    set_by_user: Mapping[str, str], expected: str
) -> None:
    unset = {name: value for name, value in ENVIRONMENT.items() if name != "OMP_WAIT_POLICY"}
    worker = make_worker("troubled:create", environment=unset | set_by_user)
    try:
        worker.open()
        started_with = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
        assert f"OMP_WAIT_POLICY={expected}".encode() in started_with
    finally:
        worker.close()
