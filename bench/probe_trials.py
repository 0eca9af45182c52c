"""How many real trials does a probe need? `python -m bench.probe_trials [--quick] [--cases N] [--log FILE]`.

Full-size jobs on cards of the catalogue, each under a ladder. Forecasts come from a null GPU; a second one, whose
cuDNN asks for scratch memory at every convolution and whose context takes its share, stands in for the real card.
Each case is walked three ways: guided by the forecasts, by trials alone (brute force), and by the batch-size
finders of other libraries. The last line is one JSON object: cases, within_two_trials, same_plan, mean_trials by
method. Every number here is a forecast: nothing was measured on a card.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from autotune.controller.foresight import estimate_of
from autotune.device.budget import HEADLESS_RESERVE_BYTES
from autotune.device.catalogue import Card, find_card
from autotune.device.session import Evidence
from autotune.errors import AutotuneError
from autotune.ladder.ladders import LADDERS
from autotune.ladder.plan import BATCH_SIZE, Plan, Recipe
from autotune.ladder.walk import Walk, largest_batch
from autotune.trial.guide import Estimate
from autotune.trial.guided import Foresight, guided_search
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import Ready, TrialReport
from autotune.trial.search import WarmWorker
from autotune.trial.workload import Job
from autotune.units import MIB
from bench.batch_finders import FINDERS
from bench.null_peaks import Peaks, Stack

WORKSPACES_BYTES: Mapping[str, int] = {"sd1": 96 * MIB, "sdxl": 64 * MIB, "sd3": 32 * MIB, "flux1": 160 * MIB}
"""What the stand-in's cuDNN asks for at every convolution: another figure for each family."""

FAMILIES_AT_ONCE = 2


@dataclass(frozen=True)
class Workload:
    """A job of the grid: the settings that differ from the trainer's defaults, and the cards it is put on."""

    family: str
    settings: Mapping[str, Any]
    cards: Sequence[str]

    @property
    def config(self) -> dict[str, Any]:
        """What the trainer's forecast is asked for. No picture at the end: the steps' peak is above it."""
        return {"family": self.family, "sample_at_end": False, **self.settings}


SMALL = ("rtx-3050-laptop-4gb", "rtx-3050-6gb", "rtx-3070-8gb", "rtx-3080-10gb")
MIDDLE = ("rtx-3060-12gb", "a4000-16gb", "a4500-20gb", "rtx-3090-24gb")
GRID = (
    Workload(
        "sd1", {"train_batch_size": 8, "gradient_accumulation_steps": 2, "network_dim": 32}, (*SMALL, *MIDDLE)
    ),
    Workload("sd1", {"train_batch_size": 4, "resolution": 768, "network_dim": 32}, (*SMALL, *MIDDLE, "a40-48gb")),
    Workload("sdxl", {"train_batch_size": 4, "network_dim": 32}, (*SMALL[1:], *MIDDLE, "a40-48gb")),
    Workload("sd3", {"train_batch_size": 4, "network_dim": 32}, (*MIDDLE, "a40-48gb")),
    Workload(
        "flux1", {"train_batch_size": 2, "network_dim": 16}, ("rtx-4090-24gb", "rtx-5000-ada-32gb", "l40s-48gb")
    ),
)
QUICK = (replace(GRID[0], cards=(SMALL[0], SMALL[3])),)


@dataclass(frozen=True)
class Case:
    """One job on one card under one ladder."""

    workload: Workload
    card: Card
    ladder: str

    @property
    def room_bytes(self) -> int:
        """What a plan may reserve on the stand-in: all but the reserve and the context at its largest."""
        return self.card.total_bytes - HEADLESS_RESERVE_BYTES - self.card.context.high_bytes


@dataclass(frozen=True)
class Result:
    """A case's end: the plans chosen with and without forecasts (None: nothing fits), and trials by method."""

    family: str
    card: str
    ladder: str
    chosen: dict[str, Any] | None
    brute_force: dict[str, Any] | None
    trials: Mapping[str, int]
    found: Mapping[str, bool]

    @property
    def same_plan(self) -> bool:
        """Whether the guided probe ended where trials alone end."""
        return self.chosen == self.brute_force


Need = Callable[[Plan], int]


class StandIn:
    """The second null GPU as a card: a worker whose trials answer from the peaks it had with endless memory."""

    def __init__(self, job: Job, need: Need, room_bytes: int) -> None:
        self._need = need
        self.budget_bytes = room_bytes
        self.ready = Ready(job, {"name": "the stand-in", "evidence": Evidence.FORECAST.value}, {})
        self.tried: list[Plan] = []

    def open(self) -> Ready:
        """Nothing to start."""
        return self.ready

    def close(self) -> None:
        """Nothing to end."""

    def trial(self, plan: Plan, steps: int, lift_budget: bool = False) -> TrialReport:
        """Whether `plan` fits the room, with its whole peak only if it does."""
        self.tried.append(plan)
        need = self._need(plan)
        if need <= self.budget_bytes:
            return TrialReport(Outcome(plan, Verdict.FITS, Evidence.FORECAST, peak_reserved_bytes=need))
        return TrialReport(Outcome(plan, Verdict.OOM, Evidence.FORECAST), Kind.DEVICE_MEMORY)


@dataclass(frozen=True)
class PeakOracle:
    """Forecasts from the first null GPU."""

    peaks: Peaks

    def estimate(self, plan: Plan) -> Estimate | None:
        """See `autotune.trial.guided.Oracle`."""
        return estimate_of(self.peaks.outcome(plan))

    def outcome(self, plan: Plan) -> Outcome | None:
        """See `autotune.trial.guided.Oracle`."""
        return self.peaks.outcome(plan)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid. Exit code 0 if every case ended on the same plan, and 95 % within two trials."""
    options = _parse(arguments)
    began = time.monotonic()
    cases = [case for workload in (QUICK if options.quick else GRID) for case in cases_of(workload)]
    results = run_cases(cases[: options.cases], options.log)
    summary = summarise(results) | {"seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(summary))
    return 0 if summary["same_plan"] == len(results) and summary["share_within_two"] >= 0.95 else 1


def run_cases(cases: Sequence[Case], log: Path | None) -> list[Result]:
    """Every case, two families at a time; each is told as it ends."""
    groups = [list(group) for _, group in groupby(cases, lambda case: case.workload)]
    with ThreadPoolExecutor(FAMILIES_AT_ONCE) as pool:
        return [result for results in pool.map(lambda group: run_family(group, log), groups) for result in results]


def run_family(cases: Sequence[Case], log: Path | None) -> list[Result]:
    """Cases of one workload, which share what the null GPUs have told."""
    workload, capability = cases[0].workload, cases[0].card.compute_capability
    forecast = Peaks(workload.config, Stack(capability), log)
    real = Peaks(workload.config, Stack(capability, WORKSPACES_BYTES[workload.family]), log)
    results = []
    try:
        for case in cases:
            ask_both(case, forecast, real)
            results.append(run_case(case, forecast.job(), PeakOracle(forecast), real.need_bytes))
            print(describe(results[-1]), flush=True)
        return results
    finally:
        forecast.close()
        real.close()


def ask_both(case: Case, *stacks: Peaks) -> None:
    """Walk a case on each null GPU at the same time, so that what both ways of walking it ask is known."""

    def walk(peaks: Peaks) -> None:
        walk_by_trials(case, peaks.job().recipe, lambda plan: peaks.need_bytes(plan) <= case.room_bytes)

    with ThreadPoolExecutor(len(stacks)) as pool:
        list(pool.map(walk, stacks))


def cases_of(workload: Workload) -> Iterable[Case]:
    """The workload on each of its cards under each built-in ladder."""
    return (Case(workload, find_card(slug), ladder) for slug in workload.cards for ladder in LADDERS)


def run_case(case: Case, job: Job, oracle: Any, need: Need) -> Result:
    """Walk one case in every way; `need` is the truth, `oracle` the forecast of it."""
    room = case.room_bytes
    guided = StandIn(job, need, room)
    try:
        warm = WarmWorker(lambda: guided)  # type: ignore[arg-type, return-value]
        chosen = guided_search(warm, LADDERS[case.ladder], Foresight(oracle, room)).chosen
    except AutotuneError:  # nothing fits
        chosen = None
    best, trials = walk_by_trials(case, job.recipe, lambda plan: need(plan) <= room)
    others = find_batches(job.recipe, lambda plan: need(plan) <= room)
    return Result(
        case.workload.family,
        case.card.slug,
        case.ladder,
        chosen.to_json() if chosen else None,
        best.to_json() if best else None,
        {"guided": len(guided.tried), "brute_force": trials} | {name: one[0] for name, one in others.items()},
        {"guided": chosen is not None, "brute_force": best is not None}
        | {name: one[1] for name, one in others.items()},
    )


def walk_by_trials(case: Case, recipe: Recipe, fits: Callable[[Plan], bool]) -> tuple[Plan | None, int]:
    """The plan that trials alone end on, and how many they are."""
    walk, trials = Walk.start(LADDERS[case.ladder], recipe), 0
    while (step := walk.next()) is not None:
        walk, trials = walk.record(step, fits(step.plan)), trials + 1
    return walk.chosen, trials


def find_batches(recipe: Recipe, fits: Callable[[Plan], bool]) -> dict[str, tuple[int, bool]]:
    """Trials of each batch-size finder at the recipe's other knobs, and whether it found a batch."""

    def batch_fits(batch: int) -> bool:
        return fits(recipe.plan.replace(BATCH_SIZE, batch))

    found = {name: find(batch_fits, largest_batch(recipe)) for name, find in FINDERS.items()}
    return {name: (one.trials, one.batch is not None) for name, one in found.items()}


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """The numbers of all cases together. Raises ValueError without any."""
    if not results:
        raise ValueError("no cases were run")
    within = sum(result.trials["guided"] <= 2 for result in results)
    methods = results[0].trials
    return {
        "cases": len(results),
        "within_two_trials": within,
        "share_within_two": round(within / len(results), 4),
        "same_plan": sum(result.same_plan for result in results),
        "mean_trials": {name: round(mean(one.trials[name] for one in results), 2) for name in methods},
        "found_a_plan": {name: sum(one.found[name] for one in results) for name in methods},
        "evidence": Evidence.FORECAST.value,
    }


def describe(result: Result) -> str:
    """One case in one line."""
    counts = ", ".join(f"{name} {count}" for name, count in result.trials.items())
    end = "the same plan" if result.same_plan else f"ANOTHER PLAN: {result.chosen} not {result.brute_force}"
    return f"{result.family:6} {result.card:20} {result.ladder:15} {end}; trials: {counts}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.probe_trials", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one job on two cards")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="stop after so many cases")
    parser.add_argument("--log", type=Path, help="where the workers write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
