"""Published rows are read as they are written, judged without favour, and replayed by our own worker."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.device.catalogue import Card, find_card
from autotune.units import MIB
from bench import forecast_accuracy
from bench.replays import runner
from bench.replays.adapters import AdapterError, add_adapter
from bench.replays.denoisers import DENOISERS
from bench.replays.judge import judge, summarize
from bench.replays.rows import START_RESERVED_BYTES, Row, read_rows, reason_unsupported

HEADER = (
    "id,source,family,model,adapter,rank,alpha,targets,batch,width,height,base_dtype,adapter_dtype,checkpointing,"
    "optimizer,gpu,torch,metric,measured_bytes,mean_allocated_bytes,sec_per_step,notes"
)
PEFT_LINE = (
    "a,huggingface/peft image-gen benchmark results,flux2-klein,m,LORA,32,32,to_k to_q,2,512,512,bfloat16,float32,"
    "True,AdamW,NVIDIA L40S 48GB,2.12.0,max_memory_reserved,10708058112,8889891072,1.0,"
    '"total_params=3913883136 trainable_params=38338560; and more"'
)
TRAINER_LINE = (
    "b,another trainer,SD 1.x,m,LORA,16,,trainer default,1,512,512,bf16,not stated,False,adamw_bf16,"
    'NVIDIA L40S 48GB,,"max_memory_allocated (inferred), GiB rounded to 0.01",3038689362,,0.2,none'
)


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEADER, PEFT_LINE, TRAINER_LINE]) + "\n", encoding="utf-8")
    return read_rows(path)


def test_a_row_keeps_what_its_columns_say(rows: list[Row]) -> None:
    first, second = rows
    assert first.targets == ("to_k", "to_q")
    assert (first.trainable_parameters, first.total_parameters) == (38338560, 3913883136)
    assert first.absolute_bytes == first.measured_bytes + START_RESERVED_BYTES
    assert (second.targets, second.alpha, second.rank, second.base_dtype) == ((), None, 16, "bfloat16")
    assert second.absolute_bytes == second.measured_bytes
    assert second.checkpointing is False


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"family": "Nobody's"}, "family"),
        ({"base_dtype": "int8-sdnq"}, "precision"),
        ({"adapter": "LOKR factor 12 (lycoris, bypass)"}, "lycoris"),
        ({"optimizer": "prodigy"}, "optimizer"),
        ({"metric": "guess"}, "metric"),
    ],
)
def test_what_cannot_be_replayed_says_why(rows: list[Row], changes: dict[str, str], word: str) -> None:
    assert reason_unsupported(rows[1]) is None
    assert word in str(reason_unsupported(replace(rows[1], **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "slug"),
    [("NVIDIA L40S 48GB", "l40s"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA H100 80GB", "h100")],
)
def test_cards_are_found_by_what_published_rows_call_them(text: str, slug: str) -> None:
    card = runner.card_of(text)
    assert card is not None
    assert card.slug.startswith(slug)


def test_a_card_nobody_knows_is_a_reason_and_no_crash(rows: list[Row]) -> None:
    results = runner.run_replays([replace(rows[0], gpu="Voodoo 5")])
    assert "catalogue" in results["a"]["reason"]


def test_a_worker_that_dies_costs_one_row(rows: list[Row]) -> None:
    """The row in hand is counted with its reason; the worker starts again for those behind it."""
    made: list[list[str]] = []

    def open_one(config: Mapping[str, Any], card: Card) -> Any:
        made.append([row["id"] for row in config["rows"]])
        return _DyingWorker(config)

    several = [replace(rows[1], id=name) for name in ("one", "two", "three")]
    results = runner.run_replays(several, 1, open_one)
    assert made == [["one", "two", "three"], ["three"]]
    assert [("reason" in results[name]) for name in ("one", "two", "three")] == [False, True, False]


@given(st.integers(0, 4000), st.integers(0, 400))
def test_an_interval_holds_the_truth_or_says_it_does_not(counted_mib: int, slack_mib: int) -> None:
    row = _row(metric="max_memory_reserved", measured_bytes=2000 * MIB)
    judged = judge(row, _readings(counted_mib * MIB, slack_mib * MIB), {})
    assert judged.interval is not None
    assert judged.inside == (judged.interval.low_bytes <= row.absolute_bytes <= judged.interval.high_bytes)
    assert judged.interval.low_bytes <= max(judged.forecast_bytes, 0) <= judged.interval.high_bytes


def test_no_row_is_dropped_from_the_sums(rows: list[Row]) -> None:
    judged = [judge(rows[0], {"reason": "no card"}, {}), judge(rows[1], _readings(2900 * MIB, 0), {})]
    summary = summarize(judged)
    assert (summary["rows"], summary["supported"]) == (2, 1)
    assert summary["unsupported"] == [{"row": "a", "reason": "no card"}]


def test_the_best_method_is_named_only_where_all_others_are_worse() -> None:
    row = _row(metric="max_memory_allocated", measured_bytes=1000 * MIB)
    close = judge(row, _readings(1001 * MIB, 0), {"formula": 900 * MIB, "fake": None})
    far = judge(row, _readings(1200 * MIB, 0), {"formula": 1001 * MIB})
    assert summarize([close])["families"][row.family]["best"] is True
    assert summarize([far])["families"][row.family]["best"] is False


def test_an_adapter_that_trains_another_number_of_parameters_says_so() -> None:
    adapted = add_adapter(_tiny_base, "LORA", 4, 4, ["to_q"], trainable=12345)
    assert adapted.matches is False
    assert add_adapter(_tiny_base, "LORA", 4, 4, ["to_q"], trainable=adapted.trainable).matches is True


def test_an_adapter_nobody_has_is_refused_by_name() -> None:
    with pytest.raises(AdapterError, match="TELEPATHY"):
        add_adapter(_tiny_base, "TELEPATHY", 4, None, ["to_q"], None)


@pytest.mark.slow
def test_a_row_is_replayed_on_its_null_card_within_one_percent(
    null_gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEADER}\n{TRAINER_LINE}\n", encoding="utf-8")
    assert forecast_accuracy.main(["--rows", str(path), "--quick"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["rows"], summary["supported"], summary["inside_interval"]) == (1, 1, 1)
    assert summary["max_abs_error"] < 0.01


def _tiny_base() -> Any:
    import torch
    from torch import nn

    with torch.device("meta"):
        base = nn.Sequential()
        base.add_module("to_q", nn.Linear(8, 8))
    return base


def _row(**changes: Any) -> Row:
    values = dict.fromkeys(Row.__dataclass_fields__, None) | {
        "id": "x", "source": "a trainer", "family": "SD 1.x", "targets": (), "batch": 1, "width": 512,
        "height": 512, "base_dtype": "bfloat16", "adapter": "LORA", "optimizer": "AdamW", "gpu": "l40s",
        "notes": "",
    }  # fmt: skip
    return Row(**{**values, **changes})


def _readings(allocated: int, slack: int) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": allocated + slack,
        "mean_allocated_bytes": allocated // 2,
        "seconds": 1.0,
        "card": find_card("l40s"),
    }


class _DyingWorker:
    """Finishes its first row and dies in the row called `two`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._rows = config["rows"]
        self.ready = self
        self.job = self
        self.recipe = self
        self.plan: dict[str, Any] = {}

    def __enter__(self) -> "_DyingWorker":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, plan: Any, on_event: Any) -> None:
        from autotune.errors import WorkerError

        for row in self._rows:
            if row["id"] == "two":
                raise WorkerError("the worker died.", "Look into its log.")
            on_event({"row": row["id"], "seconds": 1})


def test_rows_survive_the_worker_pipe(rows: list[Row]) -> None:
    sent = json.loads(json.dumps(asdict(rows[0])))
    assert Row(**{**sent, "targets": tuple(sent["targets"])}) == rows[0]


def test_every_family_has_the_shapes_of_a_step() -> None:
    assert all(kind.latent_channels > 0 and kind.targets for kind in DENOISERS.values())
