"""What the hook saw inside the processes of a dry run. Owns reading its files; a broken one is as good as none."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DevicePeak:
    """One card in one process: peaks in bytes, the allocator's trouble, and the line of user code at the peak."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    retries: int
    ooms: int
    place: str | None


@dataclass(frozen=True)
class OutOfMemory:
    """One failed allocation: what was asked for, and the lines of user code and of the library that asked."""

    device: int
    requested_bytes: int
    user: str | None
    library: str | None


@dataclass(frozen=True)
class Ending:
    """The exception that ended a process."""

    kind: str
    text: str
    user: str | None

    @property
    def is_memory(self) -> bool:
        """Whether it is PyTorch's own out-of-memory error."""
        return self.kind.endswith("OutOfMemoryError")


@dataclass(frozen=True)
class ProcessState:
    """One process that initialised CUDA."""

    pid: int
    devices: tuple[DevicePeak, ...]
    ooms: tuple[OutOfMemory, ...]
    ending: Ending | None


@dataclass(frozen=True)
class CardUse:
    """What all processes together held of one card: the sum of their peaks, which need not have been at once."""

    allocated_bytes: int
    reserved_bytes: int
    processes: int
    retries: int
    place: str | None


def read_states(folder: Path) -> tuple[ProcessState, ...]:
    """The states in `folder`, in the order the processes began."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.append(_read(json.loads(path.read_text("utf-8"))))
    return tuple(found)


def use_by_card(states: Iterable[ProcessState]) -> dict[int, CardUse]:
    """What each card was used for, over all processes."""
    peaks: dict[int, list[DevicePeak]] = {}
    for state in states:
        for peak in state.devices:
            peaks.setdefault(peak.device, []).append(peak)
    return {device: _together(rows) for device, rows in sorted(peaks.items())}


def _together(rows: Sequence[DevicePeak]) -> CardUse:
    largest = max(rows, key=lambda row: row.allocated_bytes)
    return CardUse(
        sum(row.allocated_bytes for row in rows),
        sum(row.reserved_bytes for row in rows),
        len(rows),
        sum(row.retries for row in rows),
        largest.place,
    )


def _read(values: Mapping[str, Any]) -> ProcessState:
    order = _cards_shown(values.get("visible"))
    devices = tuple(
        DevicePeak(
            order.get(int(index), int(index)),
            row["allocated"],
            row["reserved"],
            row["retries"],
            row["ooms"],
            row["place"],
        )
        for index, row in values["devices"].items()
    )
    ooms = tuple(
        OutOfMemory(order.get(row["device"], row["device"]), row["requested"], row["user"], row["library"])
        for row in values["oom"]
    )
    error = values["error"]
    ending = Ending(error["type"], error["text"], error["user"]) if error else None
    return ProcessState(values["pid"], devices, ooms, ending)


def _cards_shown(visible: str | None) -> dict[int, int]:
    """Which card each number of the process means, where it hid some (CUDA_VISIBLE_DEVICES)."""
    numbers = [part.strip() for part in (visible or "").split(",") if part.strip()]
    return {n: int(number) for n, number in enumerate(numbers)} if all(n.isdigit() for n in numbers) else {}
