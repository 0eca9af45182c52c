"""A failure is traced to the line that is nobody's library, and to the module that was running."""

import json

import torch
from torch import nn

from autotune.trial.place import place_of


class Inner(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        raise MemoryError


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(Inner())])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.blocks[0](values)
        return result


def place_when(action: object) -> str:
    try:
        action()  # type: ignore[operator]
    except Exception as error:
        return place_of(error.__traceback__)
    raise AssertionError("nothing failed")


def test_the_line_and_the_path_of_the_module_are_told() -> None:
    place = place_when(lambda: Outer()(torch.ones(1)))
    assert place.startswith("test_trial_place.py:")
    assert "in forward: raise MemoryError" in place
    assert place.endswith("(blocks.0.0)")


def test_a_failure_inside_a_library_is_told_by_the_line_that_called_it() -> None:
    def call() -> None:
        json.loads("{")

    assert place_when(call).endswith('in call: json.loads("{")')


def test_no_traceback_has_no_place() -> None:
    assert place_of(None) == ""
