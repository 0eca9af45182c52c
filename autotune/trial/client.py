"""The controller's handle on a worker: ask it to open, try, run and close, and get an answer in any case.

Owns requests and what their failures mean. Must never touch a device or import torch, and must never let a
worker outlive its `with` block.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from autotune.device.session import DeviceSpec
from autotune.errors import AutotuneError, WorkerError
from autotune.ladder.plan import Plan
from autotune.trial import oom
from autotune.trial.outcome import Outcome, Verdict
from autotune.trial.process import CLOSE_WITHIN_S, POLL_S, Death, EndedError, Launch, WorkerProcess
from autotune.trial.protocol import STEPS_TO_TIME, Failure, Op, Ready, Recording, Say, TrialReport

OnEvent = Callable[[Mapping[str, Any]], None]


class HungError(Exception):
    """No progress within the time limit; the text is one line."""


class Worker:
    """One worker with one workload on one device; use it in a `with` block.

        with Worker("trainer.workload:create", config, DeviceSpec.parse("cuda")) as worker:
            report = worker.trial(worker.ready.job.recipe.plan)

    `on_event` hears every phase and step as JSON (`{"phase": ...}`, `{"phase": "step", "step": 1, "of": 3}`).
    """

    def __init__(
        self,
        workload: str,
        config: Mapping[str, Any],
        device: DeviceSpec,
        budget_bytes: int | None = None,
        launch: Launch | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self.workload = workload
        self.config = config
        self.device = device
        self.budget_bytes = budget_bytes
        self.launch = launch or Launch()
        self._on_event: OnEvent = on_event or (lambda event: None)
        self._process: WorkerProcess | None = None
        self._ready: Ready | None = None
        self._request_id = 0
        self._busy = False
        self._phase = ""

    def __enter__(self) -> "Worker":
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ready(self) -> Ready:
        """What the worker told when it opened. Raises WorkerError before that."""
        if self._ready is None:
            raise WorkerError("the worker is not open.", "Call `open` first.")
        return self._ready

    @property
    def pid(self) -> int | None:
        """The worker's process number while it lives."""
        return self._process.pid if self._process else None

    def open(self) -> Ready:
        """Start the process, make the workload and open the device. Raises what the worker raised
        (AutotuneError), or WorkerError if it died or hung."""
        self._process = WorkerProcess(self._equipped())
        body = self._ask_or_raise(
            Op.OPEN,
            Say.READY,
            self._on_event,
            workload=self.workload,
            config=dict(self.config),
            device=str(self.device),
            budget_bytes=self.budget_bytes,
        )
        self._ready = Ready.from_json(body)
        return self._ready

    def trial(
        self,
        plan: Plan,
        steps: int = STEPS_TO_TIME,
        lift_budget: bool = False,
        record: Recording | None = None,
        to_the_end: bool = True,
        room_bytes: int | None = None,
    ) -> TrialReport:
        """Try `plan` with `steps` optimizer steps (at least two; three to time them).

        A worker that dies or hangs is an outcome too. Raises AutotuneError only for what the workload wants
        the user to know (a broken image, a missing model). `lift_budget` runs without the budget, as far as
        the host's memory goes: on the virtual GPU only. `record` asks for the report's `account`, on devices whose
        memory PyTorch's allocator manages. Raises DiskError if its snapshot can't be written. Without
        `to_the_end` the trial ends after its steps: no sampling, no saving. `room_bytes`, on a null card only, is
        what PyTorch may reserve in this trial.
        """
        fields = {
            "plan": plan.to_json(),
            "steps": steps,
            "lift_budget": lift_budget,
            "record": record.to_json() if record else None,
            "to_the_end": to_the_end,
            "room_bytes": room_bytes,
        }
        try:
            return TrialReport.from_json(self._ask(Op.TRIAL, Say.OUTCOME, self._on_event, **fields))
        except EndedError as ended:
            death = self._bury(ended)
            verdict = Verdict.OOM if death.kind is oom.Kind.DEVICE_MEMORY else Verdict.CRASHED
            return self._lost(plan, verdict, death.fact, death.kind)
        except HungError as hung:
            return self._lost(plan, Verdict.HUNG, str(hung), oom.Kind.OTHER)

    def run(self, plan: Plan, on_event: OnEvent | None = None) -> Mapping[str, Any]:
        """Do the workload's full run of `plan`; `on_event` gets its reports. Returns its summary. Raises what
        the worker raised, OutOfDeviceMemory if memory ran out, WorkerError if it died or hung."""
        return self._ask_or_raise(Op.RUN, Say.SUMMARY, on_event or self._on_event, plan=plan.to_json())

    def abort(self) -> None:
        """Kill the worker, from any thread: whoever waits for its answer hears of its death."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the worker: by asking if it is idle, else by force. Nothing is left running."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if not self._busy:
                process.send({"op": Op.CLOSE.value, "id": 0})
                process.wait_for_end(CLOSE_WITHIN_S)
        except EndedError:
            pass
        finally:
            process.end()

    def _equipped(self) -> Launch:
        """The launch, on a null card in an environment in which torch finds it; one that names its cards stays."""
        if self.device.kind != "null":
            return self.launch
        from autotune.device.null.card import NullCard
        from autotune.device.null.environment import CARDS, null_environment

        if CARDS in (self.launch.environment or ()):
            return self.launch
        cards = [NullCard.parse(self.device.argument)]
        environment = null_environment(cards, self.launch.environment, python=self.launch.python)
        return replace(self.launch, environment=environment)

    def _ask_or_raise(self, op: Op, answer: Say, on_event: OnEvent, **fields: Any) -> Mapping[str, Any]:
        try:
            return self._ask(op, answer, on_event, **fields)
        except EndedError as ended:
            raise self._error_of(self._bury(ended)) from None
        except HungError as hung:
            self._discard()
            raise WorkerError(f"the worker {hung}.", self._see_log()) from None

    def _ask(self, op: Op, answer: Say, on_event: OnEvent, **fields: Any) -> Mapping[str, Any]:
        if self._process is None:
            raise WorkerError(f"there is no worker to {op.value} with.", "It died, hung or was closed.")
        self._request_id += 1
        self._busy = True
        self._phase = ""
        self._process.send({"op": op.value, "id": self._request_id, **fields})
        kind, body = self._listen(self._process, on_event)
        self._busy = False
        if kind == Say.ERROR:
            raise Failure.from_json(body).to_error()
        if kind != answer:
            raise EndedError(f"{kind!r} is no answer to {op.value!r}")
        return body

    def _listen(self, process: WorkerProcess, on_event: OnEvent) -> tuple[str, Mapping[str, Any]]:
        """Pass events on until the answer comes. Only progress resets the clock: a heartbeat proves life."""
        clock, moved_at = self.launch.clock, self.launch.clock()
        while True:
            message = process.receive(POLL_S) or {"kind": Say.HEARTBEAT}
            kind = message.get("kind", "")
            if kind in (Say.PROGRESS, Say.EVENT):
                moved_at = clock()
                self._phase = str(message["body"].get("phase", self._phase))
                on_event(message["body"])
            elif kind != Say.HEARTBEAT and message.get("id") in (self._request_id, None):
                return kind, message.get("body", {})
            if clock() - moved_at > self.launch.hang_after_s:
                raise HungError(self._describe_hang(process, clock() - moved_at))

    def _describe_hang(self, process: WorkerProcess, silent_s: float) -> str:
        phase = f" in phase {self._phase!r}" if self._phase else ""
        return f"made no progress for {silent_s:.0f} s{phase}{process.describe_hang()}"

    def _lost(self, plan: Plan, verdict: Verdict, reason: str, kind: oom.Kind) -> TrialReport:
        self._discard()
        outcome = Outcome(plan, verdict, self.ready.evidence, reason=reason, failed_phase=self._phase)
        return TrialReport(outcome, kind, clean=False, reusable=False)

    def _bury(self, ended: EndedError) -> Death:
        assert self._process is not None
        death = self._process.describe_death(str(ended))
        self._discard()
        return death

    def _discard(self) -> None:
        process, self._process, self._busy = self._process, None, False
        if process is not None:
            process.end()

    def _error_of(self, death: Death) -> AutotuneError:
        during = f" in phase {self._phase!r}" if self._phase else ""
        failure = Failure.of_kind(death.kind, f"{death.fact}{during}.")
        return Failure(failure.error_class, failure.fact, failure.way_out or self._see_log()).to_error()

    def _see_log(self) -> str:
        return f"Its log is {self.launch.log_path}." if self.launch.log_path else ""
