"""The LoRA file: the family's tensor names, true alpha, string metadata, written atomically.

Owns the file's layout and its metadata; knows nothing of training. Values come from the adapter as it is;
nothing that names a machine or a user's folder enters the metadata. The layout follows kohya sd-scripts and
modelspec 1.0.1 fields, which A1111, ComfyUI and diffusers all load.
"""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from autotune.files import write_atomically
from trainer.adapters.lora import Adapter
from trainer.families.family import get_family


def lora_tensors(adapter: Adapter, dtype: torch.dtype) -> dict[str, Tensor]:
    """The file's tensors on the host: per module down and up in `dtype`, and the 0-dim alpha where the layout has
    one; else the scale, alpha / rank, is in up."""
    layout = adapter.layout
    tensors: dict[str, Tensor] = {}
    for pair in adapter.pairs:
        up = pair.up if layout.alpha else pair.up * (adapter.alpha / adapter.rank)
        tensors[pair.name + layout.down] = _stored(pair.down, dtype)
        tensors[pair.name + layout.up] = _stored(up, dtype)
        if layout.alpha:
            tensors[pair.name + layout.alpha] = torch.tensor(float(adapter.alpha), dtype=dtype)
    return tensors


def base_metadata(adapter: Adapter, family: str, title: str, v_prediction: bool = False) -> dict[str, str]:
    """The metadata UIs read to tell family, rank and alpha; all values are strings, as the format asks."""
    known = get_family(family)
    prediction_type = known.rule.prediction_type or ("v" if v_prediction else "epsilon")
    return {
        "ss_network_dim": str(adapter.rank),
        "ss_network_alpha": str(float(adapter.alpha if adapter.layout.alpha else adapter.rank)),
        "ss_network_args": "{}",
        "ss_output_name": title,
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.title": title,
        "modelspec.date": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        "modelspec.prediction_type": prediction_type,
        **known.lora_metadata,
    }


def save_lora(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the file to a temporary name beside `path`, flush it, and rename. Raises DiskError."""
    write_atomically(path, lora_file(tensors, metadata))


def lora_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The content of the file that `save_lora` writes."""
    content: bytes = save(dict(tensors), {**metadata, **_model_hashes(tensors, metadata)})
    return content


def _stored(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()


def _model_hashes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    # What A1111's additional networks looks files up by: over the tensors alone, and its older hash over
    # 64 KiB from 1 MiB on; both with only the ss_* metadata in the header.
    content = save(dict(tensors), {k: v for k, v in metadata.items() if k.startswith("ss_")})
    header_bytes = int.from_bytes(content[:8], "little")
    legacy = hashlib.sha256(content[0x100000 : 0x100000 + 0x10000]).hexdigest()[:8]
    return {
        "sshs_model_hash": hashlib.sha256(content[header_bytes + 8 :]).hexdigest(),
        "sshs_legacy_hash": legacy,
    }
