"""A workload whose trials wait to be killed: for tests of what happens to the run around them.

Each trial appends its process number to the file `pids` in the current folder. The first trials, as many as the
file `patience` there says, then wait for ever; later ones fit.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.device.session import DeviceSession
from autotune.ladder.plan import Plan, Recipe
from autotune.trial.workload import Job


def create(config: Mapping[str, Any]) -> "Waiting":
    return Waiting()


class Waiting:
    def job(self) -> Job:
        return Job("waiting", {"family": "waiting"}, Recipe(Plan.of(batch_size=1), effective_batch=1))

    def open(self, plan: Plan, device: DeviceSession) -> "WaitingSession":
        return WaitingSession()


class WaitingSession:
    phases_before: Sequence[str] = ()
    phases_after: Sequence[str] = ()

    def run_phase(self, name: str) -> None:
        """There are none."""

    def step(self) -> None:
        pids, patience = Path("pids"), Path("patience")
        known = pids.read_text().split() if pids.exists() else []
        if str(os.getpid()) not in known:
            known.append(str(os.getpid()))
            pids.write_text("\n".join(known) + "\n")
        if len(known) <= int(patience.read_text()):
            threading.Event().wait()

    def close(self) -> None:
        """Nothing is held."""
