"""What holds for all tests: property tests draw the same examples in every run; the null GPU is shared.

`HYPOTHESIS_PROFILE=explore` draws new ones, for looking for faults; what it finds becomes an `@example`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from autotune.device.null.card import NullCard
from autotune.device.null.environment import null_environment, prepare
from autotune.errors import DeviceError

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


class NullGpu:
    """Runs programs on null cards and reads the JSON they print last."""

    def environment(self, *cards: str, control: Path | None = None, **variables: str) -> dict[str, str]:
        """The environment of a program on `cards`, with `variables` set."""
        environment = null_environment([NullCard.parse(card) for card in cards], control=control)
        return environment | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | variables

    def run(
        self, program: Path | str, *cards: str, control: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a file, or the text of a program."""
        arguments = [str(program)] if isinstance(program, Path) else ["-c", program]
        environment = self.environment(*cards, control=control, **variables)
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)

    def answer(self, program: Path | str, *cards: str, control: Path | None = None, **variables: str) -> Any:
        """What the program prints as JSON on its last line. It must end well."""
        done = self.run(program, *cards, control=control, **variables)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def null_gpu() -> NullGpu:
    """Programs on null cards; skips, with the reason, where the null GPU can't work."""
    try:
        prepare()
    except DeviceError as error:
        pytest.skip(str(error))
    return NullGpu()
