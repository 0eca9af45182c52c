"""Train: the plan from a profile (confirmed by one trial) or a probe, then the full run, in one worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.controller.events import FittedEvent, NoteEvent, ProfileEvent, TrialEvent
from autotune.controller.probe import open_job, remember_confirmed, search_and_keep
from autotune.controller.task import Task, Tell, card_of, read_device, warm_worker
from autotune.device.probe import DeviceReading
from autotune.errors import OutOfDeviceMemory, ProfileError
from autotune.ladder.plan import Plan
from autotune.ladder.receipts import render_receipts
from autotune.ladder.walk import Direction, Step
from autotune.profile.matching import find_match
from autotune.profile.schema import Profile
from autotune.trial.search import SearchStep, WarmWorker, describe_plan, try_plan
from autotune.units import format_mib


@dataclass(frozen=True)
class Trained:
    """What a run left: the plan it used and the workload's own summary (files, steps, ...)."""

    plan: Plan
    summary: Mapping[str, Any]


def train(task: Task, tell: Tell, *, fit: bool) -> Trained:
    """Run the task's workload: as its recipe says, or with `fit` under the plan that fits the device.

    Raises OutOfDeviceMemory when the run is too large all the same, with what to do; any other AutotuneError
    as it comes.
    """
    if fit:
        task.store.check(task.device.evidence)
    reading = read_device(task, tell)
    with warm_worker(task, reading, tell) as warm:
        ready = open_job(task, warm, tell)
        plan = _fitted_plan(task, reading, warm, tell) if fit else ready.job.recipe.plan
        try:
            return Trained(plan, warm.worker.run(plan))
        except OutOfDeviceMemory as error:
            raise _in_context(error, task, reading, plan, fit) from None


def _in_context(
    error: OutOfDeviceMemory, task: Task, reading: DeviceReading, plan: Plan, fit: bool
) -> OutOfDeviceMemory:
    """`error` with what ran out of what, and what to do about it."""
    knobs = dict.fromkeys(stage.knob for stage in task.ladder.stages if stage.knob in plan)
    advice = (
        "Its trial had fitted, so something else took memory: run again, or leave more room with a lower "
        f"--vram-limit than {format_mib(reading.budget.bytes)}."
        if fit
        else "Run the same command with --fit-vram: by short trials it steps down "
        f"{', '.join(knobs)} until a plan fits, and trains that."
    )
    told = OutOfDeviceMemory(f"{describe_plan(plan)} does not fit {reading.name}: {error.fact}", advice)
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def _fitted_plan(task: Task, reading: DeviceReading, warm: WarmWorker, tell: Tell) -> Plan:
    profile = _matching_profile(task, reading, warm, tell)
    if profile is not None and _confirmed(task, profile, warm, tell):
        job = warm.ready.job
        plan = _in_order_of(job.recipe.plan, profile.chosen_plan)
        tell(FittedEvent(plan, render_receipts(job.recipe, plan, job.network_alpha)))
        return plan
    result, kept = search_and_keep(task, reading, warm, tell)
    if kept.error is not None:
        tell(NoteEvent(f"the profile is not kept, so the next run walks again: {kept.error}"))
    return result.chosen


def _matching_profile(task: Task, reading: DeviceReading, warm: WarmWorker, tell: Tell) -> Profile | None:
    ready = warm.ready
    card = card_of(reading, ready)
    try:
        listing = task.store.find(card.name)
    except ProfileError as error:
        tell(NoteEvent(f"profiles can't be read: {error}"))
        return None
    for note in listing.notes:
        tell(NoteEvent(note))
    match = find_match(listing.profiles, card, ready.job, task.ladder, ready.evidence, reading.budget.bytes)
    if match.profile is None:
        tell(NoteEvent(f"{match.why}, so the ladder is walked"))
        return None
    location = next(ref.location for ref, profile in listing.entries if profile == match.profile)
    tell(ProfileEvent(match.profile.digest, location, "used"))
    return match.profile


def _confirmed(task: Task, profile: Profile, warm: WarmWorker, tell: Tell) -> bool:
    """Whether the profile's plan fits here: this machine has seen it do so, or does now in one trial."""
    if task.confirmations.is_confirmed(profile.digest):
        tell(NoteEvent("this machine has confirmed that profile before, so no trial is needed"))
        return True
    plan = _in_order_of(warm.ready.job.recipe.plan, profile.chosen_plan)
    report = try_plan(warm, plan)
    tell(TrialEvent(1, SearchStep(Step(plan, None, Direction.START), report)))
    if report.outcome.fits:
        remember_confirmed(task, profile.digest, tell)
        return True
    tell(NoteEvent("the profile's plan does not fit here, so the ladder is walked from the top"))
    return False


def _in_order_of(model: Plan, plan: Plan) -> Plan:
    """`plan` with its knobs in the order of `model`: canonical JSON has sorted them."""
    return Plan(tuple((knob, plan[knob]) for knob in model))
