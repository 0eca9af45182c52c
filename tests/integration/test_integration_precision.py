"""What a run computes in is what its config says, on the virtual GPU as on a card."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from integration_harness import Bout, Rig, open_bout
from torch import Tensor, nn

DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BATCH = (0, 1)


@contextmanager
def watched_layers(model: nn.Module) -> Iterator[set[torch.dtype]]:
    """The dtypes that the model's convolutions and linear layers put out, LoRA's own included."""
    seen: set[torch.dtype] = set()
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(lambda module, args, output: seen.add(output.dtype)) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def gradient_hook(weight: Tensor, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    handle = weight.register_hook(change)
    try:
        yield
    finally:
        handle.remove()


def settle_scale(bout: Bout) -> int:
    """Steps until one is not skipped: the scale starts too high by design. Returns the next step's number."""
    for step in range(20):
        if not bout.step(BATCH, step).skipped:
            return step + 1
    raise AssertionError("20 steps in a row were skipped")


@pytest.mark.parametrize("precision", DTYPES)
def test_activations_and_scaler_follow_the_precision_and_lora_stays_float32(
    rig_of: Callable[[str], Rig], precision: str
) -> None:
    gradients: list[torch.dtype] = []
    with open_bout(rig_of("sd1").setup(mixed_precision=precision, train_batch_size=2)) as bout:
        parts = bout.session.parts
        weight = parts.adapter.pairs[0].up
        with (
            watched_layers(parts.components.denoiser) as seen,
            watched_layers(parts.components.text_encoders[0]) as seen_in_text,
            gradient_hook(weight, lambda gradient: gradients.append(gradient.dtype) or gradient),
        ):
            bout.step(BATCH)
        assert seen == seen_in_text == {DTYPES[precision]}
        assert parts.scaler.is_enabled() == (precision == "fp16")
        assert gradients == [torch.float32]
        assert {weight.dtype for weight in parts.adapter.parameters()} == {torch.float32}
        assert parts.components.denoiser.conv_in.weight.dtype == DTYPES[precision]


def test_an_fp16_overflow_skips_the_step_halves_the_scale_and_changes_nothing_else(
    rig_of: Callable[[str], Rig],
) -> None:
    setup = rig_of("sd1").setup(
        mixed_precision="fp16", train_batch_size=2, lr_scheduler="linear", max_train_steps=100
    )
    with open_bout(setup) as bout:
        parts = bout.session.parts
        step = settle_scale(bout)
        weights, scale = bout.weights(), parts.scaler.get_scale()
        schedule, moments = parts.schedule.state_dict(), parts.optimizer.state_dict()["state"]
        counts = [int(state["step"]) for state in moments.values()]
        with gradient_hook(parts.adapter.pairs[3].up, lambda gradient: torch.full_like(gradient, torch.inf)):
            result = bout.step(BATCH, step)
        assert result.skipped
        assert result.gradient_norm is None, "an infinite norm is no number to report"
        assert parts.scaler.get_scale() == scale / 2
        assert all(torch.equal(weights[name], now) for name, now in bout.weights().items())
        assert parts.schedule.state_dict() == schedule
        assert [int(s["step"]) for s in parts.optimizer.state_dict()["state"].values()] == counts
        assert all(weight.grad is None for weight in parts.adapter.parameters()), "nor does it leak onwards"

        after = bout.step(BATCH, step)
        assert not after.skipped
        assert any(not torch.equal(weights[name], now) for name, now in bout.weights().items())
        assert parts.schedule.last_epoch == schedule["last_epoch"] + 1


def test_without_a_scaler_every_step_counts(rig_of: Callable[[str], Rig]) -> None:
    with open_bout(rig_of("sd1").setup(mixed_precision="bf16", train_batch_size=2)) as bout:
        result = bout.step(BATCH)
        assert not result.skipped
        assert bout.session.parts.schedule.last_epoch == 1
