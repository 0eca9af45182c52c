"""Judged rows as a table. Owns the printing only."""

from collections.abc import Sequence

from autotune.units import MIB
from bench.replays.judge import METHODS, Judged

_TITLES = {"fake": "FakeTensor", "tracker": "MemTracker", "formula": "formula"}


def print_table(judged: Sequence[Judged]) -> None:
    """One line a row: bytes in MiB, errors of the peak and of the mean, seconds; then notes and reasons."""
    width = max((len(one.row.id) for one in judged), default=3)
    titles = "".join(f"{_TITLES[method]:>12}" for method in METHODS)
    print(f"{'row':{width}} {'measured':>10} {'forecast':>10} {'interval, MiB':>21} {'error':>8} {'in':>3}"
          f" {'mean alloc.':>11} {'s':>5}{titles}")  # fmt: skip
    for one in judged:
        print(f"{one.row.id:{width}} " + (f"not replayed: {one.reason}" if one.reason else _figures(one)))
    for note in dict.fromkeys(f"{one.row.family}: {note}" for one in judged for note in one.notes):
        print(note)
    failures = {(method, why) for one in judged for method, why in one.failures.items()}
    for method, why in sorted(failures):
        rows = [one.row.id for one in judged if one.failures.get(method) == why]
        print(f"{_TITLES[method]} can't run {', '.join(rows)}: {why}")


def _figures(one: Judged) -> str:
    interval = one.interval
    span = f"{interval.low_bytes / MIB:,.0f}-{interval.high_bytes / MIB:,.0f}" if interval else ""
    mean = "" if one.mean_error is None else f"{one.mean_error:+.3%}"
    others = "".join(f"{_percent(one.others.get(method)):>12}" for method in METHODS)
    return (
        f"{one.row.absolute_bytes / MIB:10,.0f} {one.forecast_bytes / MIB:10,.0f} {span:>21} {one.error:+8.2%}"
        f" {'yes' if one.inside else 'NO':>3} {mean:>11} {one.seconds:5.1f}{others}"
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"
