"""The trainer's trial at full size on the null GPU, through a worker: what it counts, and whose the bytes are."""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

from autotune.device.session import DeviceSpec, Evidence
from autotune.ladder.plan import Plan
from autotune.memory.account import ACTIVATIONS, ADAPTERS, GRADIENTS, OPTIMIZER, WEIGHTS, WORKSPACE, PhaseAccount
from autotune.trial.client import Worker
from autotune.trial.outcome import Verdict
from autotune.trial.protocol import Recording, TrialReport
from autotune.units import MIB
from trainer.adapters.lora import attach
from trainer.families.blank import blank_components

PHASES = ["open", "cache_latents", "cache_text", "load", "step", "save", "sample"]
SD1 = {"family": "sd1"}
PLAN = Plan.of(batch_size=1, resolution=((512, 512),), gradient_checkpointing=False, network_dim=16)
SAVING = PLAN.replace("gradient_checkpointing", True)


def worker_on(card: str, config: Mapping[str, Any] = SD1) -> Worker:
    return Worker("trainer.forecast:create", config, DeviceSpec.parse(card))


@pytest.fixture(scope="module")
def roomy(null_gpu: object) -> Iterator[Worker]:
    with worker_on("null:24GiB@8.6") as worker:
        yield worker


@pytest.fixture(scope="module")
def plain(roomy: Worker) -> TrialReport:
    return roomy.trial(PLAN)


@pytest.fixture(scope="module")
def recorded(roomy: Worker, plain: TrialReport, tmp_path_factory: pytest.TempPathFactory) -> TrialReport:
    path = tmp_path_factory.mktemp("snapshot") / "memory.pickle"
    return roomy.trial(PLAN, record=Recording(str(path)))


def phase(report: TrialReport, name: str) -> PhaseAccount:
    assert report.account is not None
    return next(one for one in report.account.phases if one.phase == name)


def test_a_full_size_trial_runs_through_with_forecast_evidence_and_no_step_time(plain: TrialReport) -> None:
    assert plain.outcome.fits
    assert plain.outcome.evidence is Evidence.FORECAST
    assert plain.outcome.step_ms is None
    assert [peak.phase for peak in plain.outcome.phases] == PHASES
    assert (plain.clean, plain.leftover_bytes, plain.account) == (True, 0, None)


def test_recording_changes_no_peak(plain: TrialReport, recorded: TrialReport) -> None:
    assert recorded.outcome == plain.outcome


def test_the_account_is_the_allocators_own_to_the_byte(recorded: TrialReport) -> None:
    assert recorded.account is not None
    counted = [(p.phase, p.peak_allocated_bytes, p.peak_reserved_bytes) for p in recorded.outcome.phases]
    replayed = [(p.phase, p.peak_allocated_bytes, p.peak_reserved_bytes) for p in recorded.account.phases]
    assert replayed == counted
    assert all(sum(p.parts.values()) == p.peak_allocated_bytes for p in recorded.account.phases)


def test_each_category_is_what_the_model_says_it_is(recorded: TrialReport) -> None:
    components = blank_components("sd1")
    denoiser = sum(p.numel() * p.element_size() for p in components.denoiser.parameters())
    vae = sum(p.numel() * p.element_size() for p in components.vae.parameters())
    adapter = attach(components, rank=16, alpha=16, denoiser=True, text_encoders=False, seed=0)
    trained = sum(parameter.numel() * 4 for parameter in adapter.parameters())
    load, step = phase(recorded, "load").parts, phase(recorded, "step").parts
    assert (load[WEIGHTS], load[ADAPTERS], load[OPTIMIZER]) == (denoiser, trained, 0)
    assert (step[WEIGHTS], step[ADAPTERS], step[OPTIMIZER]) == (denoiser, trained, 2 * trained)
    assert phase(recorded, "cache_latents").parts[WEIGHTS] == vae
    assert step[ACTIVATIONS] > denoiser / 2
    assert 0 < step[WORKSPACE] < 64 * MIB


def test_accumulated_gradients_are_told_from_what_comes_and_goes(null_gpu: object) -> None:
    with worker_on("null:24GiB@8.6", {**SD1, "gradient_accumulation_steps": 3}) as worker:
        step = phase(worker.trial(SAVING, record=Recording()), "step").parts
    assert step[GRADIENTS] == step[ADAPTERS]


def test_the_snapshot_opens_in_pytorchs_visualiser_and_names_our_lines(
    recorded: TrialReport, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = next(tmp_path_factory.getbasetemp().glob("snapshot*/memory.pickle"))
    snapshot = pickle.loads(path.read_bytes())
    files = {Path(f["filename"]).name for event in snapshot["device_traces"][0] for f in event.get("frames", ())}
    assert {"step.py", "sources.py", "sample.py"} <= files
    assert "<html" in _memory_viz.trace_plot(snapshot).lower()  # type: ignore[no-untyped-call]


def test_a_plan_too_large_gets_pytorchs_own_error_and_costs_the_next_plan_nothing(roomy: Worker) -> None:
    reference = roomy.trial(SAVING)
    with worker_on("null:2800MiB@8.6") as small:
        fresh = small.trial(SAVING)
        refused = small.trial(PLAN, record=Recording())
        again = small.trial(SAVING)
    assert refused.outcome.verdict is Verdict.OOM
    assert "CUDA out of memory. Tried to allocate" in refused.outcome.reason
    assert refused.outcome.failed_phase.startswith("step")
    assert "step.py" in refused.place or "denoise.py" in refused.place or "sd.py" in refused.place
    assert refused.account is not None
    assert (refused.clean, refused.leftover_bytes, refused.reusable) == (True, 0, True)
    assert fresh.outcome == again.outcome == reference.outcome


@pytest.mark.parametrize("changes", [{"batch_size": 4}, {"network_dim": 64}, {"resolution": ((768, 768),)}])
def test_knobs_change_without_another_model(roomy: Worker, plain: TrialReport, changes: dict[str, Any]) -> None:
    [(knob, value)] = changes.items()
    larger = roomy.trial(PLAN.replace(knob, value)).outcome.peak_allocated_bytes
    assert larger is not None
    assert plain.outcome.peak_allocated_bytes is not None
    assert larger > plain.outcome.peak_allocated_bytes


def test_fp16_with_a_scaler_trained_encoders_and_live_latents_run_too(null_gpu: object) -> None:
    settings = {
        "mixed_precision": "fp16",
        "network_train_unet_only": False,
        "cache_latents": False,
        "min_snr_gamma": 5,
        "flip_aug": True,
    }
    with worker_on("null:24GiB@8.6", {**SD1, **settings}) as worker:
        report = worker.trial(PLAN, record=Recording())
    assert report.outcome.fits, report.traceback
    assert [peak.phase for peak in report.outcome.phases] == ["open", "load", "step", "save", "sample"]
    step = phase(report, "step").parts
    assert step[OPTIMIZER] == 2 * step[ADAPTERS] > 0
