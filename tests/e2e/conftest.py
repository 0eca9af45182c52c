"""A tiny base model and photographs, made once per run, and folders to run commands in."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_harness import PATIENCE_S, Desk, furnish, sit_down

from autotune.posix import lock_file

_MAKE_BASE = """
import sys
from autotune.testing.single_file import save_single_file
from autotune.testing.tiny import make_tiny
save_single_file(make_tiny(sys.argv[1] + "/base"), sys.argv[1] + "/base.safetensors")
"""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base` and `base.safetensors`, the same tiny model. Made once for all test processes."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "e2e-base"
    with lock_file(shared, timeout_seconds=PATIENCE_S):
        if not folder.exists():
            partial = shared / "e2e-base-partial"
            partial.mkdir()
            subprocess.run([sys.executable, "-c", _MAKE_BASE, partial], check=True, capture_output=True)
            partial.rename(folder)
    return folder


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """An empty folder to work in; whatever a failed test left running there is ended."""
    yield from sit_down(tmp_path)


@pytest.fixture(scope="module")
def long_desk(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Desk]:
    """A furnished folder that the tests of one module share."""
    for desk in sit_down(tmp_path_factory.mktemp("desk")):
        furnish(desk, base)
        yield desk


@pytest.fixture
def furnished(desk: Desk, base: Path) -> Desk:
    """A folder with a base model, photographs and a kohya config.toml."""
    furnish(desk, base)
    return desk
