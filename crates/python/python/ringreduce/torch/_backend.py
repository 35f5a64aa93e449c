"""The backend of a process group: PyTorch's calls as those of one communicator.

The names are those by which PyTorch's C++ looks methods up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._errors import Error
from . import _flight
from ._barrier import monitored_barrier
from ._calls import Arguments, Tensor
from ._lists import ListOperations
from ._messages import Deadline
from ._profile import recorded
from ._reductions import addend, sparse_all_reduce
from ._tensors import (
    Finish,
    address,
    dense,
    input_buffer,
    is_plain,
    only,
    output_buffer,
    refuse,
    row_counts,
)
from ._work import Work

_EACH = "it once for each"


class Backend(ListOperations):
    """All operations of a process group."""

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduces a tensor of each rank, in place."""
        tensor = only("all_reduce", "tensors", tensors, "allreduce_coalesced")
        if tensor.layout is torch.sparse_coo:
            return sparse_all_reduce(self, tensor, opts)
        return self._call(*self._all_reduce(tensor, opts))

    def _all_reduce(self, tensor: Tensor, opts: Any) -> Arguments:
        name, tensors = "all_reduce", [tensor]
        buffer, finish = output_buffer(name, tensor)
        op, operand = addend(name, opts.reduceOp, buffer)
        recv = None if operand is buffer else address(name, buffer)
        return name, (address(name, operand), recv, op), (tensors, tensors), opts, finish

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        """As `allreduce`, of several tensors."""
        return self._call_all([self._all_reduce(tensor, opts) for tensor in tensors])

    def allreduce_sparse(self, tensors: list[Tensor], opts: Any) -> Work:
        """As `allreduce`, of a sparse tensor."""
        return sparse_all_reduce(self, only("all_reduce", "tensors", tensors, _EACH), opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        """Copies the root's tensor to all."""
        buffer, finish = output_buffer("broadcast", only("broadcast", "tensors", tensors, _EACH))
        arguments = (address("broadcast", buffer), opts.rootRank)
        return self._call("broadcast", arguments, (tensors, tensors), opts, finish)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduces to the root's tensor."""
        buffer, finish = output_buffer("reduce", only("reduce", "tensors", tensors, _EACH))
        op, operand = addend("reduce", opts.reduceOp, buffer)
        in_place = operand is buffer or self.rank() != opts.rootRank
        recv = None if in_place else address("reduce", buffer)
        arguments = (address("reduce", operand), recv, op, opts.rootRank)
        return self._call("reduce", arguments, (tensors, tensors), opts, finish)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any) -> Work:
        """Gathers into one tensor."""
        return self._call(*self._all_gather_single(output, source, opts))

    def _all_gather_single(self, output: Tensor, source: Tensor, opts: Any) -> Arguments:
        buffer, finish = output_buffer("all_gather", output)
        own_start = buffer.data_ptr() + self.rank() * source.nbytes
        is_part = source.nbytes * self.size() == buffer.nbytes and source.dtype == buffer.dtype
        if is_part and source.data_ptr() == own_start and is_plain(source):
            arguments: tuple[Any, ...] = (address("all_gather", buffer),)
        else:
            send = address("all_gather", input_buffer("all_gather", source, [buffer]))
            arguments = (send, address("all_gather", buffer))
        return "all_gather", arguments, ([source], [output]), opts, finish

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `all_gather_single`, of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return self._call_all([self._all_gather_single(*pair, opts) for pair in pairs])

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any) -> Work:
        """Reduces one tensor, of which each rank gets a part."""
        return self._call(*self._reduce_scatter_single(output, source, opts))

    def _reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any) -> Arguments:
        buffer, finish = output_buffer("reduce_scatter", output)
        op, operand = addend("reduce_scatter", opts.reduceOp, source)
        send = address("reduce_scatter", input_buffer("reduce_scatter", operand, [buffer]))
        recv = address("reduce_scatter", buffer)
        return "reduce_scatter", (send, recv, op), ([source], [output]), opts, finish

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `reduce_scatter_single`, of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return self._call_all([self._reduce_scatter_single(*pair, opts) for pair in pairs])

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any,
    ) -> Work:
        """Sends a part of a tensor to each rank and receives a part from each."""
        name = "all_to_all"
        buffer, finish = output_buffer(name, output)
        send, recv = address(name, input_buffer(name, source, [buffer])), address(name, buffer)
        counts = [
            row_counts("input", input_sizes, source, self.size()),
            row_counts("output", output_sizes, output, self.size()),
        ]
        if not output_sizes and not input_sizes:
            return self._call(name, (send, recv), ([source], [output]), opts, finish)
        arguments = (send, counts[0], recv, counts[1])
        return self._call("all_to_all_v", arguments, ([source], [output]), opts, finish)

    def barrier(self, opts: Any) -> Work:
        """Waits for all ranks."""
        return self._call("barrier", (), ([], []), opts)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """As `barrier`, where rank 0 names the ranks that are missing."""
        self._sequence += 1
        self._barriers += 1
        timeout = opts.timeout.total_seconds()
        try:
            monitored_barrier(self._comm, self._barriers, timeout, wait_all_ranks)
        except Error as error:
            _flight.dump_after(error)
            raise

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Work:
        """Sends a tensor."""
        buffer = address("send", dense("send", only("send", "tensors", tensors, _EACH)))
        return self._message(tensors, "send", (buffer, peer, tag), [])

    def recv(self, tensors: list[Tensor], peer: int | None, tag: int) -> Work:
        """Receives a tensor."""
        buffer, finish = output_buffer("recv", only("recv", "tensors", tensors, _EACH))
        return self._message(tensors, "recv", (address("recv", buffer), peer, tag), finish)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Receives a tensor from whichever rank sends one."""
        return self.recv(tensors, None, tag)

    def _message(
        self, tensors: list[Tensor], name: str, arguments: Sequence[Any], finish: Sequence[Finish]
    ) -> Work:
        _, peer, tag = arguments
        if not 0 <= tag < 1 << 31:
            raise refuse(name, "tag", str(tag), "one from 0 to 2147483647")
        with recorded(name, tensors):
            handle = getattr(self._started, name)(*arguments)
        deadline = Deadline(self._timeout, name, self.rank(), peer)
        return self._noted(Work(tensors, [handle], finish, deadline))
