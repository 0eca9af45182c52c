"""Verdicts on published "fits N GB" and out-of-memory statements: what `autotune plan` would have said.

Owns the comparison and its table. A statement whose open settings lead to different verdicts is undetermined and
not scored. The last line is one JSON object. Must never change a setting because of a verdict.
`python -m bench.published_figures [--only NUMBER...]`
"""

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.controller.forecast import Architecture, Forecaster
from autotune.controller.forecast_cache import ForecastCache
from autotune.device.null.card import NullCard
from autotune.errors import AutotuneError
from autotune.memory.forecast import FitVerdict, Forecast
from autotune.memory.interval import Interval
from autotune.units import MIB
from bench.published_rows import STATEMENTS, Statement

RIGHT, WRONG, CLOSE = "right", "wrong", "too close to call"
UNDETERMINED, UNSUPPORTED = "undetermined", "unsupported"


@dataclass(frozen=True)
class Answer:
    """What the forecasts of one statement come to. `needs` are the process's bytes, one interval a variant."""

    statement: Statement
    score: str
    verdicts: tuple[str, ...] = ()
    needs: tuple[Interval, ...] = ()
    reason: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every statement, print the table, then the JSON object. 1 if one verdict was wrong."""
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.published_figures", description=about)
    parser.add_argument("--only", type=int, nargs="+", help="row numbers")
    chosen = parser.parse_args(arguments).only
    began = time.perf_counter()
    answers = []
    for statement in STATEMENTS:
        if chosen is None or statement.number in chosen:
            answers.append(answer_of(statement))
            print(_line(answers[-1]), flush=True)
    summary = summarize(answers) | {"seconds": round(time.perf_counter() - began, 1)}
    print(json.dumps(summary))
    return 1 if summary[WRONG] else 0


def answer_of(statement: Statement) -> Answer:
    """Forecast every variant that the statement admits, and judge it on the statement's card."""
    card = NullCard.parse(statement.gpu)
    try:
        forecasts = [_forecast(statement, card, settings) for settings in variants(statement)]
    except AutotuneError as error:
        return Answer(statement, UNSUPPORTED, reason=error.fact)
    context = Interval(card.context_low_bytes, card.context_high_bytes)
    verdicts = [forecast.judge(card.total_bytes, context) for forecast in forecasts]
    needs = tuple(forecast.need(context) for forecast in forecasts)
    verdict = score(statement.fits, verdicts)
    if statement.takes_more and verdict == WRONG:
        verdict = UNDETERMINED
    return Answer(statement, verdict, tuple(map(str, verdicts)), needs)


def variants(statement: Statement) -> Iterator[Mapping[str, Any]]:
    """Every way to fill in what the statement leaves unsaid."""
    for values in itertools.product(*statement.unsaid.values()):
        yield {**statement.settings, **dict(zip(statement.unsaid, values, strict=True))}


def score(fitted: bool, verdicts: Sequence[FitVerdict]) -> str:
    """How verdicts on a statement's variants compare with what happened. Undetermined if they contradict."""
    if FitVerdict.FITS in verdicts and FitVerdict.NO in verdicts:
        return UNDETERMINED
    if set(verdicts) == {FitVerdict.CLOSE}:
        return CLOSE
    decided = FitVerdict.FITS if FitVerdict.FITS in verdicts else FitVerdict.NO
    if FitVerdict.CLOSE in verdicts:  # some variants say it and none denies it
        return UNDETERMINED if (decided is FitVerdict.FITS) != fitted else RIGHT
    return RIGHT if (decided is FitVerdict.FITS) == fitted else WRONG


def summarize(answers: Sequence[Answer]) -> dict[str, Any]:
    """How many statements got which score, and the share of those scored that were too close to call."""
    counts = Counter(answer.score for answer in answers)
    scored = counts[RIGHT] + counts[WRONG] + counts[CLOSE]
    names = (RIGHT, WRONG, CLOSE, UNDETERMINED, UNSUPPORTED)
    share = round(counts[CLOSE] / scored, 4) if scored else None
    return {"rows": len(answers), "scored": scored, **{name: counts[name] for name in names}, "close_share": share}


def _forecast(statement: Statement, card: NullCard, settings: Mapping[str, Any]) -> Forecast:
    config = {"family": statement.family, "network_alpha": settings["network_dim"], **settings}
    architecture = Architecture(card.compute_capability, card.sm_count)
    with Forecaster("trainer.forecast:create", config, architecture, ForecastCache(None)) as forecaster:
        return forecaster.forecast(forecaster.job.recipe.plan)


def _line(answer: Answer) -> str:
    statement = answer.statement
    happened = "fits" if statement.fits else "out of memory"
    needs = " | ".join(f"{need.low_bytes / MIB:,.0f}-{need.high_bytes / MIB:,.0f}" for need in answer.needs)
    said = answer.reason or f"{', '.join(dict.fromkeys(answer.verdicts))} ({needs} MiB)"
    note = f" [{statement.adapted}]" if statement.adapted else ""
    return f"{statement.number:>3} {answer.score:17} {statement.text}: {happened}; forecast: {said}{note}"


if __name__ == "__main__":
    sys.exit(main())
