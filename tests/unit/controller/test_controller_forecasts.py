"""Forecasts and what `plan` makes of them: each plan tried once, one worker per capability, none for the cache."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.controller import forecast as forecast_module
from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.forecast_cache import ForecastCache
from autotune.controller.plan import Asked, Planned, frontier_sides, plan_job, planned_json, single_steps
from autotune.device.null.card import NullCard
from autotune.errors import AutotuneError, ConfigError, DeviceError, OutOfDeviceMemory
from autotune.memory.forecast import FitVerdict, Forecast, Squeeze
from autotune.testing.null_workers import JOB, START, NullWorkers, crashed, out_of_memory, step_bytes
from autotune.trial.protocol import TrialReport
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


def forecaster(
    scripted: NullWorkers, architecture: Architecture = AMPERE, key: str | None = None, workers: int = 1
) -> Forecaster:
    cache = ForecastCache.load(key)
    return Forecaster("a:b", {}, architecture, cache, make=scripted, workers=workers)  # type: ignore[arg-type]


def planned_of(workers: NullWorkers, asked: Asked) -> Planned:
    return plan_job(asked, lambda architecture: forecaster(workers, architecture))


def test_a_plan_is_tried_once(workers: NullWorkers) -> None:
    with forecaster(workers) as one:
        assert one.forecast(START) == one.forecast(START)
        assert one.account(START) == one.account(START)
    assert workers.opened == 1
    assert workers.tried == [(START, True), (START, True)]  # the account needs a recorded one


def test_a_recorded_trial_is_a_forecast_too(workers: NullWorkers) -> None:
    with forecaster(workers) as one:
        assert one.account(START) is not None
        assert one.forecast(START).counted_bytes == step_bytes(START) + 10 * MIB
    assert len(workers.tried) == 1


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


@pytest.mark.parametrize(
    ("beside_bytes", "verdict", "why"),
    [
        (5000 * MIB, FitVerdict.FITS, ""),
        (10 * MIB, FitVerdict.CLOSE, "small CUDA context"),
        (9 * MIB, FitVerdict.CLOSE, "at best it runs while the allocator gives its cache back"),
        (4 * MIB, FitVerdict.CLOSE, "at best it runs while the allocator gives its cache back"),
        (3 * MIB, FitVerdict.NO, "even with all its cache given back it runs out of memory"),
        (-1, FitVerdict.NO, ""),
    ],
)
def test_near_the_limit_the_allocator_itself_is_asked_in_the_room_there_is(
    workers: NullWorkers, beside_bytes: int, verdict: FitVerdict, why: str
) -> None:
    card = CARDS[2]
    card = card.resized(step_bytes(START) + card.context_low_bytes + beside_bytes)
    (row,) = planned_of(workers, Asked((card,), largest_batches=False)).rows
    assert row.verdict is verdict
    assert why in row.reason
    assert bool(row.reason) == bool(why)
    assert bool(workers.squeezed) == bool(why)
    assert all(plan == START for plan, _ in workers.squeezed)


@pytest.mark.parametrize(
    ("more_mib", "knob"),
    [(5000, None), (0, "gradient_checkpointing"), (-300, "gradient_checkpointing"), (-700, None), (-2000, None)],
)
def test_the_step_that_is_enough_is_the_one_that_costs_least(
    workers: NullWorkers, more_mib: int, knob: str | None
) -> None:
    card = CARDS[2]
    card = card.resized(step_bytes(START) + card.context_high_bytes + more_mib * MIB)
    (row,) = planned_of(workers, Asked((card,), largest_batches=False)).rows
    assert (row.enough and row.enough.knob) == knob
    if row.enough:
        lower = START.replace(row.enough.knob, row.enough.after)
        assert 1.02 * (step_bytes(lower) + 10 * MIB) + card.context_high_bytes <= card.total_bytes


def test_every_group_of_cards_with_one_that_fails_knows_what_is_enough(workers: NullWorkers) -> None:
    tight = tuple(NullCard.parse(f"{(step_bytes(START) + 100 * MIB) // MIB}MiB@{cc}") for cc in ("8.6", "8.9"))
    rows = planned_of(workers, Asked(tight)).rows
    assert [row.enough and row.enough.knob for row in rows] == ["gradient_checkpointing"] * 2


def test_a_squeezed_plan_is_tried_once_and_kept(workers: NullWorkers) -> None:
    room = step_bytes(START) + 5 * MIB
    with forecaster(workers, key="key") as one:
        assert one.squeeze(START, room) is one.squeeze(START, room) is Squeeze.RETRIES
    with forecaster(workers, key="key") as other:
        assert other.squeeze(START, room) is Squeeze.RETRIES
        assert other.squeeze(START, 0) is Squeeze.FAILS
    assert workers.squeezed == [(START, room)]


def test_a_crash_in_a_small_room_is_no_verdict(workers: NullWorkers) -> None:
    workers.change = crashed
    with forecaster(workers) as one, pytest.raises(DeviceError, match="no forecast: a kernel is missing"):
        one.squeeze(START, MIB)


def test_two_workers_find_what_one_finds(workers: NullWorkers) -> None:
    asked = Asked(tuple(NullCard.parse(f"{size}GiB@8.6") for size in range(2, 40, 3)), frontier=True)
    one = planned_of(workers, asked)
    two = plan_job(asked, lambda architecture: forecaster(workers, architecture, workers=2))
    assert planned_json(two) == planned_json(one)
    assert workers.opened <= 3


def test_what_two_threads_ask_at_once_is_tried_once(workers: NullWorkers) -> None:
    asking = threading.Event()
    answers: list[Forecast] = []

    def ask_too() -> None:
        asking.set()
        answers.append(one.forecast(START))

    def meanwhile(report: TrialReport) -> TrialReport:
        other.start()
        assert asking.wait(60)
        return report

    other = threading.Thread(target=ask_too)
    workers.change = meanwhile
    with forecaster(workers) as one:
        answers.append(one.forecast(START))
        other.join()
    assert answers[0] == answers[1]
    assert len(workers.tried) == 1


def test_an_account_that_torch_can_t_give_is_not_asked_for_again(workers: NullWorkers) -> None:
    workers.change = lambda report: replace(report, account=None)
    for _ in range(2):
        with forecaster(workers, key="key") as one:
            assert one.account(START) is None
    assert len(workers.tried) == 1


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
