"""The virtual GPU: real arithmetic on the CPU under a budget of simulated device memory.

Owns the session: what is device memory and what is host memory where both are `cpu` to PyTorch. Inside
`scope()` every new storage is device memory unless it is made under `host()`; outside it only what `place`
was given; an existing storage is never charged again through a view. Passing the budget raises
`torch.OutOfMemoryError`, whose text says virtual. Its numbers are evidence of class `simulated` and must
never be shown as measured ones: scratch memory inside kernels, the allocator's cache and the CUDA context
do not exist here (`counting` lists what is not seen).

Two limits come from PyTorch, where a mode belongs to one thread. Operations of another thread are not
counted unless that thread opens its own `scope()`. A forked child inherits the mode: there the scope stops
counting, so that data loader workers make host memory as they should, and the session refuses further use.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor

from autotune.device.accounting import Account, storages_of
from autotune.device.counting import CountingMode
from autotune.device.session import Evidence, Placed
from autotune.errors import DeviceError


class VirtualSession:
    """A virtual GPU of `total_bytes`, implementing `DeviceSession`. Each session has its own account."""

    def __init__(self, total_bytes: int) -> None:
        self._account = Account(total_bytes)
        self.name = self._account.name
        self.evidence = Evidence.SIMULATED
        self._process = os.getpid()
        self._thread = threading.local()
        _SESSIONS.add(self)

    @property
    def torch_device(self) -> torch.device:
        """Always `cpu`: where the operations run."""
        return torch.device("cpu")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """New storages of this thread are device memory inside. May be entered again inside and in `host()`.

        Raises DeviceError in a forked child. Operations inside raise torch.OutOfMemoryError.
        """
        self._check_process()
        if self._mode is not None:
            with self._charging(True):
                yield
            return
        self._mode = mode = CountingMode(self._account)
        try:
            with mode:
                yield
        finally:
            self._mode = None

    @contextmanager
    def host(self) -> Iterator[None]:
        """Storages made inside are host memory; what is device memory stays. No effect outside `scope()`."""
        with self._charging(False):
            yield

    def place(self, thing: Placed) -> Placed:
        """Make `thing` device memory, in scope or out of it.

        A module is charged in place for the storages of its parameters, their gradients and its buffers, each
        once however many share it. Of a tensor a charged copy is returned, or itself if it is device memory
        already, as `Tensor.to` does; gradients flow through the copy.
        Raises torch.OutOfMemoryError with nothing of `thing` placed that was not before.
        """
        self._check_process()
        if isinstance(thing, torch.nn.Module):
            self._place_module(thing)
            return thing
        return self._place_tensor(thing)

    def evict(self, thing: Placed) -> Placed:
        """Make `thing` host memory. A module in place: its bytes come back at once. Of a tensor a copy is
        returned, or itself if it is host memory already; the bytes of the original come back when it dies."""
        self._check_process()
        if isinstance(thing, torch.nn.Module):
            for storage in _module_storages(thing):
                self._account.release(storage)
            return thing
        return self._copy(thing) if any(map(self._is_live, storages_of(thing))) else thing

    def limit(self, budget_bytes: int) -> None:
        """Cap device memory at `budget_bytes`, at most the size of the virtual GPU.

        What is live stays, even above the cap; the next charge is refused. Raises ValueError below zero.
        """
        if budget_bytes < 0:
            raise ValueError(f"a budget of {budget_bytes} bytes can't be: use zero or more")
        self._account.budget_bytes = min(budget_bytes, self._account.total_bytes)

    def statistics(self) -> dict[str, int]:
        """Counters in bytes named as in `torch.cuda.memory_stats`: `allocated_bytes.all.` and
        `reserved_bytes.all.` with `current`, `peak`, `allocated`, `freed`; `num_ooms`; `num_alloc_retries`.
        There is no cache: reserved equals allocated and nothing is ever retried."""
        return self._account.statistics()

    def reset_peak(self) -> None:
        """Start new peaks from what is live now."""
        self._account.reset_peak()

    def empty_cache(self) -> None:
        """Nothing to do: there is no cache."""

    def synchronize(self) -> None:
        """Nothing to do: the CPU has finished when a call returns."""

    @property
    def _mode(self) -> CountingMode | None:
        """This thread's mode, while it is in the scope."""
        return getattr(self._thread, "mode", None)

    @_mode.setter
    def _mode(self, mode: CountingMode | None) -> None:
        self._thread.mode = mode

    @contextmanager
    def _charging(self, charging: bool) -> Iterator[None]:
        mode = self._mode
        if mode is None:
            yield
            return
        before, mode.charging = mode.charging, charging
        try:
            yield
        finally:
            mode.charging = before and os.getpid() == self._process  # once forked, never again

    def _place_module(self, module: torch.nn.Module) -> None:
        placed: list[torch.UntypedStorage] = []
        for storage in _module_storages(module):
            if self._is_live(storage):
                continue
            refused_bytes = self._account.charge(storage)
            if refused_bytes:
                error = self._account.out_of_memory(refused_bytes)
                for charged in placed:
                    self._account.release(charged)
                raise error
            placed.append(storage)

    def _place_tensor(self, tensor: Tensor) -> Tensor:
        if all(map(self._is_live, storages_of(tensor))):
            return tensor
        copy = self._copy(tensor)
        refused_bytes = sum(map(self._account.charge, storages_of(copy)))
        if refused_bytes:
            del copy
            raise self._account.out_of_memory(refused_bytes)
        return copy

    def _copy(self, tensor: Tensor) -> Tensor:
        with self.host():
            return tensor.clone()

    def _is_live(self, storage: torch.UntypedStorage) -> bool:
        return id(storage) in self._account.live

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise DeviceError(
                f"{self.name} was opened in process {self._process}, not in its fork {os.getpid()}.",
                "Start worker processes with the spawn method and open a session there.",
            )

    def _stop_counting(self) -> None:
        if self._mode is not None:
            self._mode.charging = False


_SESSIONS: "WeakSet[VirtualSession]" = WeakSet()


def _module_storages(module: torch.nn.Module) -> Iterator[torch.UntypedStorage]:
    """The storages of what `module.to(device)` moves: parameters, their gradients, buffers."""
    for parameter in module.parameters():
        yield from storages_of(parameter)
        if parameter.grad is not None:
            yield from storages_of(parameter.grad)
    for buffer in module.buffers():
        yield from storages_of(buffer)


def _stop_counting_in_fork() -> None:
    for session in _SESSIONS:
        session._stop_counting()


if hasattr(os, "register_at_fork"):  # where there is fork at all
    os.register_at_fork(after_in_child=_stop_counting_in_fork)
