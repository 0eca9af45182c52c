"""A plan decides how a logical batch is computed, never what comes out; and a session leaves no trace."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from integration_harness import (
    ROOMY_BYTES,
    Bout,
    InProcessWorker,
    Rig,
    modes,
    open_bout,
    plan_of,
    snapshot,
)
from safetensors.torch import load_file
from torch import Tensor

from autotune.device.virtual import VirtualSession
from autotune.trial.outcome import Verdict
from autotune.trial.protocol import STEPS_TO_FIT
from autotune.units import MIB
from trainer.data.buckets import assign_buckets
from trainer.session import Setup
from trainer.step import StepResult

ONE_BUCKET = (0, 1, 2, 3)
SPLITS = (4, 3, 2, 1)
RELATIVE = 1e-5  # float32 sums in another order


def one_step(
    setup: Setup, batch: tuple[int, ...], **changes: object
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(gradients before clipping, weights after the step) by name, of one step from an adapter that matters."""
    gradients: dict[str, Tensor] = {}
    with open_bout(setup, plan_of(setup.config, **changes)) as bout:
        fill_up_weights(bout)
        bout.session.parts.optimizer.register_step_pre_hook(lambda *_: gradients.update(bout.gradients()))
        bout.step(batch)
        return gradients, bout.weights()


def fill_up_weights(bout: Bout) -> None:
    """Up weights are zero at first, and then the down weights have no gradient to compare."""
    generator = torch.Generator().manual_seed(1)
    for pair in bout.session.parts.adapter.pairs:
        pair.up.data.normal_(0, 0.05, generator=generator)


def assert_close(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    largest = max(float(tensor.abs().max()) for tensor in one.values())
    for name, tensor in one.items():
        difference = float((tensor - other[name]).abs().max())
        assert difference <= RELATIVE * largest, f"{name}: {difference:.1e} of {largest:.1e}"


def without_clipping(setup: Setup) -> Setup:
    """No clipping, and an epsilon that keeps AdamW's first step from turning on the sign of a tiny gradient."""
    return replace(setup, config=setup.config.model_copy(update={"max_grad_norm": 0.0, "optimizer_eps": 1e-2}))


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_gradient_and_weights_are_equal_whatever_the_microbatch_split(
    rig_of: Callable[[str], Rig], family: str
) -> None:
    setup = without_clipping(rig_of(family).setup(train_batch_size=4))
    results = {size: one_step(setup, ONE_BUCKET, batch_size=size) for size in SPLITS}
    gradients, weights = results[4]
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-3, (
        "there is something to compare"
    )
    for size in SPLITS[1:]:
        assert_close(gradients, results[size][0])
        assert_close(weights, results[size][1])


def test_a_batch_of_several_shapes_counts_every_sample_once(rig_of: Callable[[str], Rig]) -> None:
    bucketed = {"enable_bucket": True, "resolution": "128,128", "bucket_reso_steps": 32, "min_bucket_reso": 64}
    setup = without_clipping(rig_of("sd1").setup(train_batch_size=4, **bucketed))
    buckets = assign_buckets(setup.dataset, setup.config.resolution, setup.config)
    shapes = sorted(set(buckets.values()))
    assert len(shapes) >= 2, "the photographs have several shapes"
    first = [index for index, shape in buckets.items() if shape == shapes[0]]
    second = [index for index, shape in buckets.items() if shape == shapes[1]]
    batch = (*first[:3], *second[:3])[:4] if len(first) >= 3 else (*first[:1], *second[:3])
    gradients, weights = one_step(setup, batch, batch_size=4)

    alone = [one_step(setup, (index,))[0] for index in batch]
    mean = {name: sum(single[name] for single in alone) / len(alone) for name in gradients}
    assert_close(gradients, mean)
    for size in SPLITS[1:]:
        split_gradients, split_weights = one_step(setup, batch, batch_size=size)
        assert_close(gradients, split_gradients)
        assert_close(weights, split_weights)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_gradient_checkpointing_changes_no_bit(rig_of: Callable[[str], Rig], family: str) -> None:
    setup = rig_of(family).setup(train_batch_size=2)
    plain, checkpointed = (one_step(setup, (0, 1), gradient_checkpointing=on) for on in (False, True))
    for one, other in zip(plain, checkpointed, strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.filterwarnings("error::FutureWarning")  # transformers renames its switch
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_checkpointing_recomputes_without_reentry_and_is_gone_with_the_session(
    rig_of: Callable[[str], Rig], family: str
) -> None:
    setup = rig_of(family).setup()
    components = setup.components
    calls = {0: 0}
    part = components.text_encoders[0].encoder.layers[0].mlp.fc1
    with open_bout(setup, plan_of(setup.config, gradient_checkpointing=True)) as bout:
        for module in (components.denoiser, *components.text_encoders):
            switched = [m for m in module.modules() if getattr(m, "gradient_checkpointing", False)]
            assert switched, "checkpointing is on in every trained part"
            assert {m._gradient_checkpointing_func.keywords["use_reentrant"] for m in switched} == {False}
            assert all(m.training for m in switched), "outside train mode it would be silently off"
        wrapped = components.text_encoders[0].encoder.layers[0].mlp.fc1
        hook = wrapped.register_forward_hook(lambda *_: calls.update({0: calls[0] + 1}))
        bout.step((0,))
        hook.remove()
    assert calls[0] == 2, "once forward and once more in backward"
    assert components.text_encoders[0].encoder.layers[0].mlp.fc1 is part
    assert not any(checkpoints for _, checkpoints, _ in modes(components).values())
    embeddings = [encoder.get_input_embeddings() for encoder in components.text_encoders]
    assert not any(embedding._forward_hooks for embedding in embeddings), "no hook that asks for gradients stays"


def test_a_plan_needs_the_same_after_a_checkpointed_one_as_before(rig_of: Callable[[str], Rig]) -> None:
    setup = rig_of("sd1").setup()

    def peak_bytes(**changes: object) -> int:
        with open_bout(setup, plan_of(setup.config, **changes)) as bout:
            bout.step((0,))
            return bout.device.statistics()["allocated_bytes.all.peak"]

    before = peak_bytes()
    assert peak_bytes(gradient_checkpointing=True) < before
    assert peak_bytes() == before


def test_two_runs_of_one_seed_are_equal_to_the_bit_and_another_seed_is_not(rig_of: Callable[[str], Rig]) -> None:
    rig = rig_of("sd1")

    def run(seed: int) -> dict[str, Tensor]:
        workload = rig.workload(train_batch_size=2, max_train_steps=3, seed=seed, flip_aug=True)
        plan = workload.job().recipe.plan
        files = workload.train(plan, VirtualSession(ROOMY_BYTES), lambda event: None)["files"]
        return load_file(files[0])

    first, second, other = run(1), run(1), run(2)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in first.items())


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_after_trials_and_a_run_the_base_model_is_what_it_was_and_the_device_is_empty(
    rig_of: Callable[[str], Rig], family: str
) -> None:
    workload = rig_of(family).workload(max_train_steps=1, sample_at_end=True, sample_steps=2)
    components, plan = workload._components, workload.job().recipe.plan
    before, modes_before = snapshot(components), modes(components)
    worker = InProcessWorker(workload, ROOMY_BYTES)

    fitting = worker.trial(plan.replace("gradient_checkpointing", True), STEPS_TO_FIT)
    peak_bytes = fitting.outcome.peak_allocated_bytes
    assert fitting.outcome.fits
    assert peak_bytes is not None
    failing = InProcessWorker(workload, peak_bytes - MIB).trial(plan, STEPS_TO_FIT)
    assert failing.outcome.verdict is Verdict.OOM
    device = VirtualSession(ROOMY_BYTES)
    workload.train(plan, device, lambda event: None)

    after = snapshot(components)
    assert list(after) == list(before)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert modes(components) == modes_before
    assert fitting.clean
    assert failing.clean
    assert device.statistics()["allocated_bytes.all.current"] == 0


def test_a_session_that_can_not_be_made_leaves_the_base_model_as_it_was(rig_of: Callable[[str], Rig]) -> None:
    setup = rig_of("sd1").setup()
    before, modes_before = snapshot(setup.components), modes(setup.components)
    broken = replace(setup, config=setup.config.model_copy(update={"lr_scheduler": "no such schedule"}))
    with pytest.raises(ValueError), open_bout(broken):
        pass
    assert list(snapshot(setup.components)) == list(before)
    assert modes(setup.components) == modes_before


def test_the_8_bit_optimizer_trains_with_states_of_8_bits_and_leaves_nothing(rig_of: Callable[[str], Rig]) -> None:
    # bitsandbytes keeps tensors below 4096 values in 32 bits: rank 64 is above it
    settings = {"optimizer_type": "AdamW8bit", "network_dim": 64, "network_alpha": 64, "train_batch_size": 2}
    rig = rig_of("sd1")
    setup = rig.setup(**settings)
    with open_bout(setup) as bout:
        before = bout.weights()
        results: list[StepResult] = [bout.step((0, 1), step) for step in range(2)]
        states = bout.session.parts.optimizer.state.values()
        assert torch.uint8 in {state["state1"].dtype for state in states}
        after = bout.weights()
    assert all(math.isfinite(result.loss) for result in results)
    changed = [name for name, weight in after.items() if not torch.equal(weight, before[name])]
    assert len(changed) == len(after)
    assert all(bool(weight.isfinite().all()) for weight in after.values())
    workload = rig.workload(**settings)
    report = InProcessWorker(workload, ROOMY_BYTES).trial(workload.job().recipe.plan, STEPS_TO_FIT)
    assert report.outcome.fits
    assert report.clean
