"""What the null GPU has answered, kept in the user's cache folder, so that no plan is run twice.

Owns the file's form and its key: all that shapes an answer (packages, our own code, PyTorch's settings, job,
architecture). A file
that can't be read is as good as none. Must never be the only copy of anything, and never import torch.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.device.null.install import cuda_torch
from autotune.device.null.places import cache_folder
from autotune.errors import DeviceError, DiskError
from autotune.files import write_atomically
from autotune.ladder.plan import Plan
from autotune.memory.account import Account
from autotune.trial.outcome import Outcome
from autotune.trial.workload import Job

FORM = 3  # raised when the file's form changes
MOST_FILES = 20_000
_CONFIGS = (".toml", ".json", ".yaml", ".yml")
_NAMES = ("family", "variant")  # never of files
_PACKAGES = ("diffusers", "transformers", "peft", "accelerate", "bitsandbytes")
_SETTINGS = ("PYTORCH_", "TORCH_", "CUBLAS", "CUDNN", "BNB_")
"""How the variables begin that change what PyTorch or a library takes, such as PYTORCH_CUDA_ALLOC_CONF."""
_OUR_CODE = ("trainer", "autotune.trial", "autotune.device", "autotune.memory")


@dataclass
class ForecastCache:
    """The answers about one job on one architecture. `save` writes what came about since it was loaded."""

    path: Path | None
    job: Job | None = None
    outcomes: dict[Plan, Outcome] = field(default_factory=dict)
    accounts: dict[Plan, Account | None] = field(default_factory=dict)
    """None where this torch can't tell."""
    steps_only: dict[Plan, Outcome] = field(default_factory=dict)
    """Trials that ended with their steps: never mistaken for whole ones."""
    squeezed: dict[tuple[Plan, int], Outcome] = field(default_factory=dict)
    """Trials in a room of so many bytes."""
    _loaded: int = 0

    @classmethod
    def load(cls, key: str | None) -> "ForecastCache":
        """The cache of `key` (see `cache_key`), empty where there is none; never on the disk for None."""
        if key is None:
            return cls(None)
        made = cls(cache_folder() / "forecasts" / f"{key}.json")
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            made._read(json.loads((made.path or Path()).read_text("utf-8")))
        return made

    def save(self) -> None:
        """Write the file, unless nothing is new. A full disk costs the cache and nothing else."""
        if self.path is None or self.job is None or self._size() == self._loaded:
            return
        with suppress(DiskError):
            write_atomically(self.path, json.dumps(self._to_json(), separators=(",", ":")).encode())
            self._loaded = self._size()

    def _read(self, document: Mapping[str, Any]) -> None:
        if document["form"] != FORM:
            return
        job = Job.from_json(document["job"])
        outcomes = {one.plan: one for one in map(Outcome.from_json, document["outcomes"])}
        accounts = {Plan.from_json(p): Account.from_json(a) if a else None for p, a in document["accounts"]}
        steps_only = {one.plan: one for one in map(Outcome.from_json, document["steps_only"])}
        squeezed = [(Outcome.from_json(outcome), int(room)) for room, outcome in document["squeezed"]]
        self.job, self.outcomes, self.accounts, self.steps_only = job, outcomes, accounts, steps_only
        self.squeezed = {(outcome.plan, room): outcome for outcome, room in squeezed}
        self._loaded = self._size()

    def _to_json(self) -> dict[str, Any]:
        assert self.job is not None
        return {
            "form": FORM,
            "job": self.job.to_json(),
            "outcomes": [outcome.to_json() for outcome in list(self.outcomes.values())],
            "steps_only": [outcome.to_json() for outcome in list(self.steps_only.values())],
            "accounts": [[p.to_json(), a.to_json() if a else None] for p, a in list(self.accounts.items())],
            "squeezed": [[room, outcome.to_json()] for (_, room), outcome in list(self.squeezed.items())],
        }

    def _size(self) -> int:
        return len(self.outcomes) + len(self.accounts) + len(self.steps_only) + len(self.squeezed)


def cache_key(
    workload: str, config: Mapping[str, Any], architecture: object, files: Iterable[Path] = ()
) -> str | None:
    """A digest of all that shapes the answers, with the state of the user's `files` and folders that the job reads
    and of whatever a setting names that is there. None where that can't be told."""
    named = [Path(v).expanduser() for key, v in config.items() if key not in _NAMES and isinstance(v, str) and v]
    try:
        torch = cuda_torch()[0].version
        states = [state_of(path) for path in [*map(Path, config.get("configs", ())), *named, *files]]
    except (DeviceError, OSError, ValueError, TooManyError):
        return None
    settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    parts = [FORM, torch, _versions(), settings, _code_digest(), workload, config, repr(architecture), states]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class TooManyError(Exception):
    """A folder holds more files than are worth looking at."""


def state_of(path: Path) -> list[Any]:
    """What changes when a file, or anything in a folder, does: size and time of each, and of a config its content.
    Nothing where nothing is: wherever the command runs, a name without a file means the same. Raises TooManyError,
    OSError."""
    if path.suffix in _CONFIGS and path.is_file():
        return [str(path), hashlib.sha256(path.read_bytes()).hexdigest()]
    inside: list[list[Any]] = []
    for folder, _, names in os.walk(path, followlinks=True):
        inside += [[folder], *([folder, name, *_file_state(Path(folder, name))] for name in names)]
        if len(inside) > MOST_FILES:
            raise TooManyError
    found = _file_state(path)
    return [str(path), *found, sorted(inside)] if found else []


def _file_state(path: Path) -> list[Any]:
    try:
        found = path.stat()
    except OSError:  # not there, or not a path at all
        return []
    return [found.st_size, found.st_mtime_ns]


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return found


@cache
def _code_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(_our_files()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _our_files() -> Iterable[Path]:
    for name in _OUR_CODE:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from (p for p in Path(folder).rglob("*") if p.suffix in (".py", ".json", ".cpp", ".h", ".txt"))
