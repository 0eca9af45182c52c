"""A row's forecast beside its measurement: the interval with its parts, the error, and the sums over all rows.

Owns what counts as inside, under and over. Must never change a forecast after the measurement is known.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from autotune.memory.interval import Interval
from autotune.memory.unseen import ATTENTION, CONVOLUTION, Metric, Part, context_part, forecast_interval
from bench.replays.denoisers import DENOISERS, normal_name
from bench.replays.rows import START_RESERVED_BYTES, Row

METHODS = ("fake", "tracker", "formula")
ROUNDING_BYTES = 2**30 // 200  # half of the last digit of a figure in GiB with two decimals
CACHE = "cached segments"
TRAINER = "the trainer's own code"
ROUNDING = "rounding of the published figure"
# Activations that a trainer's copy of an architecture keeps more or less than diffusers' own, as a share of them.
_TRAINER_SHARE = 0.02


@dataclass(frozen=True)
class Judged:
    """One row: its forecast, or the reason why there is none."""

    row: Row
    reason: str = ""
    interval: Interval | None = None
    forecast_bytes: int = 0
    parts: tuple[Part, ...] = ()
    seconds: float = 0.0
    mean_error: float | None = None
    notes: tuple[str, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)
    """Errors of other methods, as fractions."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a method could not run this row."""

    @property
    def error(self) -> float:
        """(forecast - measured) / measured."""
        return (self.forecast_bytes - self.row.absolute_bytes) / self.row.absolute_bytes

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured bytes."""
        return self.interval is not None and self.row.absolute_bytes in self.interval


def judge(row: Row, replay: Mapping[str, Any], baseline: Mapping[str, Any]) -> Judged:
    """Compare a replay's readings with what `row` measured."""
    if "reason" in replay:
        return Judged(row, reason=str(replay["reason"]))
    metric = Metric.parse(row.metric)
    name = "peak_allocated_bytes" if metric is Metric.ALLOCATED else "peak_reserved_bytes"
    counted = int(replay[name])
    parts = _parts(row, metric, replay, counted)
    interval = forecast_interval(counted, parts)
    below = _below(row, metric, replay)
    mean = row.mean_allocated_bytes
    taken_off = START_RESERVED_BYTES if row.is_peft_benchmark else 0
    return Judged(
        row,
        interval=Interval(max(interval.low_bytes - below, 0), interval.high_bytes),
        forecast_bytes=counted + sum(part.interval.middle_bytes for part in parts if part.name not in _ONE_SIDED),
        parts=parts,
        seconds=float(replay["seconds"]),
        mean_error=(replay["mean_allocated_bytes"] - mean - taken_off) / (mean + taken_off) if mean else None,
        notes=_notes(row, replay),
        others={
            method: (value - row.absolute_bytes) / row.absolute_bytes
            for method in METHODS
            if (value := baseline.get(method)) is not None
        },
        failures={method: baseline[f"{method}_error"] for method in METHODS if f"{method}_error" in baseline},
    )


def summarize(judged: Sequence[Judged]) -> dict[str, Any]:
    """The figures over all rows, by family, and of the other methods. Errors are fractions."""
    done = [one for one in judged if not one.reason]
    errors = sorted(abs(one.error) for one in done)
    means = [abs(one.mean_error) for one in done if one.mean_error is not None]
    return {
        "rows": len(judged),
        "supported": len(done),
        "median_abs_error": _rounded(median(errors)) if errors else None,
        "p90_abs_error": _rounded(errors[math.ceil(0.9 * len(errors)) - 1]) if errors else None,
        "max_abs_error": _rounded(errors[-1]) if errors else None,
        "underestimates": sum(one.error < 0 for one in done),
        "inside_interval": sum(one.inside for one in done),
        "seconds_per_row": round(sum(one.seconds for one in done) / len(done), 2) if done else None,
        "median_interval_width": _rounded(median(_width(one) for one in done)) if done else None,
        "max_mean_allocated_error": _rounded(max(means)) if means else None,
        "unsupported": [{"row": one.row.id, "reason": one.reason} for one in judged if one.reason],
        "families": _by_family(done),
    }


# Parts whose lower end is what the null GPU counted: they widen the interval and leave the forecast where it is.
_ONE_SIDED = {CACHE, TRAINER, ROUNDING}


def _parts(row: Row, metric: Metric, replay: Mapping[str, Any], counted: int) -> tuple[Part, ...]:
    kind = DENOISERS[normal_name(row.family)]
    parts = []
    name = "peak_allocated_bytes" if metric is Metric.ALLOCATED else "peak_reserved_bytes"
    most = int(replay.get(f"high_{name}", counted))
    if most > counted:
        scratch = CONVOLUTION if "UNet" in kind.class_name else ATTENTION
        parts.append(Part(scratch, Interval(0, most - counted), "a second replay that takes the most"))
    if kind.unstated.high_bytes and not row.is_peft_benchmark:
        parts.append(Part("unstated residents", kind.unstated, kind.assumption))
    if metric is not Metric.ALLOCATED:
        parts.append(Part(CACHE, Interval(0, _slack(replay) // 2), "half of what lies unused in segments"))
    if metric is Metric.PROCESS:
        parts.append(context_part(replay["card"].context))
    if not row.is_peft_benchmark:
        share = int(_TRAINER_SHARE * _activations(replay))
        parts.append(Part(TRAINER, Interval(0, share), f"{_TRAINER_SHARE:.0%} of activations"))
        if "rounded" in row.metric:
            parts.append(Part(ROUNDING, Interval(0, ROUNDING_BYTES), "two decimals of a GiB"))
    return tuple(parts)


def _below(row: Row, metric: Metric, replay: Mapping[str, Any]) -> int:
    """How far the truth may lie under what was counted: segments can't be smaller than what is allocated."""
    below = _slack(replay) if metric is not Metric.ALLOCATED else 0
    if not row.is_peft_benchmark:
        below += int(_TRAINER_SHARE * _activations(replay)) + (ROUNDING_BYTES if "rounded" in row.metric else 0)
    return below


def _slack(replay: Mapping[str, Any]) -> int:
    return int(replay["peak_reserved_bytes"]) - int(replay["peak_allocated_bytes"])


def _activations(replay: Mapping[str, Any]) -> int:
    """What a step takes above what is there before and after it."""
    return int(replay["peak_allocated_bytes"]) - int(replay["mean_allocated_bytes"])


def _notes(row: Row, replay: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if replay.get("adapter_matches") is False:
        notes.append(f"no documented setting trains {row.trainable_parameters:,}; {replay['trainable']:,} here")
    if not row.is_peft_benchmark:
        kind = DENOISERS[normal_name(row.family)]
        trained = " ".join(row.targets or kind.targets)
        notes.append(
            f"assumed: {row.base_dtype} adapters on {trained}, dropout 0.1, gradients kept between steps"
            + (f", {kind.assumption}" if kind.assumption else "")
        )
    return tuple(notes)


def _by_family(done: Sequence[Judged]) -> dict[str, Any]:
    families: dict[str, list[Judged]] = defaultdict(list)
    for one in done:
        families[one.row.family].append(one)
    return {name: _family(group) for name, group in families.items()}


def _family(group: Sequence[Judged]) -> dict[str, Any]:
    """Mean absolute error of each method on one family; a method that can't run a row has no figure for it."""
    figures: dict[str, Any] = {"rows": len(group), "null": _rounded(_mean([abs(one.error) for one in group]))}
    for method in METHODS:
        errors = [abs(one.others[method]) for one in group if method in one.others]
        figures[method] = _rounded(_mean(errors)) if errors else None
    rivals = [figures[method] for method in METHODS if figures[method] is not None]
    return figures | {"best": all(figures["null"] <= rival for rival in rivals) if rivals else None}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _width(one: Judged) -> float:
    return one.interval.width_bytes / one.forecast_bytes if one.interval else 0.0


def _rounded(value: float) -> float:
    return round(value, 5)
