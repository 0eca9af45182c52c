"""Tiny base models and the demo photographs, written once per test process."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from integration_harness import Rig

from autotune.testing.photos import write_demo_dataset
from autotune.testing.tiny import make_tiny


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)  # sums differ in their last bits between thread counts


@pytest.fixture(autouse=True, scope="session")
def quick_collection(one_thread: None) -> None:
    """A trial collects garbage when it ends; what the imports made need not be looked through each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_dataset(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="session")
def base_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny base model of a family, made when it is first asked for."""
    made: dict[str, Path] = {}

    def base(family: str) -> Path:
        if family not in made:
            made[family] = make_tiny(tmp_path_factory.mktemp("base") / family, family)
        return made[family]

    return base


@pytest.fixture
def rig_of(tmp_path: Path, photos: Path, base_of: Callable[[str], Path]) -> Callable[[str], Rig]:
    """A rig of a family in a folder of this test's own."""
    return lambda family: Rig(tmp_path, base_of(family), photos)
