"""Batch-size finders people use today, each driven by the same question: does a batch of this size fit?

Owns their rules as their documentation and code state them: accelerate's `find_executable_batch_size` (called for
real, with its own factor of 0.9 and with the halving it is known for) and the two modes of Lightning's
`BatchSizeFinder` (`tuner/batch_size_scaling.py`). They change the batch alone, so where a batch of 1
does not fit they find nothing. Must never know more of a workload than the answers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Fits = Callable[[int], bool]
INITIAL_BATCH = 2  # Lightning's init_val
MOST_TRIALS = 25  # Lightning's max_trials


@dataclass(frozen=True)
class Found:
    """The batch a finder ends on (None: none fits) and how many trials it took."""

    batch: int | None
    trials: int


def find_by_accelerate(fits: Fits, most: int, halve: bool = False) -> Found:
    """accelerate, from a batch of `most` down by its own factor or by halving."""
    from accelerate.utils import find_executable_batch_size

    asked: list[int] = []

    def run(batch_size: int) -> int:
        asked.append(batch_size)
        if fits(batch_size):
            return batch_size
        raise RuntimeError("CUDA out of memory.")

    lower = (lambda: asked[-1] // 2) if halve else None
    try:
        batch = find_executable_batch_size(run, starting_batch_size=most, reduce_batch_size_fn=lower)()
    except RuntimeError:  # "No executable batch size found, reached zero."
        return Found(None, len(asked))
    return Found(int(batch), len(asked))


def find_by_power(fits: Fits, most: int) -> Found:
    """Lightning's mode "power": double from 2 until one fails, or halve until one fits; `most` is its limit, the
    length of the dataset."""
    batch, best, trials = min(INITIAL_BATCH, most), None, 0
    while trials < MOST_TRIALS and batch >= 1:
        trials += 1
        if not fits(batch):
            if best is not None:
                break
            batch //= 2
            continue
        best = batch
        if batch == most:
            break
        batch = min(2 * batch, most)
    return Found(best, trials)


def find_by_bisection(fits: Fits, most: int) -> Found:
    """Lightning's mode "binsearch": double from 2 until one fails, then halve the interval in between."""
    low, high, batch, best, trials = 1, None, min(INITIAL_BATCH, most), None, 0
    while trials < MOST_TRIALS:
        trials += 1
        if fits(batch):
            low = best = batch
            following = min(2 * batch, most) if high is None else (high + low) // 2
        else:
            high = batch
            following = (high + low) // 2
        if following == batch or (high is not None and high - low <= 1 and (best is not None or high <= 1)):
            break
        batch = following
    return Found(best, trials)


FINDERS: Mapping[str, Callable[[Fits, int], Found]] = {
    "accelerate": find_by_accelerate,
    "halving": lambda fits, most: find_by_accelerate(fits, most, halve=True),
    "power": find_by_power,
    "bisection": find_by_bisection,
}
