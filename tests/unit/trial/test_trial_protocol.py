"""What crosses the pipe arrives as it was sent, and nonsense is a clear error."""

import pytest

from autotune.device.session import Evidence
from autotune.errors import DataError, DiskError, OutOfDeviceMemory, WorkerError
from autotune.ladder.plan import Plan, Recipe
from autotune.memory.phases import PhasePeak
from autotune.trial.oom import Kind
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.protocol import Failure, Ready, TrialReport, decode, encode
from autotune.trial.workload import Job

PLAN = Plan.of(batch_size=2, resolution=((512, 768),), gradient_checkpointing=True)


def test_a_report_survives_the_pipe() -> None:
    outcome = Outcome(PLAN, Verdict.OOM, Evidence.SIMULATED, "x\ny", "step", 5, 6, 1.5, (PhasePeak("open", 5, 6),))
    report = TrialReport(outcome, Kind.DEVICE_MEMORY, False, 7, False, 8, "Traceback")
    assert TrialReport.from_json(decode(encode(report.to_json()))) == report


def test_a_ready_worker_survives_the_pipe() -> None:
    job = Job("label", {"family": "x"}, Recipe(PLAN, 4, 1, {"resolution": 256}), ("note",))
    ready = Ready(job, {"name": "virtual", "evidence": "simulated"}, {"torch": "2.13"}, ("warning",))
    assert Ready.from_json(decode(encode(ready.to_json()))) == ready
    assert ready.evidence is Evidence.SIMULATED


def test_an_error_for_the_user_keeps_its_class_its_words_and_its_traceback() -> None:
    error = Failure.from_json(Failure.of_error(DataError("a.", "b."), "Traceback").to_json()).to_error()
    assert type(error) is DataError
    assert (error.fact, error.way_out) == ("a.", "b.")
    assert "Traceback" in error.__notes__[0]


def test_an_error_class_that_only_the_worker_knows_arrives_as_its_nearest_parent() -> None:
    class BrokenPictureError(DataError):
        pass

    assert type(Failure.of_error(BrokenPictureError("a.")).to_error()) is DataError


@pytest.mark.parametrize(
    ("kind", "error_class"),
    [(Kind.DEVICE_MEMORY, OutOfDeviceMemory), (Kind.DISK, DiskError), (Kind.OTHER, WorkerError)],
)
def test_any_other_exception_becomes_the_error_of_what_ran_out(kind: Kind, error_class: type) -> None:
    assert type(Failure.of_kind(kind, "it failed.").to_error()) is error_class


def test_a_name_that_is_no_error_class_of_ours_becomes_a_worker_error() -> None:
    assert type(Failure("annotations", "x.").to_error()) is WorkerError


@pytest.mark.parametrize("line", [b"", b"hello\n", b"[1]\n", b"\xff\n", b'{"kind":\n'])
def test_a_broken_message_is_quoted(line: bytes) -> None:
    with pytest.raises(WorkerError, match="broken message"):
        decode(line)


def test_a_value_that_is_no_plain_data_is_refused_where_it_is_sent() -> None:
    with pytest.raises(TypeError):
        encode({"loss": object()})
