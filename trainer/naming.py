"""What a run calls its files. Owns the promise that no file of another run is written over, whether that run is
over or goes on beside this one.
"""

import re
from collections.abc import Callable
from pathlib import Path

from autotune.trial.workload import Report

SAMPLES = "sample"  # kohya's name of the folder for pictures


class RunName:
    """The name that a run's files begin with: free at the start, and given up for the next free one when another
    run takes it meanwhile."""

    def __init__(self, folder: Path, wanted: str, report: Report) -> None:
        """Take `wanted` in `folder`, or the first free of `wanted-2`, `wanted-3`, ..., which is reported."""
        self._folder, self._wanted, self._report = folder, wanted, report
        self.stem = free_stem(folder, wanted)
        if self.stem != wanted:
            self._note(f"files of an earlier run are named {wanted}: this run writes {self.stem}.safetensors")

    def write(self, folder: Path, ending: str, write: Callable[[Path], None]) -> Path:
        """Have `write` make the file of this run in `folder` with `ending`; its path.

        `write` raises FileExistsError when there is a file already, and is then called with the next name.
        """
        while True:
            path = folder / f"{self.stem}{ending}"
            try:
                write(path)
            except FileExistsError:
                self._move_on()
            else:
                return path

    def _move_on(self) -> None:
        taken, self.stem = self.stem, free_stem(self._folder, self._wanted)
        self._note(
            f"another run has written files named {taken} meanwhile: from here on this run's are {self.stem}"
        )

    def _note(self, text: str) -> None:
        self._report({"event": "note", "text": text})


def free_stem(folder: Path, name: str) -> str:
    """`name`, or `name-2`, `name-3`, ...: the first that no file in `folder` or its pictures' folder has."""
    taken = [path.name for place in (folder, folder / SAMPLES) for path in place.glob("*")]
    number, stem = 1, name
    while any(_is_output_of(stem, file) for file in taken):
        number += 1
        stem = f"{name}-{number}"
    return stem


def _is_output_of(stem: str, file: str) -> bool:
    """Whether a run that is called `stem` would write a file of this name, at its end or on the way."""
    return re.fullmatch(rf"{re.escape(stem)}(-step\d+|-\d{{6,}})?(\.safetensors|_\d+\.png)", file) is not None
