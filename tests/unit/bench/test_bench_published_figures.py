"""Published statements are scored by what they say, and never where they admit both answers."""

import pytest

from autotune.device.null.card import NullCard
from autotune.memory.forecast import FitVerdict
from bench.published_figures import (
    CLOSE,
    RIGHT,
    UNDETERMINED,
    UNSUPPORTED,
    WRONG,
    Answer,
    score,
    summarize,
    variants,
)
from bench.published_rows import STATEMENTS
from trainer.families.family import family_names

FITS, NO, NEAR = FitVerdict.FITS, FitVerdict.NO, FitVerdict.CLOSE


@pytest.mark.parametrize(
    ("fitted", "verdicts", "expected"),
    [
        (True, [FITS], RIGHT),
        (True, [NO], WRONG),
        (False, [NO, NO], RIGHT),
        (False, [FITS], WRONG),
        (True, [FITS, NO], UNDETERMINED),
        (False, [NO, NEAR, FITS], UNDETERMINED),
        (True, [NEAR, NEAR], CLOSE),
        (True, [FITS, NEAR], RIGHT),
        (False, [FITS, NEAR], UNDETERMINED),
    ],
)
def test_a_statement_is_scored_only_where_its_settings_admit_one_answer(
    fitted: bool, verdicts: list[FitVerdict], expected: str
) -> None:
    assert score(fitted, verdicts) == expected


def test_undetermined_statements_are_listed_and_not_scored() -> None:
    scores = (RIGHT, CLOSE, UNDETERMINED, UNSUPPORTED)
    summary = summarize([Answer(STATEMENTS[0], one) for one in scores])
    assert (summary["rows"], summary["scored"], summary["close_share"]) == (4, 2, 0.5)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: str(statement.number))
def test_each_statement_names_a_card_and_a_family_and_fills_every_gap(statement: object) -> None:
    from bench.published_rows import Statement

    assert isinstance(statement, Statement)
    assert NullCard.parse(statement.gpu).total_bytes > 0
    assert statement.family in family_names()
    filled = list(variants(statement))
    assert len({tuple(sorted(map(str, one.items()))) for one in filled}) == len(filled) >= 1
    assert all("gradient_checkpointing" in one and "network_dim" in one for one in filled)
