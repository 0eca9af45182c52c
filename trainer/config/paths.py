"""Paths in settings. Owns making them absolute and the sentence for one that leads nowhere; never
creates anything.
"""

import os
import re
from pathlib import Path

from autotune.errors import DataError, ModelError
from trainer.config.checks import Draft
from trainer.config.text import nearest_parent
from trainer.config.values import shown

PATH_KEYS = (
    "pretrained_model_name_or_path",
    "vae",
    "train_data_dir",
    "metadata_path",
    "output_dir",
    "logging_dir",
)
_MUST_EXIST = ("pretrained_model_name_or_path", "vae", "metadata_path")
_WEIGHTS = (".safetensors", ".ckpt", ".pt", ".bin", ".pth")


def resolve_paths(draft: Draft, folders: dict[str, Path], must_exist: bool = True) -> None:
    """Make every path in `draft` absolute: against the folder of the file that set it when it exists there,
    else against the current folder. Raises ModelError for a base model or VAE that does not exist,
    DataError for such a metadata file, if they `must_exist`.
    """
    for key in PATH_KEYS:
        written = draft.get(key)
        if written is None:
            continue
        bases = [folders[key]] if key in folders else []
        if key == "metadata_path":
            bases.append(Path(draft.get("train_data_dir")))  # its usual place, resolved before it
        path = absolute_path(written, bases)
        if must_exist and key in _MUST_EXIST and not _exists(path):
            missing = DataError if key == "metadata_path" else ModelError
            raise missing(*_missing(draft.origins[key], key, written, path, bases))
        draft.values[key] = str(path)


def absolute_path(written: str, bases: list[Path]) -> Path:
    """`written` against the first of `bases` where it exists, else against the current folder; expands ~."""
    path = Path(written)
    if written.startswith("~"):
        path = Path(os.path.expanduser(written))  # noqa: PTH111 - keeps an unknown ~user as it is, pathlib raises
    candidates = [base / path for base in bases]
    found = next((candidate for candidate in candidates if _exists(candidate)), Path.cwd() / path)
    return Path(os.path.normpath(found))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _missing(origin: str, key: str, written: str, path: Path, bases: list[Path]) -> tuple[str, str]:
    said = f"{origin}: {key} = {shown(written)}"
    if re.match(r"[A-Za-z]:[\\/]", written) and os.name != "nt":
        return (
            f"{said} is a Windows path, and this is another system.",
            "Give the path as it is on this machine.",
        )
    if key != "metadata_path" and _is_hub_name(written, bases):
        return (
            f"{said} is no folder or file here, so it names a model on the Hugging Face hub, which"
            " needs the network.",
            "Download the model and give a local folder or file.",
        )
    return f"{said} does not exist: {nearest_parent(path)}.", "Correct the path."


def _is_hub_name(written: str, bases: list[Path]) -> bool:
    """`owner/name` with no such folder as `owner` here."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", written) or written.lower().endswith(_WEIGHTS):
        return False
    owner = written.split("/")[0]
    return not any(_exists(base / owner) for base in [*bases, Path.cwd()])
