"""Which card is `cuda:N`? Matches CUDA ordinals to NVML cards by UUID or PCI address.

Owns the rules of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER (CUDA C++ programming guide, "Environment
variables"; corner cases as torch/cuda/__init__.py mirrors the driver: `_parse_visible_devices`,
`_transform_uuid_to_ordinals`). Pure functions: the environment comes in as a mapping and nothing is opened.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.device.nvml import GpuReading, MigInstance, pci_key

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class CudaDevice:
    """What a CUDA ordinal stands for: a whole card, or one MIG instance of it."""

    gpu: GpuReading
    instance: MigInstance | None = None

    @property
    def uuid(self) -> str:
        """The identity CUDA shows: the instance's on a MIG slice, else the card's."""
        return self.instance.uuid if self.instance else self.gpu.uuid

    @property
    def name(self) -> str:
        """The display name of the card or instance."""
        return self.instance.name if self.instance else self.gpu.name


@dataclass(frozen=True)
class Ordinals:
    """The devices CUDA shows a process, by ordinal. `certain` is False where the order is a guess.

    `notes` has one sentence for each thing guessed or left out.
    """

    devices: tuple[CudaDevice, ...]
    certain: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """One device as CUDA itself enumerates it; UUID without or with its `GPU-`/`MIG-` prefix, or empty."""

    uuid: str
    pci_bus_id: str


def order_from_environment(gpus: Sequence[GpuReading], environ: Mapping[str, str]) -> Ordinals:
    """The ordinals that `environ` and NVML's facts imply, without asking CUDA."""
    reachable = [gpu for gpu in gpus if gpu.reachable]
    notes = [f"GPU {gpu.index} is left out: CUDA can't use it." for gpu in gpus if not gpu.reachable]
    ordered = _enumerate(reachable, environ)
    chosen, by_index, problem = _choose(ordered, environ.get(VISIBLE))
    if problem:
        notes.append(problem)
    guessed = by_index and _order_is_guess(ordered, environ)
    if guessed:
        notes.append(_guess_note(ordered))
    return Ordinals(tuple(chosen), not guessed, tuple(notes))


def order_from_cuda(gpus: Sequence[GpuReading], seen: Sequence[Seen]) -> Ordinals:
    """The ordinals CUDA itself reports, matched by UUID, else by PCI address.

    `certain` is False, and `devices` ends there, if one of them matches no card NVML shows.
    """
    devices: list[CudaDevice] = []
    for ordinal, one in enumerate(seen):
        device = match_device(gpus, one)
        if device is None:
            note = f"cuda:{ordinal} matches no card that NVML shows, neither by UUID nor by PCI address."
            return Ordinals(tuple(devices), False, (note,))
        devices.append(device)
    return Ordinals(tuple(devices), True)


def match_device(gpus: Sequence[GpuReading], seen: Seen) -> CudaDevice | None:
    """The card or MIG instance with the UUID of `seen`; else, without MIG, with its PCI address."""
    everything = [device for gpu in gpus for device in (CudaDevice(gpu), *_instances(gpu))]
    wanted = _bare(seen.uuid)
    for device in everything:
        if wanted and _bare(device.uuid) == wanted:
            return device
    address = pci_key(seen.pci_bus_id)
    at_address = [gpu for gpu in gpus if address and pci_key(gpu.pci_bus_id) == address]
    if len(at_address) != 1:
        return None
    gpu = at_address[0]
    if not gpu.mig_enabled:
        return CudaDevice(gpu)
    return _instances(gpu)[0] if len(gpu.mig_instances) == 1 else None


def parse_visible(text: str) -> list[int] | list[str]:
    """The entries of CUDA_VISIBLE_DEVICES up to the first invalid one: all indices or all UUIDs (prefixes).

    The first entry decides which. A repeated entry makes the whole list empty, as in CUDA. An index may carry
    trailing letters (`1gpu` is 1); a negative or missing number ends the list.
    """
    text = text.strip()
    for prefix in ("GPU-", "MIG-"):
        if text.startswith(prefix):
            return _uuid_entries(text, prefix)
    return _index_entries(text)


def _enumerate(gpus: Sequence[GpuReading], environ: Mapping[str, str]) -> list[CudaDevice]:
    """Every device before CUDA_VISIBLE_DEVICES is applied, a MIG card replaced by its instances."""
    by_address = sorted(gpus, key=_address)
    if environ.get(ORDER, "").upper() != "PCI_BUS_ID":
        by_address.sort(key=_speed, reverse=True)  # stable: like cards stay in the order of their addresses
    return [device for gpu in by_address for device in (_instances(gpu) if gpu.mig_enabled else [CudaDevice(gpu)])]


def _choose(ordered: list[CudaDevice], text: str | None) -> tuple[list[CudaDevice], bool, str]:
    """The devices shown, whether their order depends on the enumeration, and a sentence on a bad list."""
    if text is None:
        return (*_all_visible(ordered), "")
    entries = parse_visible(text)
    chosen: list[CudaDevice] = []
    for entry in entries:
        device = _find(ordered, entry)
        if device is None or device in chosen:
            chosen = chosen if device is None else []  # CUDA: an unknown one ends the list, a repeat empties it
            break
        chosen.append(device)
    named = len([part for part in text.split(",") if part.strip()])
    problem = "" if len(chosen) == named else f"{VISIBLE}={text!r} shows {len(chosen)} of {named} named devices."
    chosen = _only_one_instance(chosen)
    return chosen, bool(entries) and isinstance(entries[0], int), problem


def _all_visible(ordered: list[CudaDevice]) -> tuple[list[CudaDevice], bool]:
    whole = [device for device in ordered if device.instance is None]
    return (whole, True) if whole else (ordered[:1], True)


def _only_one_instance(chosen: list[CudaDevice]) -> list[CudaDevice]:
    """CUDA shows a process a single MIG instance (MIG user guide, "Device enumeration")."""
    return chosen[:1] if chosen and chosen[0].instance else chosen


def _find(ordered: list[CudaDevice], entry: int | str) -> CudaDevice | None:
    if isinstance(entry, int):
        return ordered[entry] if entry < len(ordered) else None
    named = [device for device in ordered if device.uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None  # an ambiguous prefix is invalid


def _order_is_guess(ordered: list[CudaDevice], environ: Mapping[str, str]) -> bool:
    """NVML does not tell CUDA's order of unlike cards, nor which of several MIG instances it counts first."""
    if len(ordered) > 1 and any(device.instance for device in ordered):
        return True
    models = {(device.gpu.name, _speed(device.gpu)) for device in ordered}
    return environ.get(ORDER, "").upper() != "PCI_BUS_ID" and len(models) > 1


def _guess_note(ordered: list[CudaDevice]) -> str:
    if any(device.instance for device in ordered):
        return f"Which MIG instance CUDA shows was guessed: name one in {VISIBLE} to be sure."
    return (
        "The order of the cards was guessed from their compute capability and cores: "
        f"{ORDER} is not PCI_BUS_ID and CUDA did not tell."
    )


def _uuid_entries(text: str, prefix: str) -> list[str]:
    entries: list[str] = []
    for entry in text.split(","):
        if entry in entries:
            return []
        if not entry.startswith(prefix):
            break
        entries.append(entry)
    return entries


def _index_entries(text: str) -> list[int]:
    entries: list[int] = []
    for part in text.split(","):
        match = re.match(r"\+?(\d+)", part.strip(), re.ASCII)
        if match is None:
            break
        if int(match.group(1)) in entries:
            return []
        entries.append(int(match.group(1)))
    return entries


def _instances(gpu: GpuReading) -> list[CudaDevice]:
    return [CudaDevice(gpu, instance) for instance in gpu.mig_instances]


def _address(gpu: GpuReading) -> tuple[int, ...]:
    return pci_key(gpu.pci_bus_id) or (1 << 32, gpu.index)


def _speed(gpu: GpuReading) -> tuple[tuple[int, int], int]:
    return (gpu.compute_capability or (0, 0), gpu.cores or 0)


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")
