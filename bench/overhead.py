"""What our own code costs a user: the trainer over a bare loop, the virtual GPU over bare counting, `--help`.

Owns the measurement and its table; the last line of the output is one JSON object. Every ratio is the median
of the ratios of steps that took turns within one run, so that a busy machine slows both sides alike; the load
average stands beside it. Torch runs on one thread unless told otherwise: two threads that wait for each other on
a busy machine take ten times as long, and that would be all one measures. Must never compare with the numbers of
another run.
`python -m bench.overhead [--quick] [--threads N]`
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

LONG_STEP_MS = 200.0
WARM_UP_STEPS = 2
PIXELS = 128


@dataclass(frozen=True)
class Effort:
    """How many turns each measurement takes, and after how many seconds the trainer's stops (but not before
    `FEWEST_TURNS`): its steps are the longest, and a busy machine stretches them."""

    trainer: int
    trainer_seconds: float
    virtual_long: int
    virtual_short: int
    help: int


QUICK = Effort(trainer=9, trainer_seconds=8, virtual_long=3, virtual_short=5, help=3)
FULL = Effort(trainer=101, trainer_seconds=75, virtual_long=21, virtual_short=30, help=11)
FEWEST_TURNS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, then the JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns: under 50 seconds on two busy cores")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    options = parser.parse_args(arguments)
    began, load_before = time.perf_counter(), os.getloadavg()[0]
    result = measure(QUICK if options.quick else FULL, options.threads)
    result["machine"] = machine(load_before)
    result["seconds"] = round(time.perf_counter() - began, 1)
    print(table(result))
    print(json.dumps(result))
    return 0


def measure(effort: Effort, threads: int) -> dict[str, Any]:
    """Every number: those that have a limit on top, their details below."""
    helped = measure_help(effort.help)  # first: before torch takes memory and time
    import torch

    from bench.virtual_cost import measure_long_step, measure_short_step

    torch.set_num_threads(threads)
    trainer = measure_trainer(effort.trainer, effort.trainer_seconds)
    long = measure_long_step(effort.virtual_long)
    short = measure_short_step(effort.virtual_short)
    return {
        "trainer_step_ratio": round(trainer["ratio"], 4),
        "virtual_over_counting": round(long.over_counting, 4),
        "virtual_step_ratio": round(long.over_plain, 4),
        "help_ms": round(helped["help_ms"], 1),
        "trainer": trainer,
        "virtual": asdict(long),
        "virtual_dispatch_bound": asdict(short),
        "help": helped,
    }


def measure_trainer(rounds: int, seconds: float) -> dict[str, Any]:
    """The trainer's step over the bare loop's, on steps of at least 200 ms. Raises AssertionError unless both
    have equal losses at every step."""
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as folder:
        trainer, bare, batch_size = _long_jobs(Path(folder))
        ends = time.perf_counter() + seconds
        pairs: list[tuple[_Taken, _Taken]] = []
        while len(pairs) < rounds and (len(pairs) < FEWEST_TURNS or time.perf_counter() < ends):
            pairs.append(_take_turns(trainer, bare, len(pairs)))
        _check_equal(trainer.losses, bare.losses)
    ratios = [ours.wall_ms / theirs.wall_ms for ours, theirs in pairs]
    return {
        "ratio": median(ratios),
        "quartiles": [round(value, 4) for value in _quartiles(ratios)],
        "processor_time_ratio": round(median(ours.cpu_ms / theirs.cpu_ms for ours, theirs in pairs), 4),
        "trainer_step_ms": round(median(ours.wall_ms for ours, _ in pairs), 2),
        "bare_step_ms": round(median(theirs.wall_ms for _, theirs in pairs), 2),
        "difference_ms": round(median(ours.wall_ms - theirs.wall_ms for ours, theirs in pairs), 2),
        "batch_size": batch_size,
        "steps": len(bare.losses),
        "last_loss": bare.losses[-1],
    }


def measure_help(rounds: int) -> dict[str, float]:
    """Wall time of `autotune --help` and of a Python that does nothing, in turns, in milliseconds."""
    from autotune.cli import main as command

    helped = [sys.executable, "-c", f"from {command.__name__} import main; main()", "--help"]
    bare = [sys.executable, "-c", "pass"]
    times: dict[str, list[float]] = {"help": [], "bare": []}
    for turn in range(rounds + 1):
        for name, words in (("help", helped), ("bare", bare)):
            milliseconds = _time_process(words)
            if turn:  # the first reads the files from disk
                times[name].append(milliseconds)
    ratios = [one / other for one, other in zip(times["help"], times["bare"], strict=True)]
    return {
        "help_ms": median(times["help"]),
        "bare_python_ms": round(median(times["bare"]), 1),
        "help_over_bare_python": round(median(ratios), 2),
    }


def machine(load_before: float) -> dict[str, Any]:
    """What disturbs or bounds the numbers: processors, torch's threads and the load average at both ends."""
    import torch

    return {
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
    }


def table(result: Mapping[str, Any]) -> str:
    """The numbers for people, one a line, with their limits."""
    trainer, virtual, short = result["trainer"], result["virtual"], result["virtual_dispatch_bound"]
    helped, computer = result["help"], result["machine"]
    low, high = trainer["quartiles"]
    rows = [
        ("trainer step / bare loop", f"{result['trainer_step_ratio']:.3f}", "at most 1.05"),
        ("", f"{trainer['trainer_step_ms']:.0f} / {trainer['bare_step_ms']:.0f} ms, "
             f"middle half {low:.3f} to {high:.3f}, {trainer['steps']} steps, equal losses", ""),
        ("", f"{trainer['processor_time_ratio']:.3f} by processor time", ""),
        ("virtual GPU / bare counting", f"{result['virtual_over_counting']:.3f}", "at most 1.8"),
        ("virtual GPU / no mode", f"{result['virtual_step_ratio']:.3f}", ""),
        ("", f"a step of {virtual['plain_step_ms']:.0f} ms, {virtual['operations']} operations", ""),
        ("  dispatch-bound: / bare counting", f"{short['over_counting']:.3f}", "at most 1.8"),
        ("  dispatch-bound: / no mode", f"{short['over_plain']:.3f}", ""),
        ("", f"a step of {short['plain_step_ms']:.0f} ms, {short['operations']} operations", ""),
        ("autotune --help", f"{result['help_ms']:.0f} ms", ""),
        ("", f"{helped['help_over_bare_python']:.1f} times python -c pass, {helped['bare_python_ms']:.0f} ms", ""),
        ("load average", f"{computer['load_before']} to {computer['load_after']}, "
         f"{computer['cores']} cores, {computer['torch_threads']} threads", ""),
        ("took", f"{result['seconds']:.0f} s", ""),
    ]  # fmt: skip
    return "\n".join(f"{what:36}{value:11} {limit}".rstrip() for what, value, limit in rows)


class _Side:
    """One of the two jobs, with its next step and the losses so far."""

    def __init__(self, step: Callable[[int], float]) -> None:
        self._step = step
        self.losses: list[float] = []

    def step(self) -> None:
        self.losses.append(self._step(len(self.losses)))


def _long_jobs(folder: Path) -> tuple[_Side, _Side, int]:
    """The trainer's side, the bare one, and the batch size that makes a step long enough; both warmed up."""
    from bench.bare_loop import BareJob, TrainerJob, make_job

    batch_size = 1
    while True:
        job = make_job(folder, batch_size, PIXELS)
        trainer_job = TrainerJob(job)
        trainer, bare = _Side(trainer_job.step), _Side(BareJob(job, trainer_job.latents()).step)
        fastest = min(_time(side).wall_ms for _ in range(WARM_UP_STEPS + 1) for side in (trainer, bare))
        if fastest >= LONG_STEP_MS:
            return trainer, bare, batch_size
        batch_size *= 2


def _check_equal(trainer_losses: list[float], bare_losses: list[float]) -> None:
    from bench.bare_loop import check_equal

    check_equal(trainer_losses, bare_losses)


@dataclass(frozen=True)
class _Taken:
    """What one step took: on the clock, and of processor time, which waiting for a core does not lengthen."""

    wall_ms: float
    cpu_ms: float


def _take_turns(trainer: _Side, bare: _Side, turn: int) -> tuple[_Taken, _Taken]:
    """The next step of both; the one that goes first changes with `turn`."""
    if turn % 2:
        theirs = _time(bare)
        return _time(trainer), theirs
    return _time(trainer), _time(bare)


def _time(side: _Side) -> _Taken:
    """The side's next step, with no garbage of the other's in it."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    side.step()
    return _Taken((time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000)


def _time_process(words: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


if __name__ == "__main__":
    sys.exit(main())
