"""Asks the installed torch about CUDA in a short-lived child process, so that this one never meets either.

Owns starting the child (autotune/device/torch_child.py) and reading its answer. Must never import torch.
Whatever goes wrong in the child is an answer with a reason, never an exception.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("torch_child.py")
# Importing torch from a cold disk takes long, and a lost card can block CUDA for ever.
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class TorchDevice:
    """One device as torch enumerates it. Bytes are None where not asked or not told.

    `uuid` has no `GPU-` prefix; `pci_bus_id` is empty with an older torch. `problem` says why the device
    can't be used, or is empty.
    """

    name: str
    uuid: str
    pci_bus_id: str
    compute_capability: tuple[int, int]
    total_bytes: int | None
    free_bytes: int | None
    problem: str


@dataclass(frozen=True)
class TorchAnswer:
    """The devices by ordinal, or none and the `reason` as the part of a sentence. `version` is torch's."""

    version: str
    reason: str
    devices: tuple[TorchDevice, ...] = ()


def ask_torch(
    environ: Mapping[str, str], memory: bool = False, use: bool = False, timeout_s: float = TIMEOUT_S
) -> TorchAnswer:
    """What the installed torch says of CUDA under `environ`, with free memory or after a try on each."""
    flags = ["--memory"] * memory + ["--use"] * use
    # -P: the child's own folder must not come before the standard library on its path.
    command = [sys.executable, "-P", str(CHILD), *flags]
    try:
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return TorchAnswer("", f"CUDA gave no answer within {timeout_s:g} seconds")
    except OSError as error:
        return TorchAnswer("", f"a process to ask CUDA can't be started: {error.strerror}")
    return _read_answer(done)


def _read_answer(done: "subprocess.CompletedProcess[str]") -> TorchAnswer:
    lines = done.stdout.strip().splitlines()
    try:
        values = json.loads(lines[-1])
        devices = tuple(_read_device(device) for device in values["devices"])
        return TorchAnswer(values["version"], values["reason"], devices)
    except (IndexError, KeyError, TypeError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return TorchAnswer("", f"the process asked about CUDA ended with code {done.returncode}: {last}")


def _read_device(values: Mapping[str, Any]) -> TorchDevice:
    major, minor = values["compute_capability"]
    return TorchDevice(**{**values, "compute_capability": (major, minor)})
