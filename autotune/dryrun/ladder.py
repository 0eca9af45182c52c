"""`dryrun --ladder`: the ladder walked on a known trainer's own options, by dry runs, to the command that fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.device.null.card import NullCard
from autotune.dryrun.commands import KnownCommand, temporary_folder
from autotune.dryrun.run import run_on_null_cards
from autotune.dryrun.verdict import Judgement, Result, judge
from autotune.errors import NothingFitsError, TrainingError
from autotune.ladder.ladders import Ladder
from autotune.ladder.plan import Plan
from autotune.ladder.walk import Walk


@dataclass(frozen=True)
class Rung:
    """One dry run of the walk: the plan, its command, and the judgement."""

    plan: Plan
    command: tuple[str, ...]
    judgement: Judgement


@dataclass(frozen=True)
class Walked:
    """The runs in order, and the one whose command fits."""

    rungs: tuple[Rung, ...]
    chosen: Rung


def walk_command(
    known: KnownCommand,
    cards: Sequence[NullCard],
    ladder: Ladder,
    on_rung: Callable[[Rung], None],
    quiet: bool = True,
) -> Walked:
    """Walk `ladder` from the command as written until one fits surely.

    Raises NothingFitsError when none does, TrainingError when the program fails for another reason.
    """
    folder = temporary_folder()
    walk = Walk.start(ladder, known.recipe)
    rungs: list[Rung] = []
    while (step := walk.next()) is not None:
        rungs.append(_try(known, step.plan, cards, folder, quiet))
        on_rung(rungs[-1])
        walk = walk.record(step, rungs[-1].judgement.result is Result.FITS)
    _remove_if_empty(folder)
    chosen = next((rung for rung in rungs if rung.plan == walk.chosen), None)
    if chosen is None:
        raise NothingFitsError(
            f"no rung of the ladder fits {cards[0].name}: {len(rungs)} dry runs.",
            "Try a larger card, lower floors in a ladder of your own, or a lighter optimizer.",
        )
    return Walked(tuple(rungs), chosen)


def _try(known: KnownCommand, plan: Plan, cards: Sequence[NullCard], folder: Path, quiet: bool) -> Rung:
    command = known.for_plan(plan, folder)
    run = run_on_null_cards(known.short(command), cards, quiet)
    judgement = judge(run)
    if judgement.result is Result.FAILED:
        last = f" Its last line: {run.last_lines[-1]}" if run.last_lines else ""
        raise TrainingError(f"the program failed, and not for memory: {'; '.join(judgement.notes)}.{last}")
    return Rung(plan, command, judgement)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
