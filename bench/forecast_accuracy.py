"""How right forecasts are: published measurements of real cards beside forecasts for the same runs.

Owns the comparison, its table, and the JSON object on the last line. Every row of the file is replayed on the
null card it names, or counted with the reason why it can't be. Must never choose a figure by looking at what was
measured.
`python -m bench.forecast_accuracy --rows FILE.csv [--quick] [--jobs N]`
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.replays.judge import Judged, judge, summarize
from bench.replays.rows import read_rows
from bench.replays.runner import run_baselines, run_replays
from bench.replays.table import print_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the rows, print the table, then the JSON object. 1 if nothing could be replayed."""
    options = _parse(arguments)
    began = time.perf_counter()
    rows = read_rows(options.rows)
    replays = run_replays(rows, options.jobs)
    baselines = {} if options.quick else run_baselines(rows, options.jobs)
    judged: list[Judged] = [judge(row, replays[row.id], baselines.get(row.id, {})) for row in rows]
    print_table(judged)
    summary = summarize(judged) | {"seconds": round(time.perf_counter() - began, 1)}
    print(json.dumps(summary))
    return 0 if summary["supported"] else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.forecast_accuracy", description=about)
    parser.add_argument("--rows", type=Path, required=True, help="CSV file of measurements")
    parser.add_argument("--quick", action="store_true", help="without the methods of others beside it")
    parser.add_argument("--jobs", type=int, default=2, help="workers at a time (default 2)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
