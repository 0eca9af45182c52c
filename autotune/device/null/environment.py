"""What a program's environment must hold for it to run on null cards. Owns that environment and nothing else."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.device.null.build import Stubs, build_stubs
from autotune.device.null.card import NullCard
from autotune.device.null.install import cuda_torch
from autotune.device.null.toolkit import look_at

CARDS, CONTROL = "AUTOTUNE_NULL_CARDS", "AUTOTUNE_NULL_CONTROL"
# What would hide the cards, or send PyTorch to other libraries than the preloaded ones.
_UNWANTED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING")


def null_environment(
    cards: Sequence[NullCard],
    base: Mapping[str, str] | None = None,
    *,
    python: str = sys.executable,
    control: Path | None = None,
) -> dict[str, str]:
    """The environment in which any program of `python` sees `cards` as its GPUs: `base` (by default this
    process's) with torch's CUDA build and the null GPU's libraries in front.

    Builds the libraries if need be. `control` is a ControlBlock's file. Raises DeviceError with one sentence
    where the null GPU can't work.
    """
    folder, stubs = prepare(python)
    environment = {k: v for k, v in (os.environ if base is None else base).items() if k not in _UNWANTED}
    environment[CARDS] = ";".join(card.encode() for card in cards)
    if control is not None:
        environment[CONTROL] = str(control)
    _put_first(environment, "LD_PRELOAD", [str(path) for path in stubs.preload], ":")
    if folder is not None:
        _put_first(environment, "PYTHONPATH", [str(folder)], os.pathsep)
    return environment


def prepare(python: str = sys.executable) -> tuple[Path | None, Stubs]:
    """The folder that goes first on the path (None: not needed) and the built libraries. Raises DeviceError."""
    torch, folder = cuda_torch(python)
    return folder, build_stubs(torch, look_at(python).extensions(torch.cuda or ""))


def _put_first(environment: dict[str, str], name: str, values: Sequence[str], separator: str) -> None:
    before = [value for value in environment.get(name, "").split(separator) if value and value not in values]
    environment[name] = separator.join([*values, *before])
