"""The short-lived child that asks the installed torch about CUDA, and prints one line of JSON.

Run by path, never imported by the controller: it imports torch and may create a CUDA context, and both end
with it. Uses the standard library and torch only. A build of torch without CUDA is recognised from
`torch/version.py` without the seconds that importing torch takes.

Flags: `--memory` adds `mem_get_info` of every device, `--use` runs one small operation on each.
"""

import importlib.util
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any


def describe(memory: bool, use: bool) -> dict[str, Any]:
    """What torch says: `version`, `reason` (why CUDA can't be used, or empty) and `devices` by ordinal."""
    version, cuda = installed_torch()
    if not version:
        return _answer("", "torch is not installed in this Python")
    if not cuda:
        return _answer(version, f"the installed torch {version} is built without CUDA")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        return _ask(version, memory, use)


def installed_torch() -> tuple[str, str]:
    """(version, CUDA version) of the installed torch, empty for what it has not; without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "", ""
    try:
        values = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return "", ""
    return str(values.get("__version__", "")), str(values.get("cuda") or "")


def _ask(version: str, memory: bool, use: bool) -> dict[str, Any]:
    try:
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
        count = torch.cuda.device_count()
    except Exception as error:  # whatever a broken driver or build raises is the answer
        return _answer(version, f"torch {version} can't use CUDA: {_first_line(error)}")
    devices = [_describe_device(torch, ordinal, memory, use) for ordinal in range(count)]
    return _answer(version, "" if devices else f"torch {version} sees no card", devices)


def _describe_device(torch: Any, ordinal: int, memory: bool, use: bool) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(ordinal)
    device = {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "pci_bus_id": _pci(properties),
        "compute_capability": [properties.major, properties.minor],
        "total_bytes": int(properties.total_memory),
        "free_bytes": None,
        "problem": "",
    }
    try:
        if use:
            (torch.ones(1, device=f"cuda:{ordinal}") + 1).item()
        if memory:
            free, device["total_bytes"] = torch.cuda.mem_get_info(ordinal)
            device["free_bytes"] = max(free, _available_host_bytes(properties))
    except Exception as error:  # the card is busy, too old for this build, out of memory: all say so themselves
        device["problem"] = _first_line(error)
    return device


def _pci(properties: Any) -> str:
    if not hasattr(properties, "pci_bus_id"):  # an older torch does not tell
        return ""
    domain, bus, slot = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    return f"{domain:08X}:{bus:02X}:{slot:02X}.0"


def _available_host_bytes(properties: Any) -> int:
    """MemAvailable where GPU and host share memory: mem_get_info leaves out what the host can give back."""
    if not getattr(properties, "is_integrated", False):
        return 0
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _answer(version: str, reason: str, devices: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"version": version, "reason": reason, "devices": devices or []}


if __name__ == "__main__":
    print(json.dumps(describe("--memory" in sys.argv, "--use" in sys.argv)))
