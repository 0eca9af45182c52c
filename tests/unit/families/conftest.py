"""Tiny base models, made once for the room, and files that only have a header."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.testing.tiny import build_meta, make_tiny, save_single_file
from trainer.families.load import Components, load_components

FAMILIES = ("sd1", "sdxl")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)  # sums differ in their last bits between thread counts


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {family: make_tiny(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.fixture(scope="session")
def tiny_components(tiny_folders: Mapping[str, Path]) -> Mapping[str, Components]:
    return {family: load_components(folder, torch.float32) for family, folder in tiny_folders.items()}


@pytest.fixture(scope="session")
def tiny_files(tiny_folders: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {f: save_single_file(tiny_folders[f], folder / f"{f}.safetensors") for f in FAMILIES}


@pytest.fixture(scope="session")
def full_size() -> Mapping[str, Components]:
    return {family: build_meta(family) for family in FAMILIES}


@pytest.fixture
def write_header(tmp_path: Path) -> Callable[..., Path]:
    """Writes a safetensors file of the given shapes whose weights are zeros (a hole in the file)."""

    def write(shapes: Mapping[str, tuple[int, ...]], dtype: str = "F16", cut_bytes: int = 0) -> Path:
        entries: dict[str, Any] = {}
        end = 0
        for name, shape in shapes.items():
            start, end = end, end + 2 * int(torch.Size(shape).numel())
            entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        header = json.dumps(entries).encode()
        path = tmp_path / "model.safetensors"
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end - cut_bytes)
        return path

    return write
