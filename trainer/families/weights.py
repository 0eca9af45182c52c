"""Weights from files into modules: read safely, put in place whole, never guessed.

Owns the reading of state dicts (safetensors, or torch.load with weights_only=True always) and the filling
of a module whose every weight must be there. It must never run code from a file, nor leave a weight at its
random start.
"""

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from autotune.errors import ModelError
from trainer.families.detect import shard_files
from trainer.families.header import read_header
from trainer.families.layout import Place, PlaceOf

State = Mapping[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def read_state(path: Path) -> State:
    """The tensors in the file at `path`, or in the shards that the index at `path` names, on the host.

    Files are mapped where their format allows, so memory is taken only for what is used. Raises ModelError
    for a pickle that needs more than tensors and plain containers; nothing in it is executed.
    """
    state: dict[str, Tensor] = {}
    for file in shard_files(path):
        state |= _read_file(file)
    return state


def build(make: Callable[[], Module]) -> Module:
    """A module without weights (on the meta device), made by `make`; its buffers are real."""
    with init_empty_weights(include_buffers=False):
        return make()


def fill(module: Module, state: State, place_of: PlaceOf, dtype: torch.dtype, source: Path) -> Module:
    """Give `module` its weights from `state`, each from where `place_of` says, as copies in `dtype` (whole numbers
    as they are). A weight that has two names may be stored under either.

    The module comes back frozen and in eval mode. Raises ModelError that names the first weight that is
    missing or of another shape.
    """
    tied: dict[str, str] = getattr(module, "_tied_weights_keys", None) or {}
    loaded = {}
    for name, like in module.state_dict().items():
        place = place_of(name)
        if place.name not in state and name in _partners(tied):
            place = place_of(_partners(tied)[name])
        wanted = dtype if like.is_floating_point() else like.dtype
        tensor = _take(state, place, like, source)
        loaded[name] = tensor.to(wanted, copy=True, memory_format=torch.contiguous_format)
    module.load_state_dict(loaded, assign=True)
    if tied:
        module.tie_weights()  # type: ignore[operator]
    return module.requires_grad_(False).eval()


def refuse_leftovers(module: nn.Module, state: State, place_of: PlaceOf, prefix: str, source: Path) -> None:
    """Raise ModelError if `state` holds weights under `prefix` that `module` has no use for: another
    architecture."""
    used = {place_of(name).name for name in module.state_dict()}
    unused = sorted(name for name in state if name.startswith(prefix) and name not in used)
    if unused:
        raise ModelError(
            f"{source} has {len(unused)} weights its family does not have, first {unused[0]}.",
            "It is a changed architecture, which this version can't train.",
        )


def _partners(tied: Mapping[str, str]) -> dict[str, str]:
    return {**tied, **{theirs: ours for ours, theirs in tied.items()}}


def _read_file(path: Path) -> dict[str, Tensor]:
    kind = read_header(path).kind
    try:
        return load_file(path) if kind == "safetensors" else _read_checkpoint(path)
    except (SafetensorError, OSError, EOFError) as error:
        raise ModelError(f"{path} can't be read: {error}.", "Download the file again.") from None


def _read_checkpoint(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))
    except RuntimeError as error:  # what PyTorch's zip reader raises
        raise ModelError(f"{path} can't be read: {error}.", "Download the file again.") from None
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} holds more than weights{_culprit(error)}; it is refused and nothing in it was run.",
            "Use the .safetensors file of this model; or, if you trust where it comes from, convert it "
            "to safetensors once, on a machine that holds nothing of value.",
        ) from None
    while isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no state dict.", "Use the .safetensors file of this model.")
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _can_be_mapped(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _culprit(error: Exception) -> str:
    """What the pickle wants, as torch's message names it: `GLOBAL posix.system was not an allowed global`."""
    match = re.search(r"GLOBAL ([\w.]+)", str(error)) or re.search(r"[Uu]nsupported \w+:? ([\w.]+)", str(error))
    return f" ({match.group(1)})" if match else ""


def _take(state: State, place: Place, like: Tensor, source: Path) -> Tensor:
    if place.name not in state:
        raise ModelError(f"{source} lacks the weight {place.name}.", "The file is incomplete: download it again.")
    tensor = state[place.name]
    if place.third is not None:
        tensor = tensor.chunk(3)[place.third]
    if place.transposed:
        tensor = tensor.T
    if _without_ones(tensor.shape) != _without_ones(like.shape):
        raise ModelError(
            f"{source}: the weight {place.name} has shape {tuple(state[place.name].shape)}, "
            f"which does not suit {tuple(like.shape)}.",
            "The file is of another architecture than its other weights say.",
        )
    return tensor.reshape(like.shape)  # a linear layer may be stored as a 1x1 convolution


def _without_ones(shape: torch.Size) -> list[int]:
    """`shape` without the trailing ones of a 1x1 kernel."""
    sizes = list(shape)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return sizes
