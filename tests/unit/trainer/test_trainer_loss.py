"""One loss per sample, so that any split of a batch sums to the same; and min-SNR weights as published."""

import pytest
import torch

from trainer.loss import min_snr_weights, sample_losses


def test_each_sample_has_the_mean_of_its_own_squared_errors() -> None:
    target = torch.zeros(2, 4, 3, 5)
    prediction = torch.stack([torch.full((4, 3, 5), 2.0), torch.full((4, 3, 5), 3.0)])
    assert sample_losses(prediction, target).tolist() == [4.0, 9.0]


def test_a_batch_gives_the_losses_of_its_samples_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    prediction, target = (torch.randn(3, 4, 8, 8, generator=generator) for _ in range(2))
    alone = [sample_losses(prediction[i : i + 1], target[i : i + 1]) for i in range(3)]
    assert torch.equal(sample_losses(prediction, target), torch.cat(alone))


def test_half_precision_is_summed_in_float32() -> None:
    prediction = torch.full((1, 4, 64, 64), 300.0, dtype=torch.float16)  # its square overflows float16
    losses = sample_losses(prediction, torch.zeros_like(prediction))
    assert losses.dtype == torch.float32
    assert losses.tolist() == [90000.0]


@pytest.mark.parametrize(("v_prediction", "expected"), [(False, [1.0, 5 / 9]), (True, [0.5, 5 / 10])])
def test_min_snr_caps_the_ratio_at_gamma(v_prediction: bool, expected: list[float]) -> None:
    # signal kept 0.5 and 0.9: ratios 1 and 9, of which gamma 5 caps the second
    weights = min_snr_weights(torch.tensor([0.5, 0.9]), torch.tensor([0, 1]), 5.0, v_prediction=v_prediction)
    torch.testing.assert_close(weights, torch.tensor(expected))
