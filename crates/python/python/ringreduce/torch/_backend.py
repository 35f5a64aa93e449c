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
from ._reductions import sparse_all_reduce, term
from ._tensors import Finish, address, apart, dense, refuse, rows, written
from ._work import Work


class Backend(ListOperations):
    """All operations of a process group."""

    def allreduce(self, given: list[Tensor], opts: Any) -> Work:
        """Reduces a tensor of each rank, in place."""
        if given[0].layout is torch.sparse_coo:
            return sparse_all_reduce(self, given[0], opts)
        return self._call(*self._all_reduce(given, opts))

    def _all_reduce(self, given: list[Tensor], opts: Any) -> Arguments:
        name = "all_reduce"
        there, back = written(name, given[0])
        op, mine = term(name, opts.reduceOp, there)
        recv = None if mine is there else address(name, there)
        return name, (address(name, mine), recv, op), (given, given), opts, back

    def allreduce_coalesced(self, given: list[Tensor], opts: Any) -> Work:
        """As `allreduce`, of several tensors."""
        return self._call_all([self._all_reduce([tensor], opts) for tensor in given])

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
        op, mine = term("reduce", opts.reduceOp, there)
        in_place = mine is there or self.rank() != opts.rootRank
        recv = None if in_place else address("reduce", there)
        arguments = (address("reduce", mine), recv, op, opts.rootRank)
        return self._call("reduce", arguments, (given, given), opts, back)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any) -> Work:
        """Gathers into one tensor."""
        return self._call(*self._all_gather_single(output, given, opts))

    def _all_gather_single(self, output: Tensor, given: Tensor, opts: Any) -> Arguments:
        there, back = written("all_gather", output)
        mine = there.data_ptr() + self.rank() * given.nbytes
        is_part = given.nbytes * self.size() == there.nbytes and given.dtype == there.dtype
        if is_part and given.data_ptr() == mine and given.is_contiguous():
            arguments: tuple[Any, ...] = (address("all_gather", there),)
        else:
            send = address("all_gather", apart("all_gather", given, [there]))
            arguments = (send, address("all_gather", there))
        return "all_gather", arguments, ([given], [output]), opts, back

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `all_gather_single`, of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return self._call_all([self._all_gather_single(*pair, opts) for pair in pairs])

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any) -> Work:
        """Reduces one tensor, of which each rank gets a part."""
        return self._call(*self._reduce_scatter_single(output, given, opts))

    def _reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any) -> Arguments:
        there, back = written("reduce_scatter", output)
        op, mine = term("reduce_scatter", opts.reduceOp, given)
        send = address("reduce_scatter", apart("reduce_scatter", mine, [there]))
        recv = address("reduce_scatter", there)
        return "reduce_scatter", (send, recv, op), ([given], [output]), opts, back

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `reduce_scatter_single`, of several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return self._call_all([self._reduce_scatter_single(*pair, opts) for pair in pairs])

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
        counts = [
            rows("input", input_sizes, given, self.size()),
            rows("output", output_sizes, output, self.size()),
        ]
        if not output_sizes and not input_sizes:
            return self._call(name, (send, recv), ([given], [output]), opts, back)
        arguments = (send, counts[0], recv, counts[1])
        return self._call("all_to_all_v", arguments, ([given], [output]), opts, back)

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
