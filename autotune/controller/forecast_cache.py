"""What the null GPU has answered, kept in the user's cache folder, so that no plan is run twice.

Owns the file's form and its key: all that shapes an answer (packages, our own code, job, architecture). A file
that can't be read is as good as none. Must never be the only copy of anything, and never import torch.
"""

import hashlib
import json
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

FORM = 2  # raised when the file's form changes
_NAMES = ("family", "variant")  # never of files
_PACKAGES = ("diffusers", "transformers", "peft", "accelerate", "bitsandbytes")
_OUR_CODE = ("trainer", "autotune.trial", "autotune.device", "autotune.memory")


@dataclass
class ForecastCache:
    """The answers about one job on one architecture. `save` writes what came about since it was loaded."""

    path: Path | None
    job: Job | None = None
    outcomes: dict[Plan, Outcome] = field(default_factory=dict)
    accounts: dict[Plan, Account] = field(default_factory=dict)
    steps_only: dict[Plan, Outcome] = field(default_factory=dict)
    """Trials that ended with their steps: never mistaken for whole ones."""
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
        accounts = {Plan.from_json(plan): Account.from_json(account) for plan, account in document["accounts"]}
        steps_only = {one.plan: one for one in map(Outcome.from_json, document["steps_only"])}
        self.job, self.outcomes, self.accounts, self.steps_only = job, outcomes, accounts, steps_only
        self._loaded = self._size()

    def _to_json(self) -> dict[str, Any]:
        assert self.job is not None
        return {
            "form": FORM,
            "job": self.job.to_json(),
            "outcomes": [outcome.to_json() for outcome in self.outcomes.values()],
            "steps_only": [outcome.to_json() for outcome in self.steps_only.values()],
            "accounts": [[plan.to_json(), account.to_json()] for plan, account in self.accounts.items()],
        }

    def _size(self) -> int:
        return len(self.outcomes) + len(self.accounts) + len(self.steps_only)


def cache_key(workload: str, config: Mapping[str, Any], architecture: object) -> str | None:
    """A digest of all that shapes the answers; None for a job that depends on files of the user's, which may
    change at any time: configs, and whatever a setting names that is there."""
    if config.get("configs") or any(_is_there(v) for key, v in config.items() if key not in _NAMES):
        return None
    try:
        torch = cuda_torch()[0].version
    except DeviceError:
        return None
    parts = [FORM, torch, _versions(), _code_digest(), workload, config, repr(architecture)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _is_there(value: object) -> bool:
    return isinstance(value, str) and bool(value) and Path(value).expanduser().exists()


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
