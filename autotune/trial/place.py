"""The place of a failure in the code that ran: the innermost line that is nobody's library.

Owns the choice of the line. Must never hold a frame: it gives strings.
"""

import sysconfig
import traceback
from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib", "stdlib")})
_OWN = str(Path(__file__).resolve().parent.parent)  # autotune itself; a trainer, ours too, is code that runs


def place_of(trace: TracebackType | None) -> str:
    """`step.py:79 in training_step: total.backward()`, then the path of the module that was running, if the frames
    tell it: `(down_blocks.0.resnets.1.conv1)`. Empty when only libraries were running."""
    frames = list(traceback.walk_tb(trace))
    own = [(frame, line) for frame, line in frames if not _is_library(frame.f_code.co_filename)]
    if not own:
        return ""
    frame, line = own[-1]
    summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
    module = _module_path([frame for frame, _ in frames])
    told = f"{Path(summary.filename).name}:{line} in {summary.name}: {summary.line}"
    return f"{told} ({module})" if module else told


def _is_library(filename: str) -> bool:
    folders = Path(filename).parts
    path = str(Path(filename).resolve())
    inside = path.startswith((*_LIBRARIES, _OWN)) or {"site-packages", "dist-packages", "torch"} & set(folders)
    return bool(inside) or filename.startswith("<")


def _module_path(frames: list[FrameType]) -> str:
    """The names by which each running module holds the next one, from the outermost model inwards."""
    running: list[Any] = []
    for frame in frames:
        owner = frame.f_locals.get("self")
        if hasattr(owner, "named_modules") and not any(owner is module for module in running):
            running.append(owner)
    names = [_name_within(outer, inner) for outer, inner in pairwise(running)]
    return ".".join(name for name in names if name)


def _name_within(outer: Any, inner: Any) -> str:
    return next((name for name, module in outer.named_modules() if module is inner), "")
