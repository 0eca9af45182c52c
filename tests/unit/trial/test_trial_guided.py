"""The guided search settles rungs by forecast, confirms by few trials, and copes with any forecast or none."""

import pytest

from autotune.device.session import Evidence
from autotune.errors import NothingFitsError, WorkerError
from autotune.ladder.ladders import CLASSIC
from autotune.ladder.plan import Plan, Recipe
from autotune.memory.interval import Interval
from autotune.memory.phases import PhasePeak
from autotune.trial.guide import Estimate
from autotune.trial.guided import Foresight, Heard, guided_search
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import Ready, TrialReport
from autotune.trial.search import SearchStep, WarmWorker, search
from autotune.trial.workload import Job
from autotune.units import GIB, MIB

START = Plan.of(batch_size=8, resolution=((512, 512),), gradient_checkpointing=False, network_dim=32)
RECIPE = Recipe(START, 8, floors={"resolution": 448, "network_dim": 16})
ROOM = 9 * GIB


def count(plan: Plan) -> int:
    pixels = sum(width * height for width, height in plan.resolutions)
    return 3 * GIB + plan.batch_size * pixels * (600 if plan.gradient_checkpointing else 5000)


class Card:
    """A worker on a card where every plan takes `factor` of its forecast."""

    budget_bytes = ROOM

    def __init__(self, factor: float = 1.02) -> None:
        self.factor = factor
        self.ready = Ready(Job("job", {}, RECIPE), {"name": "card", "evidence": Evidence.MEASURED}, {})
        self.tried: list[Plan] = []

    def open(self) -> Ready:
        return self.ready

    def close(self) -> None: ...

    def trial(self, plan: Plan, steps: int, lift_budget: bool = False) -> TrialReport:
        self.tried.append(plan)
        need = round(self.factor * count(plan))
        if need > ROOM:
            return TrialReport(Outcome(plan, Verdict.OOM, Evidence.MEASURED), Kind.DEVICE_MEMORY)
        return TrialReport(Outcome(plan, Verdict.FITS, Evidence.MEASURED, peak_reserved_bytes=need, step_ms=9.0))

    def warm(self) -> WarmWorker:
        return WarmWorker(lambda: self)  # type: ignore[arg-type, return-value]


class Forecasts:
    """An oracle that counts exactly, save for plans it can't forecast."""

    def __init__(self, unable: frozenset[Plan] = frozenset(), factor: float = 1.0) -> None:
        self.unable, self.factor = unable, factor

    def estimate(self, plan: Plan) -> Estimate | None:
        if plan in self.unable:
            return None
        counted = round(self.factor * count(plan))
        return Estimate(counted, counted - 100 * MIB, Interval(0, 256 * MIB))

    def outcome(self, plan: Plan) -> Outcome | None:
        if plan in self.unable:
            return None
        peak = round(self.factor * count(plan))
        phases = (PhasePeak("load", peak // 2, peak // 2), PhasePeak("step", peak, peak))
        return Outcome(plan, Verdict.FITS, Evidence.FORECAST, "", "", peak, peak, None, phases)


class Ears:
    def __init__(self) -> None:
        self.trials: list[SearchStep] = []
        self.forecasts: list[SearchStep] = []
        self.notes: list[str] = []
        self.heard = Heard(self.trials.append, self.forecasts.append, self.notes.append)


@pytest.mark.parametrize("factor", [0.99, 1.0, 1.02, 1.05])
def test_few_trials_lead_to_the_plan_of_the_plain_walk(factor: float) -> None:
    plain, guided = Card(factor), Card(factor)
    expected = search(plain.warm(), CLASSIC)
    result = guided_search(guided.warm(), CLASSIC, Foresight(Forecasts(), ROOM))
    assert result.chosen == expected.chosen
    assert result.receipts == expected.receipts
    assert result.outcome == expected.outcome
    assert len(guided.tried) <= 2 < len(plain.tried)


def test_rows_say_which_of_both_they_are_and_forecasts_come_before_the_first_trial() -> None:
    ears, card = Ears(), Card()
    order: list[str] = []
    heard = Heard(
        lambda step: (order.append("trial"), ears.trials.append(step))[-1],
        lambda step: (order.append("forecast"), ears.forecasts.append(step))[-1],
    )
    result = guided_search(card.warm(), CLASSIC, Foresight(Forecasts(), ROOM), heard)
    assert {step.outcome.evidence for step in ears.forecasts} == {Evidence.FORECAST}
    assert {step.outcome.evidence for step in ears.trials} == {Evidence.MEASURED}
    assert result.forecasts == tuple(ears.forecasts)
    assert result.steps == tuple(ears.trials)
    assert order[0] == "forecast"
    assert order.index("trial") == len([one for one in order[: order.index("trial")] if one == "forecast"])
    assert all(step.outcome.step_ms is None for step in ears.forecasts)


def test_a_forecast_row_says_what_it_needs_of_what_there_is_and_where_it_peaks() -> None:
    ears = Ears()
    guided_search(Card().warm(), CLASSIC, Foresight(Forecasts(), ROOM), ears.heard)
    first = ears.forecasts[0].outcome
    assert first.plan == START
    assert first.verdict is Verdict.OOM
    assert first.failed_phase == "step"
    assert first.reason.endswith("or more of 9,216 MiB")
    assert first.peak_reserved_bytes == count(START)


def test_the_first_measurement_is_told_beside_its_forecast() -> None:
    ears = Ears()
    guided_search(Card(1.02).warm(), CLASSIC, Foresight(Forecasts(), ROOM), ears.heard)
    assert "ratio 1.020" in ears.notes[0]


def test_a_forecast_that_is_far_off_is_dropped_with_a_word_and_costs_one_trial() -> None:
    ears, plain, card = Ears(), Card(0.5), Card(0.5)
    expected = search(plain.warm(), CLASSIC)
    result = guided_search(card.warm(), CLASSIC, Foresight(Forecasts(), ROOM), ears.heard)
    assert result.chosen == expected.chosen == START
    assert len(card.tried) == 2
    assert "too far apart" in ears.notes[0]


def test_a_plan_without_a_forecast_is_tried() -> None:
    unable = frozenset({START})
    card = Card()
    result = guided_search(card.warm(), CLASSIC, Foresight(Forecasts(unable), ROOM))
    assert card.tried[0] == START
    assert result.chosen == search(Card().warm(), CLASSIC).chosen


def test_without_any_forecast_it_is_the_plain_walk() -> None:
    class Blind(Forecasts):
        def estimate(self, plan: Plan) -> Estimate | None:
            return None

        def outcome(self, plan: Plan) -> Outcome | None:
            return None

    plain, card = Card(), Card()
    expected = search(plain.warm(), CLASSIC)
    result = guided_search(card.warm(), CLASSIC, Foresight(Blind(), ROOM))
    assert card.tried == plain.tried
    assert result == expected


def test_nothing_fits_is_confirmed_by_one_trial_of_the_last_rung() -> None:
    card = Card(3.0)
    with pytest.raises(NothingFitsError, match="nothing fits the budget of 9,216 MiB on card"):
        guided_search(card.warm(), CLASSIC, Foresight(Forecasts(factor=3.0), ROOM))
    assert card.tried == [list(CLASSIC.rungs(RECIPE))[-1].plan]


def test_a_crash_of_the_real_trial_is_told_as_what_it_is() -> None:
    class Crashing(Card):
        def trial(self, plan: Plan, steps: int, lift_budget: bool = False) -> TrialReport:
            return TrialReport(
                Outcome(plan, Verdict.CRASHED, Evidence.MEASURED, "ValueError: bad rank"), Kind.OTHER
            )

    with pytest.raises(WorkerError, match="bad rank"):
        guided_search(Crashing().warm(), CLASSIC, Foresight(Forecasts(), ROOM))
