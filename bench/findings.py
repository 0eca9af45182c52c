"""What a part of the GPU check found: checks that hold or not, numbers, and why it ended early if it did.

Owns the record and its file, which is written anew after each entry: a part that is killed for taking too long
still leaves what it had learned. Must never decide what to check.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.files import write_atomically


class Skipped(Exception):  # noqa: N818 - an outcome, not a failure
    """A part that can't be done here, for a reason that is no fault; the text is one line."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold, whether it did, and the values that say so."""

    name: str
    passed: bool
    detail: str = ""


@dataclass
class Findings:
    """The record of one part, kept in `path` if there is one."""

    path: Path | None = None
    checks: list[Check] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    skipped: str = ""

    def check(self, name: str, passed: object, detail: str = "") -> None:
        """Record that `name` must hold and whether it does."""
        self.checks.append(Check(name, bool(passed), detail))
        self._keep()

    def note(self, **numbers: Any) -> None:
        """Record numbers (JSON values), bytes named `..._bytes`."""
        self.numbers.update(numbers)
        self._keep()

    def end(self, error: str = "", skipped: str = "") -> None:
        """Record how the part ended, if not by itself."""
        self.error, self.skipped = error, skipped
        self._keep()

    @property
    def passed(self) -> bool:
        """Whether something was checked and all of it holds."""
        return bool(self.checks) and not self.error and all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "passed": None if self.skipped else self.passed,
            "checks": [vars(check) for check in self.checks],
            "numbers": self.numbers,
            "error": self.error,
            "skipped": self.skipped,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Findings":
        """The record whose JSON form is `values`, without a file."""
        checks = [Check(**check) for check in values["checks"]]
        return cls(None, checks, dict(values["numbers"]), values["error"], values["skipped"])

    @classmethod
    def read(cls, path: Path) -> "Findings":
        """The record in `path`; an empty one if there is none."""
        return cls.from_json(json.loads(path.read_text("utf-8"))) if path.exists() else cls()

    def _keep(self) -> None:
        if self.path is not None:
            write_atomically(self.path, json.dumps(self.to_json()).encode())
