"""Probing keeps what it learned; training trusts a profile only as far as this machine has seen it hold."""

import pytest

from autotune.controller.events import FittedEvent, NoteEvent, ProfileEvent, TrialEvent
from autotune.controller.probe import probe
from autotune.controller.train import train
from autotune.errors import NothingFitsError, OutOfDeviceMemory

HALF_BATCH = 2


def kinds(events):
    return [type(event) for event in events]


def test_a_probe_keeps_a_profile_and_confirms_it_for_this_machine(machine, make_task, tell, events):
    task = make_task()
    probed = probe(task, tell)
    assert probed.result.chosen.batch_size == HALF_BATCH
    stored = task.store.list().profiles
    assert [profile.chosen_plan for profile in stored] == [probed.result.chosen]
    assert task.confirmations.is_confirmed(stored[0].digest)
    assert machine.opened == machine.closed == 1


def test_every_trial_is_told_then_the_receipts_then_the_profile(machine, make_task, tell, events):
    probe(make_task(), tell)
    told = [event for event in events if isinstance(event, TrialEvent | FittedEvent | ProfileEvent)]
    assert [event.number for event in told[: len(machine.tried)]] == list(range(1, len(machine.tried) + 1))
    assert kinds(told[len(machine.tried) :]) == [FittedEvent, ProfileEvent]
    receipts = told[-2].receipts
    assert receipts[0].startswith("batch_size 4 -> 2")
    assert "alpha/dim 0.5" in receipts[-1]


def test_training_walks_once_and_the_next_run_needs_no_trial(machine, make_task, tell):
    first = train(make_task(), tell, fit=True)
    assert machine.ran == [first.plan]
    machine.tried.clear()
    second = train(make_task(), tell, fit=True)
    assert machine.tried == []
    assert second.plan == first.plan
    assert list(second.plan) == ["batch_size", "resolution", "gradient_checkpointing", "network_dim"]


def test_another_machine_confirms_the_profile_with_one_trial(machine, make_task, tell):
    chosen = train(make_task(), tell, fit=True).plan
    machine.tried.clear()
    elsewhere = make_task("another-state")
    assert train(elsewhere, tell, fit=True).plan == chosen
    assert machine.tried == [chosen]
    assert elsewhere.confirmations.is_confirmed(elsewhere.store.list().profiles[0].digest)


def test_a_profile_that_does_not_hold_costs_one_trial_and_then_the_ladder_is_walked(machine, make_task, tell):
    train(make_task(), tell, fit=True)
    machine.tried.clear()
    machine.fits = lambda plan: plan.batch_size == 1
    assert train(make_task("another-state"), tell, fit=True).plan.batch_size == 1
    assert machine.tried[0].batch_size == HALF_BATCH


def test_a_broken_profile_is_named_and_passed_over(machine, make_task, tell, events, tmp_path):
    folder = tmp_path / "profiles" / "virtual-100mib"
    folder.mkdir(parents=True)
    (folder / "old.json").write_text('{"schema_version": 99}')
    train(make_task(), tell, fit=True)
    notes = [event.text for event in events if isinstance(event, NoteEvent)]
    assert any("old.json" in note and "99" in note for note in notes)
    assert (folder / "old.json").read_text() == '{"schema_version": 99}'


def test_an_unfitted_run_that_is_too_large_says_what_fitting_would_do(machine, make_task, tell):
    with pytest.raises(OutOfDeviceMemory, match="--fit-vram") as caught:
        train(make_task(), tell, fit=False)
    assert machine.tried == []
    assert "In the worker" in caught.value.__notes__[0]
    assert machine.opened == machine.closed


def test_nothing_fits_is_an_error_and_leaves_no_profile(machine, make_task, tell):
    machine.fits = lambda plan: False
    task = make_task()
    with pytest.raises(NothingFitsError):
        probe(task, tell)
    assert task.store.list().profiles == ()
    assert machine.opened == machine.closed
