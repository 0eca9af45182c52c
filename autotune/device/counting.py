"""The rule of the virtual GPU for one operation: which of its results are new device memory.

Owns the dispatch mode that sees every operation of the thread it was entered in: forward, backward (on the
CPU autograd runs in the calling thread) and optimizer. It tells the account what is new, and must never
change what an operation computes.

It runs on every operation, so it reads the operation's schema once and remembers the answer. The schema is
trusted where it says that a result shares an input's storage. Where it says nothing, a storage counts as
new only if no input has it: some operations return an input, or a view of one, without saying so.

Not seen, and so not counted: scratch memory inside one kernel (whatever an operation allocates and frees
before it returns), operations of other threads, `storage.resize_` called on a storage itself, and memory
wrapped without an operation (`torch.frombuffer`), which is host memory. PyTorch refuses
higher-order operations (`flex_attention`, `torch.cond`) within a mode of this kind.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.device.accounting import Account, block_bytes, storages_of

_use_count: Callable[[int], int] = torch._C._storage_Use_Count

_SHARES = 0  # every result shares an input's storage, or there is no result
_CREATES = 1  # may make storages
_LIFTS = 2  # hands over a tensor that was made out of sight, such as torch.tensor([1.0])
_WRITES = 3  # may resize the storages of the arguments it writes to
_SETS = 4  # gives a tensor another storage
_COMPOSES = 5  # is made of smaller operations, which inference mode does not take apart by itself


class _Operation(NamedTuple):
    """What is known of an operation: how to call it, what its results are, which arguments it writes to.

    `function` is kept so that its `id`, the key in `_OPERATIONS`, can't be given to another.
    """

    call: Callable[..., Any]
    kind: int
    written: Sequence[tuple[int, str]]
    function: Any


_OPERATIONS: dict[int, _Operation] = {}


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, and while `charging`, every new CPU storage of this thread is charged to `account`."""

    def __init__(self, account: Account) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.charging = True
        self._account = account
        self._live = account.live
        self._unset_uses = (_uses_unset(False), _uses_unset(True))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run `func` and charge what it made. Raises torch.OutOfMemoryError with its results let go."""
        call, kind, _, _ = operation = _OPERATIONS.get(id(func)) or _learn(func)
        try:
            if kind > _CREATES and (self.charging or kind == _WRITES):
                result, refused_bytes = self._run_special(operation, args, kwargs or {})
            else:
                result = call(*args, **kwargs) if kwargs else call(*args)
                if kind == _SHARES or not self.charging:
                    return result
                if type(result) is Tensor:
                    refused_bytes = self._settle(result, args, kwargs)
                else:
                    refused_bytes = self._settle_all(result, args, kwargs)
        except RuntimeError as error:
            self._raise_refusal_of_host(error)
            raise
        if refused_bytes:
            del result, args, kwargs  # or this frame, kept by the traceback, would keep the tensors
            raise self._account.out_of_memory(refused_bytes)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep Dynamo's wrapper away: it costs a microsecond on every operation, and compiled code may be
        traced through this method without harm."""
        return False

    def _settle(self, tensor: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> int:
        """Charge the storage of one result unless it is live or an input's. Returns bytes refused, or 0."""
        if not tensor.is_cpu:
            return 0
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # no storage of its own: sparse
            return self._settle_parts(tensor, args, kwargs)
        if id(storage) in self._live:
            return 0
        if _use_count(storage._cdata) != 2:  # this tensor and the Python object, if it is new
            return self._settle_parts(tensor, args, kwargs)
        for arg in args:
            if arg is tensor or (type(arg) is list and any(item is tensor for item in arg)):
                return 0
        if kwargs and any(arg is tensor for arg in kwargs.values()):
            return 0
        return self._account.charge(storage)

    def _settle_all(self, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> int:
        """The same for a result of any other type: nested tuples and lists, subclasses, numbers, None."""
        if type(result) is tuple:
            for item in result:
                if type(item) is Tensor:
                    refused_bytes = self._settle(item, args, kwargs)
                else:
                    refused_bytes = self._settle_all(item, args, kwargs) if item is not None else 0
                if refused_bytes:
                    return refused_bytes
            return 0
        if isinstance(result, Tensor | list | tuple):
            return self._settle_parts(result, args, kwargs)
        return 0

    def _settle_parts(self, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> int:
        """The same by comparing storages with all inputs' storages: slower, and right in every case."""
        inputs = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if id(storage) not in inputs and id(storage) not in self._live:
                refused_bytes = self._account.charge(storage)
                if refused_bytes:
                    return refused_bytes
        return 0

    def _run_special(
        self, operation: _Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, int]:
        """Run an operation whose schema does not tell all. Returns its result and the bytes refused, or 0."""
        call, kind, written, function = operation
        if kind == _COMPOSES:
            with self:
                return function.decompose(*args, **kwargs), 0
        if kind == _SETS:
            return self._run_set(call, args, kwargs)
        result = call(*args, **kwargs)
        if kind == _LIFTS:
            return result, self._settle_parts(result, (), None)
        values = [args[at] if at < len(args) else kwargs.get(name) for at, name in written]
        refused_bytes = self._resize(values)
        if self.charging and not refused_bytes:
            refused_bytes = self._settle_parts(result, args, kwargs)
        return result, refused_bytes

    def _resize(self, written: Sequence[Any]) -> int:
        """Follow the growth of what was device memory before; returns the bytes refused, or 0."""
        for storage in _storages(written):
            if id(storage) in self._live:
                refused_bytes = self._account.resize(storage)
                if refused_bytes:
                    return refused_bytes
        return 0

    def _raise_refusal_of_host(self, error: RuntimeError) -> None:
        """Raise out of memory if the host refused a request that the budget would have refused as well."""
        found = _HOST_REFUSAL.search(str(error))
        if found and self.charging:
            size_bytes = block_bytes(int(found[1]))
            if self._account.current_bytes + size_bytes > self._account.budget_bytes:
                raise self._account.out_of_memory(size_bytes) from None

    def _run_set(
        self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, int]:
        """Run `set_`: the storage it puts into the tensor is new if no tensor had it before.

        That is how torch.load and deepcopy make tensors: an empty one, and `set_` to the storage they filled.
        """
        source = args[1] if len(args) > 1 else kwargs.get("source")
        unset_uses = self._unset_uses[torch.is_inference_mode_enabled()]
        is_new = isinstance(source, torch.UntypedStorage) and _use_count(source._cdata) <= unset_uses
        result = call(*args, **kwargs)
        refused_bytes = self._settle_parts(result, () if is_new else (source,), None)
        return result, refused_bytes or self._resize([result])


_HOST_REFUSAL = re.compile(r"DefaultCPUAllocator: .*?tried to allocate (\d+) bytes", re.DOTALL)


def _learn(func: Any) -> _Operation:
    """Read the schema of `func` and remember it. What has none may make storages."""
    if type(func) is OpOverload:
        written = tuple((at, a.name) for at, a in enumerate(func._schema.arguments) if _is_written(a))
        operation = _Operation(func._op, _kind_of(func), written, func)
    else:
        operation = _Operation(func, _CREATES, (), func)
    return _OPERATIONS.setdefault(id(func), operation)


def _kind_of(func: OpOverload) -> int:
    name, schema = func._schema.name, func._schema
    if name in ("aten::lift_fresh", "aten::lift"):
        return _LIFTS
    if name == "aten::set_":
        return _SETS
    if _is_composite(func):
        return _COMPOSES
    written = [argument for argument in schema.arguments if _is_written(argument)]
    if written and (written[0].kwarg_only or "resize" in name or not name.startswith("aten::")):
        return _WRITES
    return _SHARES if all(result.alias_info is not None for result in schema.returns) else _CREATES


def _is_composite(func: OpOverload) -> bool:
    name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU")


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _storages(values: Any) -> Iterator[torch.UntypedStorage]:
    """The CPU storages in nested tuples, lists and dicts of tensors and storages."""
    if isinstance(values, Tensor):
        yield from storages_of(values)
    elif isinstance(values, torch.UntypedStorage):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _storages(value)
    elif isinstance(values, Mapping):
        yield from _storages(tuple(values.values()))


class _CountUses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many uses a storage has on its way into `set_`."""

    uses = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if len(args) > 1 and isinstance(args[1], torch.UntypedStorage):
            self.uses = _use_count(args[1]._cdata)
        return func(*args, **(kwargs or {}))


@cache
def _uses_unset(inference: bool) -> int:
    """The use count, inside the mode, of a storage that no tensor has.

    The dispatcher holds copies of its own, in a number that differs between versions and in inference mode:
    so it is looked at instead of known, before the mode runs, because inside it the number is another. A mode
    entered within the scope adds one, and such a storage then counts as used: host memory.
    """
    with torch.inference_mode(inference), cast("Any", _CountUses)() as mode:
        torch.empty(0).set_(cast("Any", torch.UntypedStorage)(1))
        uses: int = mode.uses
    return uses
