"""Probe: walk the ladder with real trials, and keep what was learned as a profile."""

from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.controller.events import FittedEvent, JobEvent, NoteEvent, ProfileEvent, TrialEvent
from autotune.controller.task import Task, Tell, card_of, read_device, warm_worker
from autotune.device.probe import DeviceReading
from autotune.ladder.receipts import render_receipts
from autotune.profile.build import check_job, profile_from
from autotune.store.store import Reference
from autotune.trial.protocol import Ready
from autotune.trial.search import SearchResult, SearchStep, WarmWorker, search


@dataclass(frozen=True)
class Probed:
    """What a probe found: the device, the worker's facts, the trials with the chosen plan, the profile."""

    reading: DeviceReading
    ready: Ready
    result: SearchResult
    profile: Reference


def probe(task: Task, tell: Tell) -> Probed:
    """Find the plan that fits the task's device and keep the profile. Raises AutotuneError."""
    reading = read_device(task, tell)
    with warm_worker(task, reading, tell) as warm:
        ready = open_job(task, warm, tell)
        result, reference = search_and_keep(task, reading, warm, tell)
        return Probed(reading, ready, result, reference)


def open_job(task: Task, warm: WarmWorker, tell: Tell) -> Ready:
    """Start the worker and tell what it made. Raises what the workload raises, before any trial."""
    ready = warm.ready
    check_job(ready.job)
    tell(JobEvent(ready))
    for note in task.ladder.notes(ready.job.recipe):
        tell(NoteEvent(note))
    return ready


def search_and_keep(
    task: Task, reading: DeviceReading, warm: WarmWorker, tell: Tell
) -> tuple[SearchResult, Reference]:
    """The walk, told trial by trial, and its profile in the store, confirmed for this machine."""
    taken: list[SearchStep] = []

    def on_step(step: SearchStep) -> None:
        taken.append(step)
        tell(TrialEvent(len(taken), step))

    ready = warm.ready
    result = search(warm, task.ladder, on_step)
    receipts = render_receipts(ready.job.recipe, result.chosen, ready.job.network_alpha)
    tell(FittedEvent(result.chosen, receipts))
    return result, _keep(task, reading, ready, result, tell)


def _keep(task: Task, reading: DeviceReading, ready: Ready, result: SearchResult, tell: Tell) -> Reference:
    profile = profile_from(
        ready.job,
        [step.outcome for step in result.steps],
        result.chosen,
        card_of(reading),
        evidence=ready.evidence,
        versions={**ready.versions, **_driver_versions(reading, ready)},
        ladder=task.ladder,
        budget_bytes=reading.budget.bytes,
        created=datetime.now(UTC).date(),
    )
    reference = task.store.put(profile)
    tell(ProfileEvent(reference.digest, reference.location, "written"))
    try:
        task.confirmations.confirm(reference.digest)
    except OSError as error:
        tell(NoteEvent(f"this machine can't remember that it confirmed the profile: {error}"))
    return reference


def _driver_versions(reading: DeviceReading, ready: Ready) -> dict[str, str]:
    found = {"driver": reading.driver_version, "cuda_driver": ready.device.get("cuda_driver")}
    return {name: str(version) for name, version in found.items() if version}
