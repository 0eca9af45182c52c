"""`autotune null`: install what the null GPU needs, and say whether it is ready."""

from autotune.cli.console import Screen
from autotune.device.null.environment import prepare
from autotune.device.null.install import DOWNLOAD, cuda_torch, install_overlay
from autotune.device.null.toolkit import Torch, look_at
from autotune.errors import DeviceError


def install(release: str | None) -> None:
    """Fetch the CUDA build of torch `release` (by default the installed one's) unless there is one, and build the
    null GPU's libraries. Raises DeviceError."""
    own = look_at().torch
    wanted = release or (own.release if own else None)
    if wanted is None:
        raise DeviceError("there is no torch here to match.", "Name one: autotune null install --torch 2.13.0.")
    if own is not None and own.cuda and own.release == wanted:
        _tell(f"torch {own.version} is a CUDA build already: nothing to fetch")
    else:
        _tell(f"torch {wanted}, CUDA build: {DOWNLOAD} ...")
        made = install_overlay(wanted)
        _tell(f"torch {made.version} is in {made.folder.parent}")
    if own is not None and own.release == wanted:
        status()


def status() -> None:
    """Say that the null GPU is ready, and where its parts are. Raises DeviceError with what is missing."""
    torch: Torch = cuda_torch()[0]
    _tell(f"ready: torch {torch.version} in {torch.folder.parent}, libraries in {prepare()[1].folder}")


def _tell(line: str) -> None:
    Screen().console.print(line, soft_wrap=True)
