"""On a budget that only just holds a rung, the walk ends on that rung, one knob per trial.

Each rung's peak is measured by real trials; then the budget is set to exactly that peak and the real search
runs. The rungs are spelled out here, so that neither the ladder nor the walk is its own judge.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from integration_harness import InProcessWorker, Rig, measure_peak

from autotune.device.session import DeviceSpec, Evidence
from autotune.device.virtual import VirtualSession
from autotune.errors import NothingFitsError
from autotune.ladder.ladders import LADDERS
from autotune.ladder.plan import Plan
from autotune.ladder.walk import Direction
from autotune.trial.client import Worker
from autotune.trial.outcome import Verdict
from autotune.trial.process import Launch
from autotune.trial.protocol import STEPS_TO_FIT
from autotune.trial.search import SearchResult, SearchStep, WarmWorker, search
from autotune.units import MIB, format_mib
from trainer.workload import LoraWorkload

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
BLOCK_BYTES = 512

Rung = tuple[int, int, bool, int]  # batch size, pixels, gradient checkpointing, rank

# SD 1.x trains its text encoder and samples at the end; SDXL caches its captions and trains the U-Net only.
RECIPES = {
    "sd1": {"resolution": "384,384", "sample_at_end": True},
    "sdxl": {"resolution": "576,576", "network_train_unet_only": True, "cache_text_encoder_outputs": True},
}
RUNGS: Mapping[tuple[str, str], tuple[Rung, ...]] = {
    ("sd1", "classic"): (
        (2, 384, False, 32),
        (1, 384, False, 32),
        (1, 320, False, 32),
        (1, 320, True, 32),
        (1, 320, True, 16),
        (1, 256, True, 16),
        (1, 256, True, 8),
        (1, 256, True, 4),
    ),
    ("sd1", "lossless-first"): (
        (2, 384, False, 32),
        (1, 384, False, 32),
        (1, 384, True, 32),
        (1, 320, True, 32),
        (1, 320, True, 16),
        (1, 256, True, 16),
        (1, 256, True, 8),
        (1, 256, True, 4),
    ),
    ("sdxl", "classic"): (
        (2, 576, False, 32),
        (1, 576, False, 32),
        (1, 512, False, 32),
        (1, 512, True, 32),
        (1, 512, True, 16),
        (1, 512, True, 8),
        (1, 512, True, 4),
    ),
    ("sdxl", "lossless-first"): (
        (2, 576, False, 32),
        (1, 576, False, 32),
        (1, 576, True, 32),
        (1, 512, True, 32),
        (1, 512, True, 16),
        (1, 512, True, 8),
        (1, 512, True, 4),
    ),
}


def on_family(family: str, *values: object, name: str) -> object:
    """A case whose family's measured peaks are shared with the other cases in one test process."""
    return pytest.param(family, *values, id=f"{family}-{name}", marks=pytest.mark.xdist_group(f"walk-{family}"))


EVERY_RUNG = [
    on_family(
        family, ladder, rung, name=f"{ladder}-{number}-batch{rung[0]}-{rung[1]}px-ckpt{rung[2]:d}-dim{rung[3]}"
    )
    for (family, ladder), rungs in RUNGS.items()
    for number, rung in enumerate(rungs)
]
EVERY_LADDER = [on_family(family, ladder, name=ladder) for family, ladder in RUNGS]
EVERY_FAMILY = [on_family(family, name="all") for family in RECIPES]


@dataclass(frozen=True)
class Course:
    """A family's workload, kept warm, and the peaks measured so far."""

    workload: LoraWorkload
    config: Path
    peaks: dict[Rung, int] = field(default_factory=dict)

    def peak(self, rung: Rung) -> int:
        if rung not in self.peaks:
            self.peaks[rung] = measure_peak(self.workload, plan_at(rung))
        return self.peaks[rung]

    def walk(self, ladder: str, budget_bytes: int) -> tuple[SearchResult, InProcessWorker]:
        worker = InProcessWorker(self.workload, budget_bytes)
        with WarmWorker(lambda: worker) as warm:  # type: ignore[arg-type, return-value]
            return search(warm, LADDERS[ladder], steps=STEPS_TO_FIT), worker


@pytest.fixture(scope="session")
def course_of(
    tmp_path_factory: pytest.TempPathFactory, photos: Path, base_of: Callable[[str], Path]
) -> Iterator[Callable[[str], Course]]:
    courses: dict[str, Course] = {}

    def course(family: str) -> Course:
        if family not in courses:
            rig = Rig(tmp_path_factory.mktemp(f"walk-{family}"), base_of(family), photos)
            recipe = {"train_batch_size": 2, "network_dim": 32, "network_alpha": 16, **RECIPES[family]}
            config = rig.write_config(**recipe)
            courses[family] = Course(rig.workload(**recipe), config)
        return courses[family]

    yield course
    courses.clear()


def plan_at(rung: Rung) -> Plan:
    batch, pixels, checkpointing, rank = rung
    return Plan.of(
        batch_size=batch, resolution=((pixels, pixels),), gradient_checkpointing=checkpointing, network_dim=rank
    )


def knobs_changed(before: Plan, after: Plan) -> int:
    return sum(before[knob] != after[knob] for knob in before)


def down_the_ladder(steps: tuple[SearchStep, ...]) -> list[SearchStep]:
    return [one for one in steps if one.step.direction is not Direction.CLIMB]


@pytest.mark.parametrize(("family", "ladder"), EVERY_LADDER)
def test_every_rung_needs_strictly_less_than_the_one_above(
    course_of: Callable[[str], Course], family: str, ladder: str
) -> None:
    peaks = [course_of(family).peak(rung) for rung in RUNGS[family, ladder]]
    assert all(above > below for above, below in pairwise(peaks)), peaks


@pytest.mark.parametrize(("family", "ladder", "last_that_fits"), EVERY_RUNG)
def test_the_walk_ends_on_exactly_the_last_rung_that_fits(
    course_of: Callable[[str], Course], family: str, ladder: str, last_that_fits: Rung
) -> None:
    course = course_of(family)
    budget_bytes = course.peak(last_that_fits)
    result, worker = course.walk(ladder, budget_bytes)
    rungs = RUNGS[family, ladder]
    taken = [plan_at(rung) for rung in rungs[: rungs.index(last_that_fits) + 1]]

    assert result.chosen == taken[-1]
    descent = down_the_ladder(result.steps)
    assert [one.step.plan for one in descent] == taken
    assert [one.outcome.verdict for one in descent] == [Verdict.OOM] * (len(taken) - 1) + [Verdict.FITS]
    assert [change.knob for change in result.receipts] == [
        one.step.change.knob for one in descent if one.step.change
    ]
    assert all(knobs_changed(before, after) == 1 for before, after in pairwise(taken))
    # where a larger batch is not known to fail already, it is tried on the rung that fits, and can't fit
    climbs = result.steps[len(descent) :]
    assert [one.step.plan for one in climbs] == ([taken[-1].replace("batch_size", 2)] if len(taken) > 2 else [])
    assert all(one.outcome.verdict is Verdict.OOM for one in climbs)
    assert result.outcome.peak_reserved_bytes == budget_bytes
    assert all(one.report.clean and one.outcome.evidence is Evidence.SIMULATED for one in result.steps)
    assert worker.opened == 1, "no trial may spoil the worker"


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_one_block_less_than_a_plan_needs_does_not_hold_it(
    course_of: Callable[[str], Course], family: str
) -> None:
    course = course_of(family)
    lowest = RUNGS[family, "classic"][-1]
    worker = InProcessWorker(course.workload, course.peak(lowest) - BLOCK_BYTES)
    report = worker.trial(plan_at(lowest), STEPS_TO_FIT)
    assert report.outcome.verdict is Verdict.OOM
    assert report.outcome.reason.startswith("OutOfMemoryError: Virtual GPU out of memory")
    assert report.clean


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_budget_too_small_for_any_rung_is_one_sentence(course_of: Callable[[str], Course], family: str) -> None:
    course = course_of(family)
    rungs = RUNGS[family, "classic"]
    need_bytes = course.peak(rungs[-1])
    budget_bytes = need_bytes - MIB
    with pytest.raises(NothingFitsError) as caught:
        course.walk("classic", budget_bytes)
    (_, high, _, _), (_, low, _, _) = rungs[0], rungs[-1]
    assert caught.value.fact == (
        f"nothing fits the budget of {format_mib(budget_bytes)} on {VirtualSession(budget_bytes).name}: "
        f"{len(rungs)} plans from "
        f"batch_size 2 to 1, resolution {high}x{high} to {low}x{low}, gradient_checkpointing off to on, "
        f"network_dim 32 to 4; the smallest needs {format_mib(need_bytes)}."
    )
    assert caught.value.way_out.startswith("What would help: a larger budget")
    assert "\n" not in str(caught.value)


@pytest.mark.xdist_group("walk-sd1")
def test_a_walk_in_a_real_worker_ends_on_the_same_rung(course_of: Callable[[str], Course]) -> None:
    course, rung = course_of("sd1"), (1, 320, True, 32)
    budget_bytes = course.peak(rung)

    def make() -> Worker:
        return Worker(
            "trainer.workload:create",
            {"configs": [str(course.config)]},
            DeviceSpec("virtual", str(budget_bytes)),
            budget_bytes,
            Launch(environment=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}),
        )

    with WarmWorker(make) as warm:
        result = search(warm, LADDERS["classic"], steps=STEPS_TO_FIT)
    rungs = RUNGS["sd1", "classic"]
    assert result.chosen == plan_at(rung)
    assert [one.step.plan for one in down_the_ladder(result.steps)] == [plan_at(r) for r in rungs[:4]]
    assert result.outcome.peak_reserved_bytes == budget_bytes
