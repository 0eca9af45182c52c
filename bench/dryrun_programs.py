"""Dry runs of unmodified programs: `python -m bench.dryrun_programs [--quick] [--kohya DIR ...]`.

Each program runs on a card that fits it and on one that does not; for trainers with a known command line the
ladder is walked on the small card, the command it prints is run again there, and so is the rung above it. Programs
of other projects are brought by whoever runs this (their folders and Pythons are arguments); without them only the
project's own small programs run. `--quick` does those alone.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.device.null.card import NullCard
from autotune.dryrun.commands import understand
from autotune.dryrun.ladder import Rung, walk_command
from autotune.dryrun.run import run_on_null_cards
from autotune.dryrun.verdict import Judgement, Result, judge
from autotune.errors import AutotuneError
from autotune.ladder.ladders import CLASSIC
from autotune.units import MIB

PROGRAMS = Path(__file__).parents[1] / "tests" / "programs"


@dataclass(frozen=True)
class Case:
    """One program: its command, cards on which it must fit and must not, and whether its options are known."""

    name: str
    command: tuple[str, ...]
    large: tuple[str, ...]
    small: tuple[str, ...]
    ladder: bool = False


def main() -> None:
    arguments = parse_arguments()
    cases = own_cases() if arguments.quick else [*own_cases(), *foreign_cases(arguments)]
    rows = [run_case(case) for case in cases]
    print(f"{'program':34} {'large':6} {'MiB':>7} {'small':13} {'MiB':>7} {'ladder':28} {'s':>6}")
    for row in rows:
        print(
            f"{row['program']:34} {row['large']:6} {row['large_reserved_mib']:7,} {row['small']:13} "
            f"{row['small_reserved_mib']:7,} {row['ladder']:28} {row['seconds']:6.1f}"
        )
    print(json.dumps({"programs": len(rows), "right": sum(row["right"] for row in rows), "rows": rows}))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kohya", type=Path, help="folder of sd-scripts")
    parser.add_argument("--kohya-python", default=sys.executable)
    parser.add_argument("--diffusers-script", type=Path, help="a train_*_lora.py of diffusers' examples")
    parser.add_argument("--other-python", default=sys.executable, help="has lightning and torchvision")
    parser.add_argument(
        "--sd1", type=Path, help="a full-size SD 1.x folder (autotune.testing.tiny.make_full_size)"
    )
    parser.add_argument("--sdxl", type=Path, help="a full-size SDXL in one file (autotune.testing.single_file)")
    parser.add_argument("--pictures", type=Path, help="a folder in kohya's layout, N_name/ inside")
    parser.add_argument("--tokenizers", type=Path, help="kohya's --tokenizer_cache_dir")
    return parser.parse_args()


def own_cases() -> list[Case]:
    """Programs of this project that know nothing of it."""
    here, fits, not_here = sys.executable, ("3GiB@8.6",), ("700MiB@8.6",)
    torchrun = (here, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = str(PROGRAMS / "two_ranks.py")
    return [
        Case("plain loop", (here, str(PROGRAMS / "plain_loop.py"), "20000"), fits, not_here),
        Case("accelerate, fp16 scaler", (here, str(PROGRAMS / "scaled_loop.py"), "20000"), fits, not_here),
        Case("DDP on two cards, gloo", (*torchrun, two, "30000"), fits * 2, ("2GiB@8.6", "700MiB@8.6")),
    ]


def foreign_cases(arguments: argparse.Namespace) -> list[Case]:
    """Programs that were brought along."""
    other = arguments.other_python
    cases = [
        Case(
            "HF Trainer, LoRA", (other, str(PROGRAMS / "hf_trainer_lora.py"), "32"), ("6GiB@8.6",), ("1GiB@8.6",)
        ),
        Case(
            "Lightning module",
            (other, str(PROGRAMS / "lightning_module.py"), "20000"),
            ("3GiB@8.6",),
            ("700MiB@8.6",),
        ),
    ]
    if arguments.kohya and arguments.sd1:
        cases.append(
            _kohya(arguments, "train_network.py", arguments.sd1, "8", "512", ("24GiB@8.6",), ("6GiB@8.6",))
        )
    if arguments.kohya and arguments.sdxl:
        cases.append(
            _kohya(arguments, "sdxl_train_network.py", arguments.sdxl, "2", "1024", ("48GiB@8.6",), ("12GiB@8.6",))
        )
    if arguments.diffusers_script and arguments.sd1:
        cases.append(_diffusers(arguments))
    return cases


def _kohya(
    arguments: argparse.Namespace,
    script: str,
    model: Path,
    batch: str,
    side: str,
    large: tuple[str, ...],
    small: tuple[str, ...],
) -> Case:
    options = {
        "pretrained_model_name_or_path": model, "train_data_dir": arguments.pictures, "resolution": side,
        "train_batch_size": batch, "network_module": "networks.lora", "network_dim": 32, "network_alpha": 16,
        "mixed_precision": "fp16", "optimizer_type": "AdamW8bit", "max_train_steps": 3,
        "save_model_as": "safetensors", "tokenizer_cache_dir": arguments.tokenizers,
    }  # fmt: skip
    switches = ("--cache_latents", "--sdpa")
    unet_only = ("--network_train_unet_only", "--no_half_vae") if script.startswith("sdxl") else ()
    command = (arguments.kohya_python, str(arguments.kohya / script), *_spelled(options), *switches, *unet_only)
    return Case(f"kohya {script}", _with_output(command), large, small, ladder=True)


def _diffusers(arguments: argparse.Namespace) -> Case:
    options = {
        "pretrained_model_name_or_path": arguments.sd1, "train_data_dir": arguments.pictures,
        "resolution": 512, "train_batch_size": 6, "rank": 16, "mixed_precision": "fp16", "max_train_steps": 3,
        "caption_column": "text",
    }  # fmt: skip
    command = (arguments.other_python, str(arguments.diffusers_script), *_spelled(options))
    return Case("diffusers text-to-image LoRA", _with_output(command), ("24GiB@8.6",), ("6GiB@8.6",), ladder=True)


def _with_output(command: tuple[str, ...]) -> tuple[str, ...]:
    return (*command, "--output_dir", tempfile.mkdtemp(prefix="autotune-bench-"))


def _spelled(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def run_case(case: Case) -> dict[str, Any]:
    """Both runs of a case, and the ladder where its options are known."""
    started = time.monotonic()
    large, small = (_judge(case.command, cards) for cards in (case.large, case.small))
    ladder, ladder_right = _walk(case) if case.ladder else ("-", True)
    return {
        "program": case.name,
        "large": large.result.value,
        "large_reserved_mib": _reserved_mib(large),
        "small": small.result.value,
        "small_reserved_mib": _reserved_mib(small),
        "ladder": ladder,
        "right": large.result is Result.FITS and small.result is Result.NO and ladder_right,
        "notes": [*large.notes, *small.notes],
        "seconds": round(time.monotonic() - started, 1),
    }


def _walk(case: Case) -> tuple[str, bool]:
    """What the ladder chose, and whether its command fits when run again and the last rung above did not."""
    rungs: list[Rung] = []
    try:
        walked = walk_command(understand(case.command), _cards(case.small), CLASSIC, rungs.append)
    except AutotuneError as error:
        return str(error)[:60], False
    plan, again = walked.chosen.plan, _judge(walked.chosen.command, case.small)
    failed = [rung for rung in rungs if rung.judgement.result is not Result.FITS]
    above = _judge(failed[-1].command, case.small) if failed else None
    switch = "on" if plan.gradient_checkpointing else "off"
    words = f"batch {plan.batch_size}, {plan.resolutions[0][0]} px, ckpt {switch}, dim {plan.network_dim}"
    return words, again.result is Result.FITS and above is not None and above.result is not Result.FITS


def _judge(command: Sequence[str], cards: Sequence[str]) -> Judgement:
    return judge(run_on_null_cards(command, _cards(cards), quiet=True))


def _cards(names: Sequence[str]) -> list[NullCard]:
    cards = [NullCard.parse(name) for name in names]
    return [card.with_context(card.context_low_bytes) for card in cards]


def _reserved_mib(judgement: Judgement) -> int:
    return max((row.use.reserved_bytes for row in judgement.cards), default=0) // MIB


if __name__ == "__main__":
    main()
