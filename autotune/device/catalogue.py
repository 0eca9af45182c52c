"""The GPU catalogue: what the cards people train on give a run, read from `gpus.toml` beside this module.

Owns the entries (memory as the driver reports it, multiprocessors, bandwidth, context overhead) and the
limits that follow from the compute capability alone. Finds an entry by the name a user types or by what NVML
and torch call a card. Must never ask the machine which card it has, import torch, or invent a figure: every
total names its source.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from autotune.errors import DeviceError
from autotune.units import GIB, KIB, MIB

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": maximum shared memory per SM
# and per thread block in KiB, maximum number of resident threads per SM.
_LIMITS: Mapping[tuple[int, int], tuple[int, int, int]] = {
    (6, 0): (64, 48, 2048),
    (6, 1): (96, 48, 2048),
    (7, 0): (96, 96, 2048),
    (7, 5): (64, 64, 1024),
    (8, 0): (164, 163, 2048),
    (8, 6): (100, 99, 1536),
    (8, 7): (164, 163, 1536),
    (8, 9): (100, 99, 1536),
    (9, 0): (228, 227, 2048),
    (10, 0): (228, 227, 2048),
    (10, 3): (228, 227, 2048),
    (12, 0): (100, 99, 1536),
    (12, 1): (100, 99, 1536),
}
_SOLD_SIZE = re.compile(r"-[0-9]+gb$")
_BELOW_CATALOGUE = 0.1  # ECC switched on takes 1/16 of GDDR memory, a later driver up to 3 % of a small card


@dataclass(frozen=True)
class MultiprocessorLimits:
    """What one streaming multiprocessor (SM) of a compute capability offers, in bytes and threads."""

    shared_bytes: int
    """Shared memory of one SM."""
    block_shared_bytes: int
    """Shared memory one thread block may have after opting in (`sharedMemPerBlockOptin`)."""
    threads: int
    """Threads resident on one SM."""


@dataclass(frozen=True)
class ContextOverhead:
    """Device memory of one PyTorch process outside PyTorch's allocator, as an interval with its grounds."""

    low_bytes: int
    high_bytes: int
    basis: str


@dataclass(frozen=True)
class Card:
    """One card of the catalogue. The meaning and origin of each figure stand at the top of `gpus.toml`."""

    slug: str
    """The name users write: `rtx-3060-12gb`, as in `null:rtx-3060-12gb`."""
    names: tuple[str, ...]
    """What NVML and torch call it. Cards of several memory sizes share a name."""
    sold_bytes: int
    """The size on the box."""
    total_bytes: int
    """What the CUDA driver reports on Linux, and so what a run can have at most."""
    total_precision: str
    """How finely `total_bytes` was printed: `exact`, `1 MiB`, `0.01 GiB`, ..., or `derived`."""
    nvml_total_bytes: int | None
    """The total of nvidia-smi; None where it has none (memory shared with the processor)."""
    compute_capability: tuple[int, int]
    sm_count: int
    bandwidth_gb_s: float
    """Peak bandwidth of the memory, in 10^9 bytes per second."""
    context: ContextOverhead
    unified_memory: bool
    """The memory is the processor's too, so the operating system has taken its part of it."""
    derived_from: str | None
    """Slug of the card `total_bytes` was derived from; None where it was printed for this one."""
    source: str
    """Where `total_bytes` comes from."""

    @property
    def limits(self) -> MultiprocessorLimits:
        """The limits of one multiprocessor, which follow from the compute capability."""
        return multiprocessor_limits(self.compute_capability)


def multiprocessor_limits(compute_capability: tuple[int, int]) -> MultiprocessorLimits:
    """Shared memory and threads of one SM. Raises DeviceError for a compute capability not known here."""
    row = _LIMITS.get(compute_capability)
    if row is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(_LIMITS))
        major, minor = compute_capability
        raise DeviceError(f"compute capability {major}.{minor} is not known (known: {known}).")
    shared_kib, block_shared_kib, threads = row
    return MultiprocessorLimits(shared_kib * KIB, block_shared_kib * KIB, threads)


@cache
def load_catalogue() -> tuple[Card, ...]:
    """Every card, in the file's order: by generation. Read once per process."""
    document = tomllib.loads(files(__package__).joinpath("gpus.toml").read_text(encoding="utf-8"))
    contexts = {name: _read_context(table) for name, table in document["context"].items()}
    return tuple(_read_card(table, contexts) for table in document["card"])


def find_card(name_or_slug: str) -> Card:
    """The card a user means: a slug, one without its memory size, or a device name, in any case and spacing.

    Raises DeviceError when nothing is meant by it, with the nearest slugs, or when it could be several cards,
    with the slugs to choose from.
    """
    wanted = _slugify(name_or_slug)
    found = _meant(wanted)
    if len(found) == 1:
        return found[0]
    if found:
        slugs = ", ".join(card.slug for card in found)
        raise DeviceError(f"GPU {name_or_slug!r} could be several cards.", f"Use one of {slugs}.")
    raise DeviceError(f"GPU {name_or_slug!r} is not in the catalogue.", _suggestion(wanted))


def match_card(device_name: str, total_bytes: int) -> Card | None:
    """The entry of the card that NVML or torch calls `device_name` and that reports `total_bytes`.

    Sizes sharing one name are told apart by the total, which varies with driver, operating system and ECC: at
    most the size on the box, at least 10 % below the catalogue's figure. None if no entry fits, which is no
    error: a card may be newer than this file, cut into slices (MIG, vGPU), or modified.
    """
    wanted = _slugify(device_name)
    fitting = [card for card in load_catalogue() if wanted in _name_slugs(card) and _fits(card, total_bytes)]
    return min(fitting, key=lambda card: abs(card.total_bytes - total_bytes), default=None)


def _read_context(table: Mapping[str, Any]) -> ContextOverhead:
    return ContextOverhead(table["low_mib"] * MIB, table["high_mib"] * MIB, table["basis"])


def _read_card(table: Mapping[str, Any], contexts: Mapping[str, ContextOverhead]) -> Card:
    major, minor = table["compute_capability"].split(".")
    nvml_total_mib = table.get("nvml_total_mib")
    return Card(
        slug=table["slug"],
        names=tuple(table["names"]),
        sold_bytes=int(table["sold_gib"] * GIB),
        total_bytes=table["total_bytes"],
        total_precision=table["total_precision"],
        nvml_total_bytes=None if nvml_total_mib is None else nvml_total_mib * MIB,
        compute_capability=(int(major), int(minor)),
        sm_count=table["sm_count"],
        bandwidth_gb_s=float(table["bandwidth_gb_s"]),
        context=contexts[table["context"]],
        unified_memory=table.get("unified_memory", False),
        derived_from=table.get("derived_from"),
        source=table["source"],
    )


def _slugify(text: str) -> str:
    """`NVIDIA GeForce RTX 3060` and `rtx_3060` both give `rtx-3060`: brands tell no cards apart."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "-".join(word for word in words if word not in {"nvidia", "geforce", "tesla"})


def _name_slugs(card: Card) -> set[str]:
    return {_slugify(name) for name in card.names}


def _meant(wanted: str) -> list[Card]:
    """Cards with this slug, else with it as a name or as the slug less the size, else as its beginning."""
    cards = load_catalogue()
    return (
        [card for card in cards if card.slug == wanted]
        or [card for card in cards if wanted in _name_slugs(card) | {_SOLD_SIZE.sub("", card.slug)}]
        or [card for card in cards if wanted and card.slug.startswith(f"{wanted}-")]
    )


def _suggestion(wanted: str) -> str:
    slugs = [card.slug for card in load_catalogue()]
    near = get_close_matches(wanted, slugs, n=3, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Choose one of its {len(slugs)} cards, such as rtx-3060-12gb."


def _fits(card: Card, total_bytes: int) -> bool:
    return card.total_bytes * (1 - _BELOW_CATALOGUE) <= total_bytes <= card.sold_bytes
