"""A pickle that wants to run something is refused, and what it wants is not run."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.errors import ModelError
from trainer.families.detect import detect_family
from trainer.families.load import load_components, load_vae


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.trace),)


def _state(trace: Path) -> dict[str, Any]:
    shapes = {
        "model.diffusion_model.input_blocks.0.0.weight": (32, 4, 3, 3),
        "first_stage_model.decoder.conv_in.weight": (8, 4, 3, 3),
        "cond_stage_model.transformer.text_model.final_layer_norm.weight": (64,),
    }
    return {**{n: torch.zeros(s) for n, s in shapes.items()}, "payload": Hostile(trace)}


@pytest.mark.parametrize("legacy", [False, True])
def test_hostile_checkpoint_is_refused_and_its_payload_does_not_run(tmp_path: Path, legacy: bool) -> None:
    trace, path = tmp_path / "ran", tmp_path / "model.ckpt"
    torch.save({"state_dict": _state(trace)}, path, _use_new_zipfile_serialization=not legacy)
    assert detect_family(path).family == "sd1"
    with pytest.raises(ModelError, match=r"more than weights \((posix|nt)\.mkdir\)") as caught:
        load_components(path, torch.float32)
    assert "convert it" in caught.value.way_out
    assert not trace.exists()


def test_hostile_vae_is_refused_too(tmp_path: Path) -> None:
    trace, path = tmp_path / "ran", tmp_path / "vae.pt"
    torch.save(_state(trace), path)
    with pytest.raises(ModelError, match="more than weights"):
        load_vae(path, "sd1", torch.float32)
    assert not trace.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_bare_hostile_pickle_never_runs(tmp_path: Path, protocol: int) -> None:
    trace, path = tmp_path / "ran", tmp_path / "model.ckpt"
    bare = pickle.dumps(Hostile(trace), protocol=protocol)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", bare)
    for content in (bare, bare * 4, packed.getvalue()):
        path.write_bytes(content)
        with pytest.raises(ModelError):
            load_components(path, torch.float32)
    assert not trace.exists()


def test_training_checkpoint_of_another_library_is_refused_with_its_culprit(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    content = {"state_dict": _state(tmp_path / "ran") | {"payload": 0}, "callbacks": {io.StringIO: 1}}
    torch.save(content, path)
    with pytest.raises(ModelError, match=r"more than weights \(_?io\.StringIO\)"):
        load_components(path, torch.float32)
