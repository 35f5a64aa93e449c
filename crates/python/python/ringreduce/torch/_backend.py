"""The backend of a process group: PyTorch's calls as those of one communicator.

The names are those by which PyTorch's C++ looks methods up. Calls that nobody asked to be started
are made at once; others are started, in the order in which PyTorch makes them.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

from .. import _core
from . import _tensors as tensors
from ._barrier import monitored_barrier
from ._group import made
from ._meeting import shared_id
from ._memory import registered
from ._profile import recorded
from ._reductions import reduction, scaled, sparse_all_reduce
from ._tensors import Finish, address, apart, dense, joined, parted, refuse, rows, written
from ._work import Deadline, Work

Tensor: TypeAlias = torch.Tensor

#: C++ holds a backend, and not what Python has added to it.
_backends: set[Backend] = set()


class Backend(c10d.Backend):
    """One communicator, for one process group."""

    supports_splitting = property(lambda _: False)
    supports_coalescing = property(lambda _: False)
    supports_shrinking = property(lambda _: False)
    supports_reconfigure = property(lambda _: False)
    supports_window = property(lambda _: False)
    supports_abort_hooks = property(lambda _: False)
    _supports_time_estimate = property(lambda _: False)

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        with shared_id(store, rank, size, timeout) as unique_id:
            self._comm = _core.init(
                rank=rank, size=size, unique_id=unique_id, timeout=timeout.total_seconds()
            )
        self._started = self._comm.nonblocking
        self._monitor = self._comm.monitor()
        self._scratch = tensors.Scratch()
        # Autograd's threads call too.
        self._lock = threading.Lock()
        # The first message of a communicator needs it, the others do not.
        self._comm.try_probe()
        self._timeout = timeout.total_seconds()
        self._sequence = self._barriers = 0
        self._coalescing: list[Work] | None = None
        self._uses_device = False
        _backends.add(self)

    @classmethod
    def of_options(cls, options: Any, _: object = None) -> Backend:
        """As PyTorch makes a backend."""
        return cls(options.store, options.group_rank, options.group_size, options.timeout)

    def getBackendName(self) -> str:  # noqa: N802
        """The name in `init_process_group`."""
        return "ringreduce"

    def set_timeout(self, timeout: timedelta) -> None:
        """The longest time that a call waits."""
        with self._lock:
            self._timeout = self._comm.timeout = timeout.total_seconds()

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

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` gives memory of this device, as FSDP2 asks."""
        return device.type == "cpu"

    def allocate_tensor(
        self, size: int | tuple[int, ...], *, dtype: torch.dtype, device: object = None
    ) -> Tensor:
        """A tensor in registered memory."""
        shape = size if isinstance(size, tuple) else (size,)
        return registered(self._comm, shape, dtype)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _call(
        self,
        name: str,
        arguments: Sequence[Any],
        tensors: tuple[Sequence[Tensor], Sequence[Tensor]],
        options: Any,
        finish: Sequence[Finish] = (),
    ) -> Work:
        """Makes or starts one call."""
        return self._calls([(name, arguments)], tensors, options.asyncOp, finish)

    def _calls(
        self,
        calls: Sequence[tuple[str, Sequence[Any]]],
        tensors: tuple[Sequence[Tensor], Sequence[Tensor]],
        starts: bool,
        finish: Sequence[Finish] = (),
    ) -> Work:
        """Makes or starts calls, which read the first tensors and write the second ones."""
        inputs, outputs = tensors
        with recorded(calls[0][0].removesuffix("_v"), inputs), self._lock:
            self._sequence += 1
            if inputs and inputs[0].is_cuda and not self._uses_device:
                self._comm.use_device(inputs[0].device.index)
                self._uses_device = True
            if starts:
                handles = [getattr(self._started, name)(*args) for name, args in calls]
                return self._made(Work(outputs, handles, finish))
            for name, args in calls:
                getattr(self._comm, name)(*args)
        for end in finish:
            end()
        return self._made(Work(outputs))

    def _made(self, work: Work) -> Work:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return made(work)

    def start_coalescing(self) -> None:
        """Begins to collect works."""
        self._coalescing = []

    def end_coalescing(self) -> Work:
        """One work for those since `start_coalescing`."""
        works, self._coalescing = self._coalescing or [], None
        return self._all_of(works)

    def allreduce(self, given: list[Tensor], opts: Any) -> Work:
        """Reduces a tensor of each rank, in place."""
        return self.allreduce_coalesced(given, opts)

    def allreduce_coalesced(self, given: list[Tensor], opts: Any) -> Work:
        """As `allreduce`, of several tensors."""
        name, calls, finish = "all_reduce", [], []
        for tensor in given:
            if tensor.layout is torch.sparse_coo:
                return sparse_all_reduce(self, tensor, opts)
            there, back = written(name, tensor)
            op, mine = reduction(name, opts.reduceOp, there), scaled(opts.reduceOp, there)
            pair = (address(name, mine), None if mine is there else address(name, there))
            calls.append((name, (*pair, op)))
            finish += back
        return self._calls(calls, (given, given), opts.asyncOp, finish)

    def allreduce_sparse(self, given: list[Tensor], opts: Any) -> Work:
        """As `allreduce`, of a sparse tensor."""
        return sparse_all_reduce(self, given[0], opts)

    def broadcast(self, given: list[Tensor], opts: Any) -> Work:
        """Copies the root's tensor to all."""
        there, back = written("broadcast", given[opts.rootTensor])
        arguments = (address("broadcast", there), opts.rootRank)
        return self._call("broadcast", arguments, (given, given), opts, back)

    def reduce(self, given: list[Tensor], opts: Any) -> Work:
        """Reduces to the root's tensor."""
        there, back = written("reduce", given[opts.rootTensor])
        op, mine = reduction("reduce", opts.reduceOp, there), scaled(opts.reduceOp, there)
        in_place = mine is there or self.rank() != opts.rootRank
        recv = None if in_place else address("reduce", there)
        arguments = (address("reduce", mine), recv, op, opts.rootRank)
        return self._call("reduce", arguments, (given, given), opts, back)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Gathers a tensor of each rank into a list at all ranks."""
        return self._all_gather(outputs[0], inputs[0], opts)

    def _all_gather(self, outputs: list[Tensor], given: Tensor, opts: Any) -> Work:
        name = "all_gather"
        self._check_count(name, outputs)
        counts = [tensor.numel() for tensor in outputs]
        recv, finish = parted(name, outputs, self._scratch)
        send = address(name, apart(name, given, outputs))
        if len(set(counts)) == 1:
            return self._call(name, (send, recv), ([given], outputs), opts, finish)
        arguments = (send, recv, counts)
        return self._call("all_gather_v", arguments, ([given], outputs), opts, finish)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `allgather`, of several tensors: lists by rank of lists by tensor."""
        each = [
            self._all_gather([of_rank[at] for of_rank in outputs], given, opts)
            for at, given in enumerate(inputs)
        ]
        return self._all_of(each)

    def _all_of(self, works: Sequence[Work]) -> Work:
        return made(
            Work(
                [tensor for work in works for tensor in work.result()],
                [handle for work in works for handle in work.handles],
                [work.wait for work in works],
            )
        )

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any) -> Work:
        """Gathers into one tensor."""
        there, back = written("all_gather", output)
        mine = there.data_ptr() + self.rank() * given.nbytes
        is_part = given.nbytes * self.size() == there.nbytes and given.dtype == there.dtype
        if is_part and given.data_ptr() == mine and given.is_contiguous():
            arguments: tuple[Any, ...] = (address("all_gather", there),)
        else:
            send = address("all_gather", apart("all_gather", given, [there]))
            arguments = (send, address("all_gather", there))
        return self._call("all_gather", arguments, ([given], [output]), opts, back)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `all_gather_single`, of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return self._all_of([self.all_gather_single(*pair, opts) for pair in pairs])

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Gathers into a list of the root."""
        to = outputs[0] if outputs else []
        send = address("gather", apart("gather", inputs[0], to))
        recv: Any = None
        finish: list[Finish] = []
        if self.rank() == opts.rootRank:
            self._check_count("gather", to)
            recv, finish = parted("gather", to, self._scratch)
        return self._call("gather", (send, recv, opts.rootRank), (inputs, to), opts, finish)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Copies the tensors of a list of the root to the ranks."""
        send: Any = None
        finish: list[Finish] = []
        if self.rank() == opts.rootRank:
            self._check_count("scatter", inputs[0])
            send, finish = joined("scatter", inputs[0], self._scratch, outputs)
        there, back = written("scatter", outputs[0])
        arguments = (send, address("scatter", there), opts.rootRank)
        return self._call("scatter", arguments, (outputs, outputs), opts, [*back, *finish])

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Reduces lists, of which each rank gets the result of one tensor."""
        name, given = "reduce_scatter", inputs[0]
        self._check_count(name, given)
        counts = [tensor.numel() for tensor in given]
        op = reduction(name, opts.reduceOp, given[0])
        terms = [scaled(opts.reduceOp, tensor) for tensor in given]
        send, finish = joined(name, terms, self._scratch, outputs)
        there, back = written(name, outputs[0])
        recv = address(name, there)
        back += finish
        if len(set(counts)) == 1:
            return self._call(name, (send, recv, op), (given, outputs), opts, back)
        arguments = (send, recv, counts, op)
        return self._call("reduce_scatter_v", arguments, (given, outputs), opts, back)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any) -> Work:
        """Reduces one tensor, of which each rank gets a part."""
        there, back = written("reduce_scatter", output)
        op = reduction("reduce_scatter", opts.reduceOp, given)
        given = apart("reduce_scatter", scaled(opts.reduceOp, given), [there])
        send, recv = address("reduce_scatter", given), address("reduce_scatter", there)
        return self._call("reduce_scatter", (send, recv, op), ([given], [output]), opts, back)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `reduce_scatter_single`, of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return self._all_of([self.reduce_scatter_single(*pair, opts) for pair in pairs])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Sends a tensor to each rank and receives one from each."""
        name = "all_to_all"
        self._check_count(name, inputs)
        self._check_count(name, outputs)
        recv, finish = parted(name, outputs, self._scratch)
        send, given_back = joined(name, inputs, self._scratch, outputs)
        counts = [[tensor.numel() for tensor in part] for part in (inputs, outputs)]
        arguments = (send, counts[0], recv, counts[1])
        return self._call("all_to_all_v", arguments, (inputs, outputs), opts, finish + given_back)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any,
    ) -> Work:
        """Sends a part of a tensor to each rank and receives a part from each."""
        name = "all_to_all"
        there, back = written(name, output)
        send, recv = address(name, apart(name, given, [there])), address(name, there)
        if not output_sizes and not input_sizes:
            for which, tensor in (("input", given), ("output", output)):
                if tensor.shape[0] % self.size() if tensor.dim() else True:
                    wants = f"a multiple of {self.size()}"
                    raise refuse(name, which, f"of shape {list(tensor.shape)}", wants)
            return self._call(name, (send, recv), ([given], [output]), opts, back)
        counts = [
            rows(input_sizes, given, self.size()),
            rows(output_sizes, output, self.size()),
        ]
        arguments = (send, counts[0], recv, counts[1])
        return self._call("all_to_all_v", arguments, ([given], [output]), opts, back)

    def barrier(self, opts: Any) -> Work:
        """Waits for all ranks."""
        if opts.asyncOp or opts.timeout <= timedelta(0):
            return self._call("barrier", (), ([], []), opts)
        with self._lock:
            self._sequence += 1
            self._comm.timeout = opts.timeout.total_seconds()
            try:
                self._comm.barrier()
            finally:
                self._comm.timeout = self._timeout
        return self._made(Work([]))

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """As `barrier`, where rank 0 names the ranks that are missing."""
        self._sequence += 1
        self._barriers += 1
        timeout = opts.timeout.total_seconds()
        monitored_barrier(self._comm, self._barriers, timeout, wait_all_ranks)

    def send(self, given: list[Tensor], to: int, tag: int) -> Work:
        """Sends a tensor."""
        there = address("send", dense("send", given[0]))
        return self._message(given, "send", (there, to, tag), [])

    def recv(self, given: list[Tensor], source: int | None, tag: int) -> Work:
        """Receives a tensor."""
        there, back = written("recv", given[0])
        return self._message(given, "recv", (address("recv", there), source, tag), back)

    def recv_anysource(self, given: list[Tensor], tag: int) -> Work:
        """Receives a tensor from whichever rank sends one."""
        return self.recv(given, None, tag)

    def _message(
        self, given: list[Tensor], name: str, arguments: Sequence[Any], finish: Sequence[Finish]
    ) -> Work:
        _, peer, tag = arguments
        if not 0 <= tag < 1 << 31:
            raise refuse(name, "tag", str(tag), "one from 0 to 2147483647")
        with recorded(name, given):
            handle = getattr(self._started, name)(*arguments)
        deadline = Deadline(self._timeout, name, self.rank(), peer)
        return self._made(Work(given, [handle], finish, deadline))

    def _check_count(self, call: str, given: Sequence[Tensor]) -> None:
        if len(given) != self.size():
            raise tensors.refuse(
                call, "tensors", f"a list of {len(given)}", f"one for each of {self.size()} ranks"
            )
