"""Captures: what NVML answered on a machine, masked, as text that a replay can answer from.

Owns the format and the masking. A capture never holds a host name, a serial number, a process name, or a real
UUID or process id: those are replaced by numbered stand-ins, the same one wherever the same value stood.

The format: a line `autotune-nvml-capture 1`, comment lines with `#`, then a line for each answer in the order
asked: `SUBJECT QUESTION ok VALUE` or `SUBJECT QUESTION error CODE`. Where a question was asked again, its
lines are the answers in turn, and the last one stays. Lines `environ NAME ok VALUE` hold the variables that
decide CUDA's order.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune import __version__
from autotune.device.nvml import MachineReading, read_nvml
from autotune.device.ordinals import ORDER, VISIBLE
from autotune.device.questions import Answer, NvmlSource, Recorder, Source
from autotune.errors import DiskError
from autotune.files import write_atomically

FIRST_LINE = "autotune-nvml-capture 1"
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FIRST_PID = 1001


def record_capture(
    path: Path, environ: Mapping[str, str] | None = None, source: Source | None = None
) -> MachineReading:
    """Read all cards, write the masked capture to `path`, return the reading (unmasked).

    `environ` is `os.environ` and `source` the driver unless given. Never overwrites. Raises DiskError if
    `path` exists or can't be written.
    """
    if path.exists():
        raise _taken(path)
    driver = NvmlSource()
    recorder = Recorder(source or driver)
    try:
        reading = read_nvml(recorder)
    finally:
        driver.close()
    text = format_capture(recorder.answers, os.environ if environ is None else environ)
    try:
        write_atomically(path, text.encode(), replace=False)
    except FileExistsError:
        raise _taken(path) from None
    return reading


def captured_environment(path: Path) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as the capture holds them; a variable not set is absent."""
    lines = (line.split(" ", 3) for line in path.read_text(encoding="utf-8").splitlines())
    return {fields[1]: [*fields, ""][3] for fields in lines if fields[0] == "environ"}


def format_capture(answers: Sequence[tuple[str, str, Answer]], environ: Mapping[str, str]) -> str:
    """The masked capture of `answers`, which are (subject, question, answer) in the order asked."""
    mask = _Mask()
    lines = [FIRST_LINE, f"# recorded by autotune {__version__}; UUIDs and process ids are stand-ins"]
    for subject, question, answer in answers:
        value = f"ok {mask.apply(question, answer.text)}" if answer.ok else f"error {answer.code}"
        lines.append(f"{subject} {question} {value}".rstrip())
    for name in (ORDER, VISIBLE):
        if name in environ:
            lines.append(f"environ {name} ok {mask.apply_to_list(environ[name])}".rstrip())
    return "\n".join(lines) + "\n"


class _Mask:
    """Stand-ins in the order of appearance: UUIDs stay unique by their first part, pids count from 1001."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}
        self._pids: dict[str, str] = {}

    def apply(self, question: str, text: str) -> str:
        """`text` without what could name a machine."""
        if "processes" in question:
            return re.sub(r"(\d+):", lambda match: f"{self._pid(match.group(1))}:", text)
        return _UUID.sub(lambda match: self._uuid(match.group()), text)

    def apply_to_list(self, text: str) -> str:
        """A list of devices: an abbreviated UUID becomes the stand-in of the one it means."""
        return ",".join(self._list_entry(entry.strip()) for entry in text.split(","))

    def _list_entry(self, entry: str) -> str:
        prefix, _, rest = entry.partition("-")
        if prefix not in ("GPU", "MIG") or not rest or _UUID.search(rest):
            return _UUID.sub(lambda match: self._uuid(match.group()), entry)
        meant = [stand_in for real, stand_in in self._uuids.items() if real.startswith(rest)]
        return f"{prefix}-{meant[0] if len(meant) == 1 else 'unknown'}"

    def _uuid(self, real: str) -> str:
        return self._uuids.setdefault(real, f"{len(self._uuids) + 1:08x}-0000-0000-0000-000000000000")

    def _pid(self, real: str) -> str:
        return self._pids.setdefault(real, str(_FIRST_PID + len(self._pids)))


def _taken(path: Path) -> DiskError:
    return DiskError(f"{path} exists already.", "Choose another file for the capture.")
