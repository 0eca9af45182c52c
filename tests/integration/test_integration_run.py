"""The full run: what it writes, in which order, and what it survives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from integration_harness import ROOMY_BYTES, Rig, plan_of
from safetensors.torch import load_file

from autotune.device.virtual import VirtualSession
from autotune.errors import TrainingError
from autotune.units import MIB
from trainer.data.buckets import assign_buckets
from trainer.loop import Buckets, LossWatch, train
from trainer.session import Setup

Event = Mapping[str, Any]
# The captions are cached, so the U-Net is all that is on the device beside the adapter.
LEAN = {"network_train_unet_only": True, "cache_text_encoder_outputs": True, "sample_steps": 2}


@dataclass
class Run:
    """A full run on a virtual GPU, and everything it told."""

    setup: Setup
    device: VirtualSession = field(default_factory=lambda: VirtualSession(ROOMY_BYTES))
    events: list[Event] = field(default_factory=list)
    on_event: Callable[[Event], None] = lambda event: None

    def go(self) -> Mapping[str, Any]:
        buckets = assign_buckets(self.setup.dataset, self.setup.config.resolution, self.setup.config)
        plan = plan_of(self.setup.config)
        return train(self.setup, plan, self.device, Buckets(buckets, buckets), self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    def told(self, *kinds: str) -> list[str]:
        """Steps as `step N`, files by their names, notes as `note`, in order."""
        named = {
            "step": lambda e: f"step {e['step']}",
            "file": lambda e: Path(e["path"]).name,
            "note": lambda e: "note",
        }
        return [named[event["event"]](event) for event in self.events if event["event"] in kinds]


def test_files_have_kohyas_names_and_saving_precedes_sampling(rig_of: Callable[[str], Rig]) -> None:
    rig = rig_of("sd1")
    setup = rig.setup(
        train_batch_size=6,
        max_train_epochs=2,
        save_every_n_epochs=1,
        sample_every_n_epochs=1,
        save_every_n_steps=2,
        sample_at_end=True,
        **LEAN,
    )
    per_epoch = -(-len(setup.dataset.samples) // 6)
    assert per_epoch == 3, "the names below are those of three steps an epoch"
    run = Run(setup)
    summary = run.go()
    assert run.told("step", "file") == [
        "step 1",
        "step 2",
        "lora-step00000002.safetensors",
        "step 3",
        "lora-000001.safetensors",
        "lora-000001_00.png",
        "step 4",
        "lora-step00000004.safetensors",
        "step 5",
        "step 6",
        "lora.safetensors",
        "lora_00.png",
    ]
    assert [Path(file).name for file in summary["files"]] == run.told("file")
    assert all(Path(file).is_file() for file in summary["files"])
    assert summary["steps"] == 6
    assert run.device.statistics()["allocated_bytes.all.current"] == 0


def test_the_summary_tells_the_peak_of_the_run_not_of_a_trial_before_it(rig_of: Callable[[str], Rig]) -> None:
    run = Run(rig_of("sd1").setup(max_train_steps=1, **LEAN))
    with run.device.scope():
        trial = torch.zeros(300 * MIB, dtype=torch.uint8)
    del trial
    assert run.go()["statistics"]["allocated_bytes.all.peak"] < 300 * MIB


def test_an_epoch_and_a_step_that_are_due_together_are_both_written(rig_of: Callable[[str], Rig]) -> None:
    setup = rig_of("sd1").setup(
        train_batch_size=6, max_train_steps=4, save_every_n_epochs=1, save_every_n_steps=3, **LEAN
    )
    run = Run(setup)
    run.go()
    assert run.told("file") == ["lora-000001.safetensors", "lora-step00000003.safetensors", "lora.safetensors"]


def test_running_out_of_memory_while_sampling_costs_no_training_step(rig_of: Callable[[str], Rig]) -> None:
    settings = {
        "train_batch_size": 2,
        "max_train_steps": 4,
        "save_every_n_steps": 2,
        "resolution": "128,128",
        **LEAN,
    }
    setup = rig_of("sd1").setup(sample_every_n_steps=2, sample_at_end=False, **settings)
    device = VirtualSession(ROOMY_BYTES)
    on_device: list[int] = []

    def leave_no_room_for_sampling(event: Event) -> None:
        # what is on the device now fits, and not one byte more: the U-Net alone comes back after the picture
        if event["event"] == "file" and not on_device:
            on_device.append(device.statistics()["allocated_bytes.all.current"])
            device.limit(on_device[0])
        elif event["event"] == "note":
            on_device.append(device.statistics()["allocated_bytes.all.current"])
            device.limit(ROOMY_BYTES)

    run = Run(setup, device, on_event=leave_no_room_for_sampling)
    summary = run.go()
    assert run.told("step", "file", "note") == [
        "step 1",
        "step 2",
        "lora-step00000002.safetensors",
        "note",
        "step 3",
        "step 4",
        "lora.safetensors",
    ]
    note = next(event["text"] for event in run.events if event["event"] == "note")
    assert note.startswith("picture lora-step00000002_00.png skipped, training is not touched: Virtual GPU out of")
    assert device.statistics()["num_ooms"] == 1, "the models found their room again at once"
    assert on_device[1] == on_device[0], "what had stepped aside is back, and nothing else stayed"

    without = Run(rig_of("sd1").setup(**settings, output_name="quiet"))
    quiet = load_file(without.go()["files"][-1])
    assert all(torch.equal(tensor, quiet[name]) for name, tensor in load_file(summary["files"][-1]).items())


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_loss_that_is_no_number_ends_the_run_with_a_sentence(
    rig_of: Callable[[str], Rig], precision: str
) -> None:
    run = Run(poisoned(rig_of("sd1").setup(mixed_precision=precision, max_train_steps=20, **LEAN)))
    with pytest.raises(TrainingError) as caught:
        run.go()
    assert caught.value.fact == (f"the loss is nan at step 1 (learning_rate 0.0001, mixed_precision {precision}).")
    assert caught.value.way_out == "Lower learning_rate, and check the base model and VAE for NaN weights."
    assert run.told("file") == [], "a LoRA of no numbers is not written"
    assert run.device.statistics()["allocated_bytes.all.current"] == 0


def test_under_fp16_too_a_loss_that_stays_no_number_ends_the_run(rig_of: Callable[[str], Rig]) -> None:
    run = Run(poisoned(rig_of("sd1").setup(mixed_precision="fp16", max_train_steps=20, **LEAN)))
    with pytest.raises(TrainingError, match="the loss is nan at 10 steps in a row, up to step 10 "):
        run.go()
    assert len(run.told("step")) == LossWatch.PATIENCE - 1


def test_a_second_run_writes_beside_the_first_and_says_so(rig_of: Callable[[str], Rig]) -> None:
    setup = rig_of("sd1").setup(max_train_steps=1, **LEAN)
    folder = Path(setup.config.output_dir)
    folder.mkdir()
    earlier = folder / "lora-000001.safetensors"  # of a run that was killed after its first epoch
    earlier.write_bytes(b"mine")
    run = Run(setup)
    run.go()
    assert run.told("note", "file") == ["note", "lora-2.safetensors"]
    assert earlier.read_bytes() == b"mine"


def poisoned(setup: Setup) -> Setup:
    """The same setup with one broken weight in the base U-Net."""
    setup.components.denoiser.conv_in.weight.data[0, 0, 0, 0] = torch.nan
    return setup
