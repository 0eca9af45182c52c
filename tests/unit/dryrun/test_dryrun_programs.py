"""Dry runs of real programs on null cards: the verdict, the exit status and the place."""

import os
import sys
from pathlib import Path

import pytest

from autotune.device.null.card import NullCard
from autotune.dryrun.run import DryRun, run_on_null_cards
from autotune.dryrun.verdict import Judgement, Result, judge
from autotune.units import GIB, MIB
from tests.conftest import NullGpu

PROGRAMS = Path(__file__).parents[2] / "programs"
PLAIN = PROGRAMS / "plain_loop.py"
FITS, TOO_LARGE = "256", "400000"


def dry_run(*command: object, cards: tuple[str, ...] = ("2GiB@8.6",)) -> tuple[DryRun, Judgement]:
    made = [NullCard.parse(card) for card in cards]
    words = [str(word) for word in command]
    run = run_on_null_cards(words, [card.with_context(card.context_low_bytes) for card in made], quiet=True)
    return run, judge(run)


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text("utf-8").splitlines(), 1) if text in line)


def test_a_program_that_fits_fits_with_its_whole_peak(null_gpu: NullGpu) -> None:
    run, judgement = dry_run(sys.executable, PLAIN, FITS)
    assert (run.status, judgement.result) == (0, Result.FITS)
    (card,) = judgement.cards
    weights = 4 * (2048 * 2048 + 2048) * 4
    assert card.use.allocated_bytes >= 4 * weights  # weights, gradients and both moments of AdamW
    assert card.use.allocated_bytes <= card.use.reserved_bytes < card.need.low_bytes < GIB


def test_a_program_that_does_not_fit_says_at_which_line(null_gpu: NullGpu) -> None:
    run, judgement = dry_run(sys.executable, PLAIN, TOO_LARGE)
    assert run.status == 1
    assert judgement.result is Result.NO
    assert judgement.out_of_memory is not None
    assert judgement.out_of_memory.user == f"{PLAIN}:{line_of(PLAIN, 'return model(torch.randn')} forward"
    assert judgement.out_of_memory.requested_bytes > GIB


def test_out_of_memory_that_is_caught_is_told_and_fits(null_gpu: NullGpu) -> None:
    run, judgement = dry_run(sys.executable, PLAIN, TOO_LARGE, "catch")
    assert (run.status, judgement.result) == (0, Result.FITS)
    assert any("caught it and went on" in note for note in judgement.notes)


def test_a_peak_between_the_context_s_ends_is_too_close(null_gpu: NullGpu) -> None:
    _, judgement = dry_run(sys.executable, PLAIN, FITS)
    card = judgement.cards[0]
    exact = card.use.reserved_bytes + card.card.context_low_bytes + 40 * MIB
    _, tight = dry_run(sys.executable, PLAIN, FITS, cards=(f"{exact}@8.6",))
    assert tight.result is Result.CLOSE


def test_accelerates_scaler_runs_on_zeros(null_gpu: NullGpu) -> None:
    _, fits = dry_run(sys.executable, PROGRAMS / "scaled_loop.py", FITS)
    _, too_large = dry_run(sys.executable, PROGRAMS / "scaled_loop.py", TOO_LARGE)
    assert (fits.result, too_large.result) == (Result.FITS, Result.NO)


def test_each_rank_has_its_own_card(null_gpu: NullGpu) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    cards = ("2GiB@8.6", "1GiB@8.6")
    _, fits = dry_run(*torchrun, PROGRAMS / "two_ranks.py", 8, cards=cards)
    assert fits.result is Result.FITS
    assert [card.index for card in fits.cards] == [0, 1]
    _, too_large = dry_run(*torchrun, PROGRAMS / "two_ranks.py", TOO_LARGE, cards=cards)
    assert too_large.result is Result.NO
    assert too_large.out_of_memory is not None
    assert too_large.out_of_memory.device == 1


def test_another_failure_is_not_called_memory(null_gpu: NullGpu) -> None:
    run, judgement = dry_run(sys.executable, PLAIN, "many")
    assert (run.status, judgement.result) == (1, Result.FAILED)
    assert "ValueError" in run.last_lines[-1]


def test_a_failure_over_a_value_says_that_values_are_zeros(null_gpu: NullGpu) -> None:
    program = "import torch; x = torch.ones(4, device='cuda'); assert x.sum().item() > 0, 'the loss is zero'"
    _, judgement = dry_run(sys.executable, "-c", program)
    assert judgement.result is Result.FAILED
    assert any("every value read from a null card is zero" in note for note in judgement.notes)


def test_a_program_without_cuda_is_said_to_be_one(null_gpu: NullGpu) -> None:
    _, judgement = dry_run(sys.executable, "-c", "print(1)")
    assert judgement.result is Result.FITS
    assert any("used no CUDA device" in note for note in judgement.notes)


def test_a_program_that_looks_for_torch_before_it_imports_it_is_watched(null_gpu: NullGpu) -> None:
    look = "import importlib.util as u, sys; u.find_spec('torch'); u.find_spec('torch')"
    use = (
        "before = sys.meta_path[:]; import torch; torch.ones(1, device='cuda'); assert sys.meta_path == before[1:]"
    )
    _, judgement = dry_run(sys.executable, "-c", f"{look}; {use}")
    assert judgement.result is Result.FITS
    assert [card.use.processes for card in judgement.cards] == [1]


def test_the_program_s_own_sitecustomize_still_runs(
    null_gpu: NullGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = 7\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    run, _ = dry_run(sys.executable, "-c", "import torch; torch.cuda.init(); assert theirs == 7")
    assert run.status == 0, run.last_lines


def test_nothing_is_left_in_the_folder_for_temporary_files(
    null_gpu: NullGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    dry_run(sys.executable, "-c", "import torch; torch.ones(1, device='cuda')")
    assert list(tmp_path.iterdir()) == []
