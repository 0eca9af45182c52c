"""The bench counts real trials and compares plans as it says, on a grid as large as it says."""

from autotune.device.session import Evidence
from autotune.ladder.ladders import LADDERS
from autotune.ladder.plan import Plan, Recipe
from autotune.memory.interval import Interval
from autotune.trial.guide import Estimate
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.workload import Job
from autotune.units import GIB, MIB
from bench import probe_trials
from bench.probe_trials import GRID, QUICK, Result, cases_of, run_case, summarise

START = Plan.of(batch_size=4, resolution=((1024, 1024),), gradient_checkpointing=False, network_dim=32)
JOB = Job("sdxl-lora", {}, Recipe(START, 4, floors={"resolution": 512}))
CASES = [case for workload in GRID for case in cases_of(workload)]


def count(plan):
    return 5 * GIB + plan.batch_size * (GIB if plan.gradient_checkpointing else 8 * GIB)


class Oracle:
    def estimate(self, plan):
        return Estimate(count(plan), count(plan) - 100 * MIB, Interval(0, 300 * MIB))

    def outcome(self, plan):
        return Outcome(plan, Verdict.FITS, Evidence.FORECAST, peak_reserved_bytes=count(plan))


def without_other_libraries(monkeypatch):
    monkeypatch.setattr(probe_trials, "FINDERS", {})


def test_the_grid_has_at_least_sixty_cases_of_four_families_and_both_ladders():
    assert len(CASES) >= 60
    assert {case.workload.family for case in CASES} == {"sd1", "sdxl", "sd3", "flux1"}
    assert {case.ladder for case in CASES} == set(LADDERS)
    assert all(len({c.compute_capability for c in cards}) == 1 for cards in _cards_by_architecture())
    assert QUICK[0].family == "sd1"


def test_a_case_ends_on_the_plan_of_brute_force_with_its_trials_counted(monkeypatch):
    without_other_libraries(monkeypatch)
    for case in CASES:
        result = run_case(case, JOB, Oracle(), lambda plan: count(plan) + 200 * MIB)
        assert result.same_plan
        assert 1 <= result.trials["guided"] <= result.trials["brute_force"]


def test_a_forecast_that_misleads_shows_as_more_trials_and_not_as_another_plan(monkeypatch):
    without_other_libraries(monkeypatch)
    case = next(case for case in CASES if case.card.slug == "rtx-3090-24gb")
    result = run_case(case, JOB, Oracle(), lambda plan: round(1.2 * count(plan)))
    assert result.same_plan
    assert result.trials["guided"] > 1


def test_the_summary_counts_what_was_asked():
    def result(trials, same=True):
        plan = {"batch_size": 1}
        guided = plan if same else {"batch_size": 2}
        return Result("sd1", "card", "classic", guided, plan, {"guided": trials}, {"guided": True})

    told = summarise([result(1), result(2), result(3), result(2, same=False)])
    assert told["cases"] == 4
    assert told["within_two_trials"] == 3
    assert told["same_plan"] == 3
    assert told["mean_trials"] == {"guided": 2}
    assert told["evidence"] == "forecast"


def _cards_by_architecture():
    return [[case.card for case in cases_of(workload)] for workload in GRID]
