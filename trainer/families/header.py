"""Names, shapes and types of the tensors in a model file, from its header alone.

Owns the reading of safetensors headers and of the pickle inside a .ckpt, without torch and without the
weights. It must never execute anything a pickle names: every global in it is replaced by an inert class
that records its arguments. It reads, it never writes.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from autotune.errors import ModelError

Kind = Literal["safetensors", "ckpt"]
Shape = tuple[int, ...]

_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format
_MAX_PICKLE_BYTES = 256 << 20  # SD 1.x and SDXL checkpoints need about 1 MiB
_AGAIN = "Download the file again, or give another base model."


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: its shape and its type as safetensors spells it (`F32`, `F16`, `BF16`,
    `F8_E4M3`)."""

    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Header:
    """What a model file holds, by tensor name, and how the file is written."""

    kind: Kind
    tensors: Mapping[str, TensorInfo]

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each tensor."""
        return {name: info.shape for name, info in self.tensors.items()}


def read_header(path: Path) -> Header:
    """The header of the model file at `path`, told apart by content and not by the file's name.

    Raises ModelError for a file that is empty, cut short, a Git LFS pointer, a web page, or no model.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}.", "Check the file's permissions.") from None


def _read(file: IO[bytes], path: Path) -> Header:
    start = file.read(512)
    size_bytes = file.seek(0, io.SEEK_END)
    _refuse_no_model(start, size_bytes, path)
    file.seek(0)
    if start[8:9] != b"{":  # a safetensors header, behind 8 bytes of length that may look like anything
        if start.startswith(b"PK\x03\x04"):
            return Header("ckpt", _read_zip(file, path, size_bytes))
        if start.startswith(b"\x80"):
            return Header("ckpt", _read_legacy(file, path))
    return Header("safetensors", _read_safetensors(file, path, size_bytes))


def _refuse_no_model(start: bytes, size_bytes: int, path: Path) -> None:
    if not start:
        raise ModelError(f"{path} is empty (0 bytes).", _AGAIN)
    if start.startswith(b"version https://git-lfs"):
        raise ModelError(
            f"{path} is a Git LFS pointer of {size_bytes} bytes, not the model itself.",
            "Run `git lfs pull` in its repository, or download the file itself.",
        )
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise ModelError(
            f"{path} is a web page of {size_bytes:,} bytes, not a model: the download got an error page.",
            "Download the file itself (a page may ask to log in first).",
        )


def _read_safetensors(file: IO[bytes], path: Path, size_bytes: int) -> dict[str, TensorInfo]:
    length = int.from_bytes(file.read(8), "little")
    if size_bytes < 8 or length > _MAX_HEADER_BYTES or not file.read(1).startswith(b"{"):
        raise ModelError(f"{path} is no model file: it is neither safetensors nor a .ckpt.", _AGAIN)
    if 8 + length > size_bytes:
        raise ModelError(_cut_short(path, size_bytes, 8 + length, "at least "), _AGAIN)
    file.seek(8)
    try:
        entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        tensors = {n: TensorInfo(tuple(e["shape"]), str(e["dtype"])) for n, e in entries.items()}
        end_bytes = 8 + length + max((int(e["data_offsets"][1]) for e in entries.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise ModelError(f"{path} has a damaged safetensors header.", _AGAIN) from None
    if end_bytes > size_bytes:
        raise ModelError(_cut_short(path, size_bytes, end_bytes), _AGAIN)
    return tensors


def _cut_short(path: Path, have_bytes: int, need_bytes: int, at_least: str = "") -> str:
    return f"{path} is cut short: it has {have_bytes:,} bytes and needs {at_least}{need_bytes:,}."


def _read_zip(file: IO[bytes], path: Path, size_bytes: int) -> dict[str, TensorInfo]:
    try:
        with zipfile.ZipFile(file) as archive:
            entry = next((e for e in archive.infolist() if e.filename.endswith("data.pkl")), None)
            if entry is None or entry.file_size > _MAX_PICKLE_BYTES:
                raise ModelError(f"{path} is a zip file without a PyTorch checkpoint inside.", _AGAIN)
            content = archive.read(entry)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError):
        raise ModelError(
            f"{path} is cut short: it has {size_bytes:,} bytes and lacks the index at its end.", _AGAIN
        ) from None
    return _tensors_in(_unpickle(io.BytesIO(content), path))


def _read_legacy(file: IO[bytes], path: Path) -> dict[str, TensorInfo]:
    """torch.save before 1.6 writes a magic number, a version, system facts and then the object."""
    for _ in range(3):
        _unpickle(file, path)
    return _tensors_in(_unpickle(file, path))


def _unpickle(file: IO[bytes], path: Path) -> object:
    try:
        return _InertUnpickler(file, encoding="latin-1").load()
    except Exception:  # any byte may be wrong in a damaged pickle, and each fails in its own way
        raise ModelError(f"{path} is no PyTorch checkpoint that can be read, or is damaged.", _AGAIN) from None


class _Inert:
    """Stands for whatever a pickle names: takes any arguments, records them and does nothing."""

    origin = ""

    def __new__(cls, *args: Any, **_: Any) -> "_Inert":
        made = super().__new__(cls)
        made.arguments = args
        return made

    def __init__(self, *args: Any, **_: Any) -> None:
        self.arguments: tuple[Any, ...] = args

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass


class _InertUnpickler(pickle.Unpickler):
    """Builds plain containers and inert stand-ins only; nothing is imported or called."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return dict
        return type("Inert", (_Inert,), {"origin": f"{module_name}.{global_name}"})

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _tensors_in(content: object) -> dict[str, TensorInfo]:
    while isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        return {}
    found = ((str(name), _tensor_info(value)) for name, value in content.items())
    return {name: info for name, info in found if info is not None}


def _tensor_info(value: object) -> TensorInfo | None:
    """What `torch._utils._rebuild_tensor_v2(storage, offset, size, ...)` was asked to make."""
    if not isinstance(value, _Inert) or not value.arguments:
        return None
    if value.origin.startswith("torch._utils._rebuild_parameter"):
        return _tensor_info(value.arguments[0])
    if not value.origin.startswith("torch._utils._rebuild_tensor") or len(value.arguments) < 3:
        return None
    storage, _, size = value.arguments[:3]
    return TensorInfo(tuple(size), _storage_dtype(storage))


_STORAGE_DTYPES = {
    "Float": "F32",
    "Half": "F16",
    "BFloat16": "BF16",
    "Double": "F64",
    "Long": "I64",
    "Int": "I32",
}


def _storage_dtype(storage: Any) -> str:
    origin = getattr(storage[1], "origin", "") if isinstance(storage, tuple) and len(storage) > 1 else ""
    name = origin.removeprefix("torch.").removesuffix("Storage")
    return _STORAGE_DTYPES.get(name, name)
