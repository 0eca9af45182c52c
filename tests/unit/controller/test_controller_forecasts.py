"""Forecasts and what `plan` makes of them: each plan tried once, one worker per capability, none for the cache."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.controller import forecast as forecast_module
from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.forecast_cache import ForecastCache
from autotune.controller.plan import Asked, Planned, frontier_sides, plan_job, planned_json, single_steps
from autotune.device.null.card import NullCard
from autotune.errors import AutotuneError, ConfigError, DeviceError, OutOfDeviceMemory
from autotune.memory.forecast import FitVerdict
from autotune.testing.null_workers import JOB, START, NullWorkers, crashed, out_of_memory, step_bytes
from autotune.units import MIB

AMPERE = Architecture((8, 6), 28)
CARDS = tuple(map(NullCard.parse, ("rtx-4090-24gb", "rtx-3060-12gb", "2GiB@8.6", "rtx-4070-12gb")))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[NullWorkers]:
    """Scripted workers; every one that opened must be closed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(forecast_module, "null_environment", lambda cards: {})
    workers = NullWorkers()
    yield workers
    assert workers.closed == len(workers.devices)


def forecaster(workers: NullWorkers, architecture: Architecture = AMPERE, key: str | None = None) -> Forecaster:
    return Forecaster("a:b", {}, architecture, ForecastCache.load(key), make=workers)  # type: ignore[arg-type]


def planned_of(workers: NullWorkers, asked: Asked) -> Planned:
    return plan_job(asked, lambda architecture: forecaster(workers, architecture))


def test_a_plan_is_tried_once(workers: NullWorkers) -> None:
    with forecaster(workers) as one:
        assert one.forecast(START) == one.forecast(START)
        assert one.account(START) == one.account(START)
    assert workers.opened == 1
    assert workers.tried == [(START, True), (START, True)]  # the account needs a recorded one


def test_nothing_starts_before_a_question(workers: NullWorkers) -> None:
    with forecaster(workers):
        pass
    assert workers.opened == 0


def test_the_second_process_answers_from_the_cache(workers: NullWorkers) -> None:
    with forecaster(workers, key="key") as one:
        first = (one.forecast(START), one.account(START), one.batch_need_bytes(START.replace("batch_size", 3)))
    tried = len(workers.tried)
    with forecaster(workers, key="key") as other:
        assert other.job == JOB
        again = (other.forecast(START), other.account(START))
        assert (*again, other.batch_need_bytes(START.replace("batch_size", 3))) == first
    assert (workers.opened, len(workers.tried)) == (1, tried)


def test_a_snapshot_is_written_even_if_the_account_is_known(workers: NullWorkers, tmp_path: Path) -> None:
    with forecaster(workers) as one:
        one.account(START)
        one.account(START, tmp_path / "s.pickle")
    assert (tmp_path / "s.pickle").exists()


def test_a_batch_is_tried_up_to_its_steps_and_never_taken_for_a_whole_trial(workers: NullWorkers) -> None:
    plan = START.replace("batch_size", 4)
    with forecaster(workers) as one:
        assert one.batch_need_bytes(plan) >= step_bytes(plan)
        assert [phase.phase for phase in one.forecast(plan).phases] == ["load", "step", "save"]
    assert (plan, False) in workers.tried
    assert (plan, True) in workers.tried


def test_a_failed_trial_is_one_sentence_and_leaves_no_worker(workers: NullWorkers) -> None:
    workers.change = crashed
    with forecaster(workers, key="key") as one:
        with pytest.raises(DeviceError, match=r"^no forecast: a kernel is missing\. Use --debug"):
            one.forecast(START)
        assert workers.closed == 1
        workers.change = lambda report: report
        assert one.forecast(START).counted_bytes == step_bytes(START) + 10 * MIB
    assert workers.opened == 2


def test_a_plan_no_card_can_hold_says_so(workers: NullWorkers) -> None:
    workers.change = out_of_memory
    with forecaster(workers) as one, pytest.raises(OutOfDeviceMemory, match="more than 4,096 GiB"):
        one.forecast(START)


def test_a_job_that_can_t_be_made_leaves_no_worker(workers: NullWorkers) -> None:
    workers.fault = ConfigError("resolution can't be 3.")
    with pytest.raises(ConfigError, match="can't be 3"), forecaster(workers) as one:
        assert one.job


def test_what_was_forecast_before_an_error_is_kept(workers: NullWorkers) -> None:
    with forecaster(workers, key="key") as one:
        one.forecast(START)
        workers.change = crashed
        with pytest.raises(AutotuneError):
            one.forecast(START.replace("batch_size", 2))
    assert list(ForecastCache.load("key").outcomes) == [START]


def test_cards_come_in_the_order_they_were_asked(workers: NullWorkers) -> None:
    planned = planned_of(workers, Asked((*CARDS, CARDS[0])))
    assert [row.card.slug for row in planned.rows] == [card.slug for card in (*CARDS, CARDS[0])]
    assert [row.verdict for row in planned.rows] == [
        FitVerdict.FITS, FitVerdict.FITS, FitVerdict.NO, FitVerdict.FITS, FitVerdict.FITS,
    ]  # fmt: skip


def test_cards_of_one_capability_share_a_worker(workers: NullWorkers) -> None:
    planned_of(workers, Asked(CARDS))
    assert sorted(workers.devices) == ["null:4096GiB@8.6", "null:4096GiB@8.9"]


def test_the_largest_batches_fit_and_the_next_do_not(workers: NullWorkers) -> None:
    for row in planned_of(workers, Asked(CARDS)).rows:
        for checkpointing, largest in zip((False, True), row.largest, strict=True):
            assert largest is not None
            kind = START.replace("gradient_checkpointing", checkpointing)
            room = row.card.total_bytes - row.card.context_high_bytes
            needs = [1.02 * (step_bytes(kind.replace("batch_size", b)) + 10 * MIB) for b in range(1, 65)]
            assert largest == sum(need <= room for need in needs)


def test_savings_are_one_step_each_and_their_difference_at_the_peak(workers: NullWorkers) -> None:
    planned = planned_of(workers, Asked(CARDS[:1], largest_batches=False))
    assert [saving.change for saving in planned.savings] == single_steps(JOB.recipe)
    assert {saving.change.knob for saving in planned.savings} == {
        "resolution", "gradient_checkpointing", "network_dim",
    }  # fmt: skip
    for saving in planned.savings:
        after = START.replace(saving.change.knob, saving.change.after)
        assert saving.saved_bytes == step_bytes(START) - step_bytes(after)


def test_the_frontier_has_a_curve_for_each_card_with_and_without_checkpointing(workers: NullWorkers) -> None:
    planned = planned_of(workers, Asked(CARDS[:2], frontier=True))
    assert {(curve.card.slug, curve.checkpointing) for curve in planned.curves} == {
        (card.slug, on) for card in CARDS[:2] for on in (True, False)
    }
    for curve in planned.curves:
        assert tuple(side for side, _ in curve.points) == frontier_sides(START, 256)
        batches = [batch for _, batch in curve.points]
        assert batches == sorted(batches, reverse=True)


@pytest.mark.parametrize(
    ("side", "floor", "sides"), [(512, 256, (256, 320, 384, 448, 512)), (512, 512, (512,)), (320, 256, (256, 320))]
)
def test_frontier_sides_run_from_the_floor_to_the_plan(side: int, floor: int, sides: tuple[int, ...]) -> None:
    assert frontier_sides(START.replace("resolution", ((side, side),)), floor) == sides


def test_what_json_prints_is_strict_and_whole(workers: NullWorkers, tmp_path: Path) -> None:
    planned = planned_of(workers, Asked(CARDS, frontier=True, snapshot=tmp_path / "s.pickle"))
    read = json.loads(json.dumps(planned_json(planned), allow_nan=False))
    assert read["evidence"] == "forecast"
    assert [card["verdict"] for card in read["cards"]] == [row.verdict.value for row in planned.rows]
    for card, row in zip(read["cards"], planned.rows, strict=True):
        assert card["need_bytes"] == {"low": row.need.low_bytes, "high": row.need.high_bytes}
        assert card["largest_batch"]["with_checkpointing"] == row.largest[1]
    assert {saving["knob"] for saving in read["savings"]} == {s.change.knob for s in planned.savings}
    assert len(read["frontier"]) == 8
    assert read["notes"] == ["a note"]
