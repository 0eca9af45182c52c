"""Precision names mean dtypes, autocast and a scaler, the same on every device."""

import pytest
import torch

from trainer.precision import Precision, dtype_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("no", torch.float32), ("float", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)],
)
def test_kohyas_names_are_dtypes(name: str, dtype: torch.dtype) -> None:
    assert dtype_of(name) is dtype


@pytest.mark.parametrize("mode", ["no", "fp16", "bf16"])
def test_autocast_computes_in_the_dtype_of_the_weights(mode: str) -> None:
    precision = Precision(mode)
    with precision.autocast(CPU):
        assert torch.is_autocast_enabled("cpu") == (mode != "no")
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == precision.weights
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("mode", ["no", "fp16", "bf16"])
def test_only_fp16_scales_gradients(mode: str) -> None:
    scaler = Precision(mode).scaler(CPU)
    assert scaler.is_enabled() == (mode == "fp16")
    assert float(scaler.scale(torch.ones(()))) == (65536.0 if mode == "fp16" else 1.0)
