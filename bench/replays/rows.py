"""Published measurements as rows, and which replay each one gets.

Owns the reading of the CSV file's columns and the decision that a row can't be replayed, with its reason. Must
never look at the measured bytes to decide anything.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.memory.unseen import Metric
from bench.replays.denoisers import DENOISERS, normal_name

PEFT_SOURCE = re.compile(r"\bpeft\b.*\bbenchmark\b", re.IGNORECASE)
START_RESERVED_BYTES = 2_097_152  # one small segment, which the benchmark takes off its figures
_BASE_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16",
                "fp32": "float32", "float32": "float32"}  # fmt: skip
_OPTIMIZERS = ("adamw", "adamw_bf16", "optimi-lion")


@dataclass(frozen=True)
class Row:
    """One published measurement. Sizes in pixels and bytes; None where the source says nothing."""

    id: str
    source: str
    family: str
    model: str
    adapter: str
    rank: int | None
    alpha: float | None
    targets: tuple[str, ...]
    batch: int
    width: int
    height: int
    base_dtype: str
    checkpointing: bool
    optimizer: str
    gpu: str
    metric: str
    measured_bytes: int
    mean_allocated_bytes: int | None
    notes: str

    @classmethod
    def read(cls, values: Mapping[str, str]) -> "Row":
        """The row of one CSV line. Raises ValueError for a number that is none."""
        mean = values.get("mean_allocated_bytes", "")
        rank, alpha = values.get("rank", ""), values.get("alpha", "")
        return cls(
            id=values["id"],
            source=values["source"],
            family=values["family"],
            model=values["model"],
            adapter=values["adapter"].strip(),
            rank=int(float(rank)) if rank.strip() else None,
            alpha=float(alpha) if alpha.strip() else None,
            targets=_read_targets(values["targets"]),
            batch=int(values["batch"]),
            width=int(values["width"]),
            height=int(values["height"]),
            base_dtype=_BASE_DTYPES.get(values["base_dtype"].strip().lower(), values["base_dtype"].strip()),
            checkpointing=values["checkpointing"].strip().lower() in {"true", "1", "yes"},
            optimizer=values["optimizer"].strip(),
            gpu=values["gpu"].strip(),
            metric=values["metric"].strip(),
            measured_bytes=int(float(values["measured_bytes"])),
            mean_allocated_bytes=int(float(mean)) if mean.strip() else None,
            notes=values.get("notes", ""),
        )

    @property
    def is_peft_benchmark(self) -> bool:
        """Whether the run was the public PEFT image generation benchmark, whose script says every setting."""
        return bool(PEFT_SOURCE.search(self.source))

    @property
    def trainable_parameters(self) -> int | None:
        """How many parameters were trained, where the notes tell: the check of a rebuilt adapter."""
        return self._noted("trainable_params")

    @property
    def total_parameters(self) -> int | None:
        """How many parameters the model had with its adapter, where the notes tell."""
        return self._noted("total_params")

    @property
    def absolute_bytes(self) -> int:
        """The measured peak on the null GPU's scale: with what the source took off."""
        return self.measured_bytes + (START_RESERVED_BYTES if self.is_peft_benchmark else 0)

    def _noted(self, name: str) -> int | None:
        match = re.search(rf"\b{name}=(\d+)", self.notes)
        return int(match.group(1)) if match else None


def read_rows(path: Path) -> list[Row]:
    """Every row of the CSV file at `path`, in order."""
    with path.open(newline="", encoding="utf-8") as file:
        return [Row.read(values) for values in csv.DictReader(file)]


def reason_unsupported(row: Row) -> str | None:
    """Why this row can't be replayed by its family, adapter, base precision, optimizer or metric; None if it can.

    Whether PEFT knows the adapter is only seen when it is built.
    """
    if normal_name(row.family) not in DENOISERS:
        return f"family {row.family!r} has no replay"
    if row.base_dtype not in _BASE_DTYPES.values():
        return f"base precision {row.base_dtype!r} needs layers we don't have"
    if "lycoris" in row.adapter.lower():
        return "the adapter is of the lycoris package"
    if row.optimizer.lower() not in _OPTIMIZERS:
        return f"optimizer {row.optimizer!r} has no replay"
    try:
        Metric.parse(row.metric)
    except ValueError as error:
        return str(error)
    return None


def _read_targets(text: str) -> tuple[str, ...]:
    """Module names apart by spaces or commas; nothing for a trainer's default or none."""
    text = text.strip()
    return () if not text or text.lower() in {"trainer default", "default"} else tuple(re.split(r"[\s,]+", text))
