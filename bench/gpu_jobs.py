"""Parts of the GPU check that run the product as a user would: ladder walks under a limit, and training runs.

Owns the small jobs (configs in the check's own folder) and what must hold of them. The card belongs to the
workers that these jobs start; this process only asks. Must never touch a user's profiles or outputs.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.controller.events import Event, NoteEvent, TrialEvent, WorkerEvent
from autotune.controller.probe import Probed, probe
from autotune.controller.task import Task
from autotune.controller.train import train
from autotune.device.session import DeviceSpec, Evidence
from autotune.ladder.ladders import CLASSIC
from autotune.ladder.plan import BATCH_SIZE, Plan, Recipe
from autotune.ladder.walk import Walk
from autotune.posix import read_available_bytes
from autotune.store.confirmations import Confirmations
from autotune.store.directory import DirectoryStore
from autotune.testing.photos import write_demo_dataset
from autotune.trial.client import Worker
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.process import Launch
from autotune.trial.protocol import STEPS_TO_FIT, TrialReport
from autotune.units import GIB, MIB, format_mib
from bench.findings import Findings, Skipped

TRAINER = "trainer.workload:create"
SPARE_BYTES = 200 * MIB  # what the context may be off by, so that a limit still falls between two plans
FULL_SIZE_DISK_BYTES = 4 * GIB
FULL_SIZE_HOST_BYTES = 8 * GIB
HANG_AFTER_S = 90.0


@dataclass(frozen=True)
class Job:
    """A LoRA job in the check's folder: `base` is its model's folder, `batch_size` its recipe's."""

    folder: Path
    base: Path
    batch_size: int
    steps: int = 8
    pixels: int = 512
    precision: str = "fp16"
    spare_bytes: int = SPARE_BYTES

    @property
    def config(self) -> dict[str, Any]:
        """What the trainer's factory gets."""
        return {"configs": [str(self._write())], "set": []}

    @property
    def output(self) -> Path:
        """Where the job's LoRA goes."""
        return self.folder / "output"

    def _write(self) -> Path:
        path = self.folder / f"{self.base.name}.toml"
        path.write_text(
            f"pretrained_model_name_or_path = {str(self.base)!r}\n"
            f"train_data_dir = {str(self.folder / 'photos')!r}\n"
            f"output_dir = {str(self.output)!r}\n"
            f"logging_dir = {str(self.folder / 'logs')!r}\n"
            f"output_name = '{self.base.name}'\n"
            f"train_batch_size = {self.batch_size}\n"
            f"max_train_steps = {self.steps}\n"
            f"resolution = {self.pixels}\n"
            f"mixed_precision = '{self.precision}'\n"
            "learning_rate = 1e-3\n"
            "network_dim = 16\nnetwork_alpha = 16\nsample_steps = 4\n",
            "utf-8",
        )
        return path


def tiny_job(folder: Path) -> Job:
    """The tiny SD 1.x model on the demo photographs; batch 16, so that the batch alone has several rungs."""
    from autotune.testing.tiny import make_tiny

    return Job(folder, _base(folder / "tiny", make_tiny), batch_size=16)


def full_job(folder: Path) -> Job:
    """SD 1.5 at its real size with random weights in fp16 (2 GB). Raises Skipped without room for it."""
    import torch

    from autotune.testing.tiny import make_full_size

    disk, host = shutil.disk_usage(folder).free, read_available_bytes()
    if disk < FULL_SIZE_DISK_BYTES or (host is not None and host < FULL_SIZE_HOST_BYTES):
        raise Skipped(
            f"too little room for 2 GB of weights: {format_mib(disk)} on disk, {format_mib(host or 0)} in RAM"
        )
    base = _base(folder / "full", lambda path: make_full_size(path, "sd1", torch.float16))
    return Job(folder, base, batch_size=4)


def check_worker(spec: DeviceSpec, job: Job, context_bytes: int, found: Findings) -> None:
    """A worker meets an out-of-memory in a trial, proves its baseline, and goes on with a smaller plan."""
    needs = measure_needs(spec, job, count=3, context_bytes=context_bytes, found=found)
    limit, place = limit_between(needs, context_bytes, job.spare_bytes)
    found.note(limit_bytes=limit)
    with Worker(TRAINER, job.config, spec, limit, _launch(job)) as worker:
        pid = worker.pid
        reports = [worker.trial(plan, STEPS_TO_FIT) for plan, _ in needs[: place + 1]]
        same = worker.pid == pid
    failed, fitting = reports[0], reports[-1]
    found.note(reason=failed.outcome.reason, failed_phase=failed.outcome.failed_phase)
    found.check("the first plan runs out of memory", failed.outcome.verdict is Verdict.OOM, _words(failed))
    found.check("it is recognised as device memory", failed.kind is Kind.DEVICE_MEMORY, str(failed.kind))
    found.check("the worker is at its baseline again", failed.clean, format_mib(failed.leftover_bytes))
    found.check("it may go on", failed.reusable and same)
    found.check("a smaller plan then fits in the same process", fitting.outcome.fits and same, _words(fitting))


def check_walk(spec: DeviceSpec, job: Job, context_bytes: int, count: int, found: Findings) -> None:
    """A whole walk under a limit that lies between the needs of two of the ladder's first `count` plans."""
    needs = measure_needs(spec, job, count, context_bytes, found)
    limit, place = limit_between(needs, context_bytes, job.spare_bytes)
    events: list[Event] = []
    probed = probe(_task(spec, job, limit), events.append)
    outcomes = [event.step.outcome for event in events if isinstance(event, TrialEvent)]
    found.note(
        limit_bytes=limit,
        chosen=probed.result.chosen.to_json(),
        trials=[_row(outcome) for outcome in outcomes],
        notes=[event.text for event in events if isinstance(event, NoteEvent)],
    )
    failed = [outcome for outcome in outcomes if not outcome.fits]
    found.check("several rungs failed before one fitted", len(failed) >= min(place, 2), f"{len(failed)} of them")
    _check_rows(probed, found)
    _check_end(probed, needs[place][0], limit + job.spare_bytes, found)
    _check_profile(probed, job, found)


def check_training(spec: DeviceSpec, job: Job, found: Findings) -> None:
    """A short run with --fit-vram: the LoRA is there, has learned something, and diffusers loads it."""
    events: list[Event] = []
    trained = train(_task(spec, job, None), events.append, fit=True)
    summary = trained.summary
    bodies = [event.body for event in events if isinstance(event, WorkerEvent)]
    steps = [body for body in bodies if body.get("event") == "step"]
    losses = [float(body["loss"]) for body in steps]
    found.note(losses=losses, plan=trained.plan.to_json(), skipped_updates=sum(body["skipped"] for body in steps))
    found.note(largest_change=summary["largest_change"], statistics=summary["statistics"])
    found.check("every step was done", len(steps) == job.steps, f"{len(steps)} of {job.steps}")
    found.check("every loss is a number", all(loss == loss and abs(loss) < 1e4 for loss in losses), str(losses))
    found.check("the weights have changed", summary["largest_change"] > 0, str(summary["largest_change"]))
    files = [Path(name) for name in summary["files"]]
    found.check("a LoRA and a picture are there", sorted(f.suffix for f in files) == [".png", ".safetensors"])
    lora = next(file for file in files if file.suffix == ".safetensors")
    _check_reload(spec, job, lora, found)


def measure_needs(
    spec: DeviceSpec, job: Job, count: int, context_bytes: int, found: Findings
) -> list[tuple[Plan, int | None]]:
    """The first `count` plans of the ladder and the bytes each reserves without a limit, None if it runs out."""
    with Worker(TRAINER, job.config, spec, None, _launch(job)) as worker:
        plans = ladder_plans(worker.ready.job.recipe, count)
        reports = [worker.trial(plan, STEPS_TO_FIT) for plan in plans]
    found.note(unlimited=[_row(report.outcome) for report in reports], context_bytes=context_bytes)
    found.check("each plan leaves the worker at its baseline", all(report.clean for report in reports))
    needs = [report.outcome.peak_reserved_bytes if report.outcome.fits else None for report in reports]
    return list(zip(plans, needs, strict=True))


def ladder_plans(recipe: Recipe, count: int) -> list[Plan]:
    """The first `count` plans of a walk on which nothing fits."""
    walk = Walk.start(CLASSIC, recipe)
    plans: list[Plan] = []
    while len(plans) < count and (step := walk.next()) is not None:
        plans.append(step.plan)
        walk = walk.record(step, fits=False)
    return plans


def limit_between(
    needs: Sequence[tuple[Plan, int | None]], context_bytes: int, spare_bytes: int
) -> tuple[int, int]:
    """A limit under which the walk must end on a plan as far down as possible, and that plan's place.

    It lies in the middle between what that plan needs and the least any plan before it needs, context included,
    where the two are at least twice `spare_bytes` apart. Raises Skipped if no two plans are.
    """
    for place in range(len(needs) - 1, 0, -1):
        need = needs[place][1]
        before = [size for _, size in needs[:place] if size is not None]
        if need is not None and before and min(before) - need >= 2 * spare_bytes:
            return context_bytes + (min(before) + need) // 2, place
    sizes = ", ".join("out of memory" if size is None else format_mib(size) for _, size in needs)
    raise Skipped(f"no two plans are {format_mib(2 * spare_bytes)} apart: {sizes}")


def _base(folder: Path, make: Any) -> Path:
    photos = folder.parent / "photos"
    if not photos.exists():
        write_demo_dataset(photos, "flat")
    if not (folder / "model_index.json").exists():  # written last
        make(folder)
    return folder


def _launch(job: Job) -> Launch:
    return Launch(log_path=job.folder / "worker.log", hang_after_s=HANG_AFTER_S)


def _task(spec: DeviceSpec, job: Job, limit_bytes: int | None) -> Task:
    store = DirectoryStore(job.folder / "profiles")
    log, confirmed = job.folder / "worker.log", Confirmations(job.folder / "state")
    return Task(TRAINER, job.config, spec, CLASSIC, store, limit_bytes, log, confirmed)


def _check_rows(probed: Probed, found: Findings) -> None:
    steps = probed.result.steps
    single = [step.step.change is not None for step in steps[1:]]
    found.check("every trial after the first has one change", all(single) and steps[0].step.change is None)
    found.check("every number is measured", {step.outcome.evidence for step in steps} == {Evidence.MEASURED})
    dirty = [step.report.leftover_bytes for step in steps if not step.report.clean]
    found.check("memory is back at its baseline after each", not dirty, str(dirty) if dirty else "")
    reasons = [step.outcome.verdict.value for step in steps if not step.outcome.fits]
    found.check("all failures are memory", set(reasons) <= {"oom", "thrash"}, ", ".join(reasons))


def _check_end(probed: Probed, expected: Plan, most_bytes: int, found: Findings) -> None:
    chosen, outcome = probed.result.chosen, probed.result.outcome
    base = chosen.replace(BATCH_SIZE, expected.batch_size)
    found.check("it ends on the first plan that fits the limit", base == expected, str(chosen.to_json()))
    climbed = f"batch_size {expected.batch_size} to {chosen.batch_size}"
    found.check("the climb is upwards", chosen.batch_size >= expected.batch_size, climbed)
    held = (outcome.peak_reserved_bytes or 0) + int(found.numbers["context_bytes"])
    found.check("the chosen plan is within the limit", held <= most_bytes, format_mib(held))


def _check_profile(probed: Probed, job: Job, found: Findings) -> None:
    kept = probed.profile
    if kept.reference is None:
        found.check("the profile is kept as measured", False, str(kept.error))
        return
    read = DirectoryStore(job.folder / "profiles").get(kept.reference.digest)
    found.check("the profile is kept as measured", read.evidence is Evidence.MEASURED, read.evidence.value)


def _check_reload(spec: DeviceSpec, job: Job, lora: Path, found: Findings) -> None:
    """Load the file as another program would, on the card, and see that it changes what the U-Net predicts."""
    import torch
    from diffusers import StableDiffusionPipeline

    device = torch.device("cuda", int(spec.argument or 0)) if spec.kind == "cuda" else torch.device("cpu")
    dtype = torch.float16 if spec.kind == "cuda" else torch.float32
    pipe = StableDiffusionPipeline.from_pretrained(
        job.base, dtype=dtype, local_files_only=True, safety_checker=None
    ).to(device)
    generator = torch.Generator().manual_seed(0)
    width = pipe.unet.config.cross_attention_dim
    latents, text = (torch.randn(1, *shape, generator=generator) for shape in ((4, 32, 32), (77, width)))
    inputs = (latents.to(device, dtype), torch.tensor([500], device=device), text.to(device, dtype))
    with torch.no_grad():
        plain = pipe.unet(*inputs).sample.float()
        pipe.load_lora_weights(lora.parent, weight_name=lora.name, local_files_only=True)
        adapted = pipe.unet(*inputs).sample.float()
    change = float((adapted - plain).abs().max())
    found.check("diffusers loads the file and it changes the prediction", change > 0, f"by up to {change:.4g}")
    found.check("the prediction is finite", bool(torch.isfinite(adapted).all()))


def _row(outcome: Outcome) -> dict[str, Any]:
    mib = [
        None if size is None else size // MIB
        for size in (outcome.peak_allocated_bytes, outcome.peak_reserved_bytes)
    ]
    return {
        "plan": outcome.plan.to_json(),
        "verdict": outcome.verdict.value,
        "allocated_mib": mib[0],
        "reserved_mib": mib[1],
        "step_ms": outcome.step_ms,
        "phase": outcome.failed_phase,
        "reason": outcome.reason[:300],
    }


def _words(report: TrialReport) -> str:
    return f"{report.outcome.verdict.value} {report.outcome.reason[:200]}".strip()
