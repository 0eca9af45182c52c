"""Probe: walk the ladder, by forecasts and by trials, and keep what was learned as a profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.controller.events import FittedEvent, JobEvent, NoteEvent, ProfileEvent, TrialEvent
from autotune.controller.foresight import estimate_of, foresee
from autotune.controller.task import Task, Tell, card_of, read_device, warm_worker
from autotune.device.probe import DeviceReading
from autotune.device.session import Evidence
from autotune.errors import AutotuneError, DiskError, ProfileError
from autotune.ladder.receipts import render_receipts
from autotune.profile.build import check_job, profile_from
from autotune.profile.schema import Profile
from autotune.store.store import Reference
from autotune.trial.guided import Heard, guided_search
from autotune.trial.outcome import Outcome
from autotune.trial.protocol import Ready
from autotune.trial.search import SearchResult, SearchStep, WarmWorker, search
from autotune.units import format_mib


@dataclass(frozen=True)
class Kept:
    """Where a walk's profile went, or why it could not be kept, which is no reason to lose what was found."""

    reference: Reference | None
    error: AutotuneError | None = None


@dataclass(frozen=True)
class Probed:
    """What a probe found: the device, the worker's facts, the trials with the chosen plan, the profile."""

    reading: DeviceReading
    ready: Ready
    result: SearchResult
    profile: Kept


def probe(task: Task, tell: Tell) -> Probed:
    """Find the plan that fits the task's device and keep the profile. Raises AutotuneError.

    A store that will refuse the profile says so before any trial.
    """
    task.store.check(task.device.evidence)
    reading = read_device(task, tell)
    with warm_worker(task, reading, tell) as warm:
        ready = open_job(task, warm, tell)
        result, kept = search_and_keep(task, reading, warm, tell)
        return Probed(reading, ready, result, kept)


def open_job(task: Task, warm: WarmWorker, tell: Tell) -> Ready:
    """Start the worker and tell what it made. Raises what the workload raises, before any trial."""
    ready = warm.ready
    check_job(ready.job)
    tell(JobEvent(ready))
    for note in task.ladder.notes(ready.job.recipe):
        tell(NoteEvent(note))
    return ready


def search_and_keep(task: Task, reading: DeviceReading, warm: WarmWorker, tell: Tell) -> tuple[SearchResult, Kept]:
    """The walk, told row by row, and its profile in the store, confirmed for this machine."""
    ready = warm.ready
    result, forecast_versions = _search(task, reading, warm, tell)
    receipts = render_receipts(ready.job.recipe, result.chosen, ready.job.network_alpha)
    tell(FittedEvent(result.chosen, receipts))
    try:
        reference = task.store.put(_profile_of(task, reading, ready, result, forecast_versions))
    except (ProfileError, DiskError) as error:
        return result, Kept(None, error)
    tell(ProfileEvent(reference.digest, reference.location, "written"))
    remember_confirmed(task, reference.digest, tell)
    return result, Kept(reference)


def remember_confirmed(task: Task, digest: str, tell: Tell) -> None:
    """Note that this machine has seen the profile's plan fit; where that can't be kept, later runs try it anew."""
    try:
        task.confirmations.confirm(digest)
    except DiskError as error:
        tell(NoteEvent(f"this machine can't remember that it confirmed the profile: {error}"))


def _search(
    task: Task, reading: DeviceReading, warm: WarmWorker, tell: Tell
) -> tuple[SearchResult, Mapping[str, str] | None]:
    """The walk, guided by forecasts where they can be had, and the versions those were made with."""
    told: list[SearchStep] = []

    def on_row(step: SearchStep) -> None:
        told.append(step)
        tell(TrialEvent(len(told), step))

    with foresee(task, reading, warm.ready, tell) as known:
        if known is None:
            result = search(warm, task.ladder, on_row)
            if warm.ready.evidence is Evidence.FORECAST:
                tell(NoteEvent(_unseen(result.outcome)))
            return result, None
        foresight, null = known
        heard = Heard(on_row, on_row, lambda line: tell(NoteEvent(line, "learned")))
        return guided_search(warm, task.ladder, foresight, heard), null.versions


def _unseen(outcome: Outcome) -> str:
    more = estimate_of(outcome).unseen.high_bytes
    return (
        "a null GPU can't see the scratch memory of NVIDIA's libraries: on the card the chosen plan may need up "
        f"to {format_mib(more)} more"
    )


def _profile_of(
    task: Task,
    reading: DeviceReading,
    ready: Ready,
    result: SearchResult,
    forecast_versions: Mapping[str, str] | None,
) -> Profile:
    return profile_from(
        ready.job,
        [step.outcome for step in (*result.forecasts, *result.steps)],
        result.chosen,
        card_of(reading, ready),
        evidence=ready.evidence,
        versions={**ready.versions, **_driver_versions(reading, ready)},
        ladder=task.ladder,
        budget_bytes=reading.budget.bytes,
        created=datetime.now(UTC).date(),
        forecast_versions=forecast_versions,
    )


def _driver_versions(reading: DeviceReading, ready: Ready) -> dict[str, str]:
    found = {"driver": reading.driver_version, "cuda_driver": ready.device.get("cuda_driver")}
    return {name: str(version) for name, version in found.items() if version}
