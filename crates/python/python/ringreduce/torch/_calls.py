"""What all operations of a process group share: its communicator, making and starting calls, their
timeouts, and the end of the group.

Calls that nobody asked to be started are made at once; others are started, in the order in which
PyTorch makes them.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

from .. import _core
from .._errors import Error
from . import _flight
from ._group import note_latest
from ._meeting import shared_id
from ._memory import registered
from ._profile import event, is_profiled
from ._tensors import Finish, Scratch, refuse
from ._work import JoinedWork, Work

Tensor: TypeAlias = torch.Tensor
#: The tensors that a call reads, and those that it writes.
Tensors: TypeAlias = tuple[Sequence[Tensor], Sequence[Tensor]]
#: What `_call` takes: a name, its arguments, tensors, PyTorch's options, and what is left to do.
Arguments: TypeAlias = tuple[str, Sequence[Any], Tensors, Any, Sequence[Finish]]
#: What making the calls of an operation gives.
_Made = TypeVar("_Made")

#: An operation with a longer timeout than this has one of its own.
_UNSET = timedelta(0)

#: C++ holds a backend, and not what Python has added to it.
_backends: set[Calls] = set()


def _create_group(options: Any) -> _core.Communicator | None:
    """The communicator of a group that its members alone make of the default group; None if they
    have to meet at PyTorch's store."""
    world, ranks = dist.GroupMember.WORLD, options.global_ranks_in_group
    if not isinstance(world, dist.ProcessGroup) or len(ranks) != options.group_size:
        return None
    # The default group need not have a backend for tensors of the CPU.
    backend = None
    with suppress(RuntimeError):
        backend = world._get_backend(torch.device("cpu"))
    if not (isinstance(backend, Calls) and backend._comm.can_create_group(ranks)):
        return None
    # PyTorch's name of a group is the same at its ranks, and no other group's.
    digest = hashlib.sha256(options.group_id.encode()).digest()
    tag = int.from_bytes(digest[:8], "little")
    return backend._comm.create_group(ranks, tag, options.timeout.total_seconds())


def _renew_locks() -> None:
    """In a forked child: a thread that it has not may hold them, and its calls have to fail."""
    for backend in _backends:
        backend._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


class Calls(c10d.Backend):
    """One communicator, for one process group."""

    supports_splitting = property(lambda _: True)
    supports_coalescing = property(lambda _: False)
    supports_shrinking = property(lambda _: False)
    supports_reconfigure = property(lambda _: False)
    supports_window = property(lambda _: False)
    supports_abort_hooks = property(lambda _: False)
    _supports_time_estimate = property(lambda _: False)

    def __init__(self, comm: _core.Communicator, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._started = comm.nonblocking
        self._monitor = comm.monitor()
        self._scratch = Scratch()
        # Autograd's threads call too.
        self._lock = threading.Lock()
        # The first message of a communicator needs it, the others do not.
        comm.try_probe()
        # The first question about groups waits for calls that are under way, later ones do not.
        comm.can_create_group([comm.rank])
        self._timeout = timeout.total_seconds()
        self._sequence = self._barriers = self._lists = 0
        self._coalescing: list[Work] | None = None
        self._uses_device = False
        self._is_one_host = len(set(comm.hosts)) == 1
        _backends.add(self)

    @classmethod
    def of_options(cls, options: Any, _: object = None) -> Calls:
        """As PyTorch makes a backend."""
        parent = getattr(options, "split_from", None)
        if isinstance(parent, Calls):
            return parent._split(options.global_ranks_in_group, options.timeout)
        if comm := _create_group(options):
            return cls(comm, options.timeout)
        store, rank, size = options.store, options.group_rank, options.group_size
        with shared_id(store, rank, size, options.timeout) as unique_id:
            seconds = options.timeout.total_seconds()
            comm = _core.init(rank=rank, size=size, unique_id=unique_id, timeout=seconds)
        return cls(comm, options.timeout)

    def getBackendName(self) -> str:  # noqa: N802
        """The name in `init_process_group`."""
        return _flight.BACKEND

    @property
    def options(self) -> c10d.Backend.Options:
        """What PyTorch makes the options of a group of the same kind from."""
        return c10d.Backend.Options(_flight.BACKEND, timedelta(seconds=self._timeout))

    def split(self, _: dist.Store, ranks: list[int], options: c10d.Backend.Options) -> Calls | None:
        """The group of these ranks, in this order; None for a rank that is not among them. All
        ranks of this group make this call."""
        return self._split(ranks, options._timeout)

    def perform_nocolor_split(self, _: torch.device) -> None:
        """A rank's part in a `split` of other ranks."""
        self._split([], _UNSET)

    def _split(self, ranks: list[int], timeout: timedelta) -> Any:
        is_in = self.rank() in ranks
        color, key = (min(ranks), ranks.index(self.rank())) if is_in else (None, 0)
        with self._lock:
            self._sequence += 1
            comm = self._comm.split(color, key)
        if comm is None:
            return None
        comm.timeout = timeout.total_seconds()
        return type(self)(comm, timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """The longest time that a call waits."""
        with self._lock:
            self._timeout = self._comm.timeout = timeout.total_seconds()

    def name_as(self, name: str) -> None:
        """Names the communicator, as far as it takes the name."""
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        if end := shown.encode()[-64:].decode(errors="ignore"):
            with self._lock:
                self._comm.name = end

    def abort(self) -> None:
        """Ends the calls of all ranks."""
        self._monitor.abort()

    def shutdown(self) -> None:
        """Ends this rank's part, after its started calls. A call of another thread is aborted."""
        _backends.discard(self)
        if not self._lock.acquire(blocking=False):
            self._monitor.abort()
            self._lock.acquire()
        try:
            self._comm.close()
        finally:
            self._lock.release()

    def get_error(self) -> Any:
        """Whether the group is broken, without waiting."""
        error = self._monitor.error()
        if error is None:
            return c10d.ErrorType.SUCCESS
        of_time = isinstance(error, builtins.TimeoutError)
        return c10d.ErrorType.TIMEOUT if of_time else c10d.ErrorType.COMM_ERROR

    def supports_tensor_alloc(self, device: torch.device | int) -> bool:
        """Whether `allocate_tensor` gives memory of this device, as FSDP2 asks. PyTorch's C++ asks
        by a device's index, and can't call that method."""
        return isinstance(device, torch.device) and device.type == "cpu"

    def allocate_tensor(
        self, size: int | tuple[int, ...], *, dtype: torch.dtype, device: object = None
    ) -> Tensor:
        """A tensor in registered memory."""
        shape = size if isinstance(size, tuple) else (size,)
        with self._lock:
            return registered(self._comm, shape, dtype)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _call(
        self,
        name: str,
        arguments: Sequence[Any],
        tensors: Tensors,
        options: Any,
        finish: Sequence[Finish] = (),
    ) -> Work:
        """Makes or starts a call, which reads the first tensors and writes the second ones."""
        inputs, outputs = tensors

        def make(comm: _core.Communicator) -> _core.Handle[Any] | None:
            if inputs and inputs[0].is_cuda and not self._uses_device:
                comm.use_device(inputs[0].device.index)
                self._uses_device = True
            if options.asyncOp:
                handle: _core.Handle[Any] = getattr(self._started, name)(*arguments)
                return handle
            getattr(comm, name)(*arguments)
            return None

        handle = self.operation(name, inputs, options, make)
        if handle is not None:
            return self._noted(Work(outputs, [handle], finish))
        for end in finish:
            end()
        return self._noted(Work(outputs))

    def _call_all(self, calls: Sequence[Arguments]) -> Work:
        """Makes or starts calls whose tensors have all been looked at: a call that a rank refuses
        after others would leave those to the other ranks."""
        return self._all_of([self._call(*call) for call in calls])

    def operation(
        self,
        name: str,
        inputs: Sequence[Tensor],
        options: Any,
        make: Callable[[_core.Communicator], _Made],
    ) -> _Made:
        """Makes the calls of one operation: with the operation's timeout if it has one of its own,
        which started calls keep. A context manager would take as long as the shortest call."""
        if is_profiled():
            with event(name, inputs):
                return self._operation(options, make)
        return self._operation(options, make)

    def _operation(self, options: Any, make: Callable[[_core.Communicator], _Made]) -> _Made:
        timeout = options.timeout
        has_own = timeout > _UNSET
        with self._lock:
            self._sequence += 1
            try:
                if has_own:
                    self._comm.timeout = timeout.total_seconds()
                return make(self._comm)
            except Error as error:
                _flight.dump_after(error)
                raise
            finally:
                if has_own:
                    self._comm.timeout = self._timeout

    def _noted(self, work: Work) -> Work:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return note_latest(work)

    def start_coalescing(self) -> None:
        """Begins to collect works."""
        self._coalescing = []

    def end_coalescing(self) -> Work:
        """One work for those since `start_coalescing`."""
        works, self._coalescing = self._coalescing or [], None
        return self._all_of(works)

    def _all_of(self, works: Sequence[Work]) -> Work:
        return note_latest(JoinedWork(works))

    def _check_count(self, call: str, given: Sequence[Tensor]) -> None:
        if len(given) != self.size():
            raise refuse(
                call, "tensors", f"a list of {len(given)}", f"one for each of {self.size()} ranks"
            )
