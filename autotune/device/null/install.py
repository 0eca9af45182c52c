"""The CUDA build of torch where there is a CPU build: a folder that goes first on a Python's path.

Owns that folder. It is made whole or not at all, from the CUDA wheel alone: NVIDIA's packages are not needed,
since the null GPU's libraries stand in for them. Must never touch an installed package.
"""

import os
import platform
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from autotune.device.null.places import cache_folder
from autotune.device.null.toolkit import Torch, look_at, read_torch
from autotune.errors import DeviceError

DOWNLOAD = "about 530 MB to download, 1.2 GB on the disk"
STILL = "Shared tables, profiles and trials on a card or on the virtual GPU work without."
_MACHINES = ("x86_64", "aarch64")


def overlay_folder(release: str, version: tuple[int, int] = sys.version_info[:2]) -> Path:
    """Where the CUDA build of torch `release` for a Python `version` is kept."""
    return cache_folder() / f"torch-{release}-py{version[0]}{version[1]}"


def find_overlay(release: str) -> Torch | None:
    """The installed CUDA build of torch `release` for this Python, or None."""
    torch = read_torch(overlay_folder(release) / "torch")
    return torch if torch and torch.cuda else None


def cuda_torch(python: str = sys.executable) -> tuple[Torch, Path | None]:
    """The CUDA build that a program of `python` can run on, and the folder that must go first on its path (None
    when its own torch is one). Raises DeviceError with the command that makes one."""
    check_platform()
    own = look_at(python).torch
    if own is None:
        raise DeviceError(f"{python} has no torch, so nothing can run on a null GPU.", "Install torch there.")
    if own.cuda:
        return own, None
    overlay = find_overlay(own.release)
    if overlay is None:
        raise DeviceError(
            f"the null GPU needs a CUDA build of torch {own.release}; installed is {own.version}.",
            f"Run `autotune null install` ({DOWNLOAD}). {STILL}",
        )
    return overlay, overlay.folder.parent


def check_platform() -> None:
    """Raises DeviceError where the null GPU can't work."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        raise DeviceError(
            f"the null GPU works on Linux ({' and '.join(_MACHINES)}) only, not on {sys.platform} "
            f"{platform.machine()}.",
            STILL,
        )


def install_overlay(release: str) -> Torch:
    """Fetch the CUDA build of torch `release` with pip into its folder, unless it is there. Raises DeviceError."""
    check_platform()
    present = find_overlay(release)
    if present is not None:
        return present
    folder = overlay_folder(release)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="installing-", dir=folder.parent) as name:
        target = Path(name) / "torch"
        _pip(target, release)
        with suppress(OSError):  # somebody else was quicker
            target.rename(folder)
    made = find_overlay(release)
    if made is None:
        raise DeviceError(
            f"pip installed a build of torch {release} without CUDA.",
            f"Name an index that has CUDA builds: PIP_INDEX_URL=https://pypi.org/simple. {STILL}",
        )
    return made


def _pip(target: Path, release: str) -> None:
    # `===` compares text, so a local build (2.13.0+cpu) on the index does not match
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += ["--root-user-action=ignore", "--target", str(target), f"torch==={release}"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": ""}
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise DeviceError(
            f"the CUDA build of torch {release} can't be installed: {(lines or ['pip gave no reason'])[-1]}",
            f"Check the network and the disk ({DOWNLOAD}). {STILL}",
        )
