"""`dryrun --ladder`: the ladder walked on a known trainer's own options, by dry runs, to the command that fits."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.device.null.card import NullCard
from autotune.dryrun.commands import KnownCommand, temporary_folder
from autotune.dryrun.run import run_on_null_cards
from autotune.dryrun.verdict import Judgement, Result, judge
from autotune.errors import NothingFitsError, TrainingError
from autotune.ladder.ladders import Ladder
from autotune.ladder.plan import BATCH_SIZE, Plan
from autotune.ladder.walk import Direction, Step, Walk


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
        if _is_idle(walk, step):
            walk = walk.record(step, False)
            continue
        rungs.append(_try(known, step.plan, cards, folder, quiet))
        on_rung(rungs[-1])
        walk = walk.record(step, rungs[-1].judgement.result is Result.FITS)
    plan = None if walk.chosen is None else _expressible(walk.chosen, known.recipe.effective_batch)
    chosen = next((rung for rung in rungs if rung.plan == plan), None)
    if plan is not None and chosen is None:
        chosen = _try(known, plan, cards, folder, quiet)
    _remove_if_empty(folder)
    if chosen is None:
        raise NothingFitsError(
            f"no rung of the ladder fits {cards[0].name}: {len(rungs)} dry runs.",
            "Try a larger card, lower floors in a ladder of your own, or a lighter optimizer.",
        )
    return Walked(tuple(rungs), chosen)


def _is_idle(walk: Walk, step: Step) -> bool:
    """Whether no batch that an option can say would be learned from `step`: options say batch x accumulation, and
    a batch between two divisors of the effective batch is trained as the lower one."""
    best = walk.chosen
    if step.direction is not Direction.CLIMB or best is None:
        return False
    above = (visit.step.plan for visit in walk.visits if not visit.fits)
    bounded = any(plan == best.replace(BATCH_SIZE, plan.batch_size) for plan in above)
    return bounded and _expressible(step.plan, walk.recipe.effective_batch).batch_size <= best.batch_size


def _expressible(plan: Plan, effective_batch: int) -> Plan:
    """`plan` with the largest batch up to its own that divides the effective batch."""
    divisor = next(batch for batch in range(plan.batch_size, 0, -1) if effective_batch % batch == 0)
    return plan.replace(BATCH_SIZE, divisor)


def _try(known: KnownCommand, plan: Plan, cards: Sequence[NullCard], folder: Path, quiet: bool) -> Rung:
    command = known.for_plan(plan, folder)
    with tempfile.TemporaryDirectory(prefix="autotune-ladder-run-") as scratch:
        run = run_on_null_cards(known.short(command, Path(scratch)), cards, quiet)
    judgement = judge(run)
    if judgement.result is Result.FAILED:
        last = f" Its last line: {run.last_lines[-1]}" if run.last_lines else ""
        raise TrainingError(f"the program failed, and not for memory: {'; '.join(judgement.notes)}.{last}")
    return Rung(plan, command, judgement)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
