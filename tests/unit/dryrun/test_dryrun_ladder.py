"""The ladder on a known trainer's options, walked by real dry runs of a stand-in with that trainer's name."""

import sys
from pathlib import Path

from autotune.device.null.card import NullCard
from autotune.dryrun.commands import understand
from autotune.dryrun.ladder import Rung, walk_command
from autotune.dryrun.verdict import Result
from autotune.ladder.ladders import CLASSIC
from tests.conftest import NullGpu

STAND_IN = """
import argparse, pathlib, torch
p = argparse.ArgumentParser()
p.add_argument("--train_batch_size", type=int, default=1)
p.add_argument("--gradient_accumulation_steps", type=int, default=1)
p.add_argument("--max_train_steps", type=int, default=100000)
p.add_argument("--output_dir")
a = p.parse_args()
assert a.max_train_steps == 3
held = torch.empty(a.train_batch_size, 300 << 20, dtype=torch.uint8, device="cuda")
pathlib.Path(a.output_dir).mkdir()
(pathlib.Path(a.output_dir) / "lora.safetensors").write_text("zeros")
"""


def test_the_command_that_fits_has_the_same_effective_batch_and_the_real_output_is_untouched(
    null_gpu: NullGpu, tmp_path: Path
) -> None:
    script = tmp_path / "train_network.py"
    script.write_text(STAND_IN, "utf-8")
    output = tmp_path / "mine"
    command = [sys.executable, str(script), "--train_batch_size", "8", "--output_dir", str(output)]
    seen: list[Rung] = []
    card = NullCard.parse("1500MiB@8.6")
    walked = walk_command(understand(command), [card], CLASSIC, seen.append)
    assert [(rung.plan.batch_size, rung.judgement.result) for rung in seen] == [
        (8, Result.NO),
        (4, Result.CLOSE),
        (2, Result.FITS),
    ]  # 3 is not tried: with it no accumulation gives an effective batch of 8
    assert list(walked.chosen.command) == [
        sys.executable, str(script), "--train_batch_size", "2", "--output_dir", str(output),
        "--gradient_accumulation_steps", "4",
    ]  # fmt: skip
    assert not output.exists()
