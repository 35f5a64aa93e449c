"""The operations on lists of tensors, of which each belongs to one rank.

A list is as good as one tensor if its tensors lie one after the other in memory; otherwise a call
on it needs copies. So longer tensors of ranks of one host go by messages, straight from and to
where they are. The choice depends on what all ranks know alike: hosts and lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from .. import _core
from .._errors import MismatchError
from ._calls import Calls, Tensor
from ._messages import Deadline, Tags
from ._reductions import addend
from ._tensors import (
    Finish,
    address,
    check_apart,
    copy_to,
    input_buffer,
    is_same,
    joined_inputs,
    joined_outputs,
    only,
    output_buffer,
    refuse,
)
from ._work import ListWork, Work, cancel

#: Bytes of a rank's tensor from which on it goes by a message.
LEAST_BYTES = 512 << 10
#: The calls by messages. Ranks tell each other the index of theirs, its root, how many such calls
#: they have made before, and this mark.
_NAMES = ["all_gather", "gather", "scatter"]
_AGREEMENT = 0x6C69737473

#: A rank, and the tensor for it or of it.
Messages: TypeAlias = Sequence[tuple[int, Tensor]]


class ListOperations(Calls):
    """The lists of PyTorch's older operations."""

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Gathers a tensor of each rank into a list at all ranks."""
        name = "all_gather"
        source = only(name, "inputs", inputs, "allgather_coalesced")
        return self._all_gather(only(name, "outputs", outputs, "allgather_coalesced"), source, opts)

    def _all_gather(self, outputs: list[Tensor], source: Tensor, opts: Any) -> Work:
        name = "all_gather"
        self._check_count(name, outputs)
        if self._goes_by_messages(source, sum(it.nbytes for it in outputs) // self.size()):
            own_output = outputs[self.rank()]
            others = [rank for rank in range(self.size()) if rank != self.rank()]
            written_to = [outputs[rank] for rank in others]
            source = input_buffer(
                name, source, written_to if is_same(own_output, source) else outputs
            )
            sends = [(rank, source) for rank in others]
            recvs = [(rank, outputs[rank]) for rank in others]
            own = (own_output, source)
            return self._by_messages((name, 0), (sends, recvs, own), outputs, opts)
        counts = [tensor.numel() for tensor in outputs]
        recv, finish = joined_outputs(name, outputs, self._scratch)
        send = address(name, input_buffer(name, source, outputs))
        if len(set(counts)) == 1:
            return self._call(name, (send, recv), ([source], outputs), opts, finish)
        arguments = (send, recv, counts)
        return self._call("all_gather_v", arguments, ([source], outputs), opts, finish)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any
    ) -> Work:
        """As `allgather`, of several tensors: lists by rank of lists by tensor."""
        if any(len(of_rank) != len(inputs) for of_rank in outputs):
            wants = f"{len(inputs)} tensors of each rank"
            raise refuse("all_gather", "outputs", "lists of other lengths", wants)
        lists = [[of_rank[at] for of_rank in outputs] for at in range(len(inputs))]
        for gathered in lists:
            self._check_count("all_gather", gathered)
            check_apart("all_gather", gathered)
        pairs = zip(lists, inputs, strict=True)
        return self._all_of(
            [self._all_gather(gathered, source, opts) for gathered, source in pairs]
        )

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Gathers into a list of the root."""
        name, root, is_root = "gather", opts.rootRank, self.rank() == opts.rootRank
        source = only(name, "inputs", inputs, "it once for each")
        gathered = self._list_of_root(name, "outputs", outputs, root)
        if self._goes_by_messages(source, source.nbytes):
            others = [(rank, it) for rank, it in enumerate(gathered) if rank != root]
            source = input_buffer(name, source, [it for _, it in others])
            own = (gathered[root], source) if is_root else None
            sends = [] if is_root else [(root, source)]
            return self._by_messages((name, root), (sends, others, own), gathered, opts)
        send = address(name, input_buffer(name, source, gathered))
        recv: Any = None
        finish: list[Finish] = []
        if is_root:
            recv, finish = joined_outputs(name, gathered, self._scratch)
        return self._call(name, (send, recv, root), (inputs, gathered), opts, finish)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Copies the tensors of a list of the root to the ranks."""
        name, root, is_root = "scatter", opts.rootRank, self.rank() == opts.rootRank
        output = only(name, "outputs", outputs, "it once for each")
        given = self._list_of_root(name, "inputs", inputs, root)
        if self._goes_by_messages(output, output.nbytes):
            parts = list(enumerate(given))
            own = (output, given[root]) if is_root else None
            sends = [(rank, input_buffer(name, it, outputs)) for rank, it in parts if rank != root]
            recvs = [] if is_root else [(root, output)]
            return self._by_messages((name, root), (sends, recvs, own), outputs, opts)
        send: Any = None
        finish: list[Finish] = []
        if is_root:
            send, finish = joined_inputs(name, given, self._scratch, outputs)
        buffer, copies = output_buffer(name, output)
        arguments = (send, address(name, buffer), root)
        return self._call(name, arguments, (outputs, outputs), opts, [*copies, *finish])

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Reduces lists, of which each rank gets the result of one tensor."""
        name = "reduce_scatter"
        output = only(name, "outputs", outputs, "it once for each")
        parts = only(name, "inputs", inputs, "it once for each")
        self._check_count(name, parts)
        counts = [tensor.numel() for tensor in parts]
        terms = [addend(name, opts.reduceOp, tensor) for tensor in parts]
        op = terms[0][0]
        send, finish = joined_inputs(
            name, [operand for _, operand in terms], self._scratch, outputs
        )
        buffer, copies = output_buffer(name, output)
        recv = address(name, buffer)
        copies += finish
        if len(set(counts)) == 1:
            return self._call(name, (send, recv, op), (parts, outputs), opts, copies)
        arguments = (send, recv, counts, op)
        return self._call("reduce_scatter_v", arguments, (parts, outputs), opts, copies)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Sends a tensor to each rank and receives one from each."""
        name = "all_to_all"
        self._check_count(name, inputs)
        self._check_count(name, outputs)
        recv, finish = joined_outputs(name, outputs, self._scratch)
        send, given_back = joined_inputs(name, inputs, self._scratch, outputs)
        counts = [[tensor.numel() for tensor in part] for part in (inputs, outputs)]
        arguments = (send, counts[0], recv, counts[1])
        return self._call("all_to_all_v", arguments, (inputs, outputs), opts, finish + given_back)

    def _list_of_root(
        self, call: str, argument: str, given: list[list[Tensor]], root: int
    ) -> list[Tensor]:
        """The list that the root alone gives, of a tensor for each rank."""
        if self.rank() == root:
            found = only(call, argument, given, "it once for each")
            self._check_count(call, found)
            return found
        if any(given):
            raise refuse(call, argument, "a list", f"none at a rank that is not the root, {root}")
        return []

    def _goes_by_messages(self, tensor: Tensor, length: int) -> bool:
        return length >= LEAST_BYTES and self._is_one_host and tensor.is_cpu and self.size() > 1

    def _by_messages(
        self,
        call: tuple[str, int],
        parts: tuple[Messages, Messages, tuple[Tensor, Tensor] | None],
        outputs: Sequence[Tensor],
        opts: Any,
    ) -> Work:
        """Makes or starts a call of a name and a root by sends, receives, and the copy of what this
        rank keeps, from the second tensor to the first one."""
        (name, root), (sends, recvs, own) = call, parts
        check_apart(name, outputs)
        if own is not None and (own[0].numel(), own[0].dtype) != (own[1].numel(), own[1].dtype):
            given, wants = (f"{it.numel()} elements of {it.dtype}" for it in own)
            raise refuse(name, "tensors", f"a list where this rank's has {given}", wants)
        finish: list[Finish] = []
        if own is not None:
            buffer, finish = output_buffer(name, own[0])
            own = (buffer, own[1])
        from_ranks = []
        for rank, tensor in recvs:
            buffer, copies = output_buffer(name, tensor)
            finish += copies
            from_ranks.append((address(name, buffer), rank))
        to_ranks = [(address(name, tensor), rank) for rank, tensor in sends]
        # A rank that makes another call must not wait for messages that nobody sends. Four numbers
        # of each rank match no other call that gathers a number of each, as those of objects do.
        calls = torch.zeros(self.size(), 4, dtype=torch.int64)
        agreement_row = [_NAMES.index(name), root, self._lists, _AGREEMENT]
        calls[self.rank()] = torch.tensor(agreement_row)

        def start(comm: _core.Communicator) -> ListWork:
            agreement = None
            if opts.asyncOp:
                handle = self._started.all_gather(address(name, calls))
                agreement = (handle, lambda: self._check_same(call, calls))
            else:
                comm.all_gather(address(name, calls))
            # The ranks that have asked each other have made as many of these calls.
            tag = Tags.LISTS + self._lists % Tags.LENGTH
            self._lists += 1
            if agreement is None:
                self._check_same(call, calls)
            handles: list[_core.Handle[Any]] = []
            try:
                for buffer, rank in from_ranks:
                    handles.append(self._started.recv(buffer, rank, tag))
                for buffer, rank in to_ranks:
                    handles.append(self._started.send(buffer, rank, tag))
            except BaseException:
                cancel(handles)
                raise
            deadline = Deadline(comm.timeout, name, self.rank())
            return ListWork(outputs, handles, finish, deadline, agreement)

        work = self.operation(name, [it for _, it in sends], opts, start)
        if own is not None and not is_same(*own):
            copy_to(own[0], input_buffer(name, own[1], own[:1]).reshape(own[0].shape))
        if not opts.asyncOp:
            try:
                work.wait()
            except BaseException:
                # Of an interrupt too.
                work.cancel()
                raise
        return self._noted(work)

    def _check_same(self, call: tuple[str, int], calls: Tensor) -> None:
        codes = calls.tolist()
        for rank, code in enumerate(codes):
            if code != codes[self.rank()]:
                index, root, count, mark = code
                is_list = mark == _AGREEMENT and 0 <= index < len(_NAMES)
                other = f"{_NAMES[index]} with root {root}" if is_list else "another one"
                if code[:2] == codes[self.rank()][:2]:
                    other = f"it after {count} such calls, and not {codes[self.rank()][2]}"
                raise MismatchError(
                    f"{call[0]}: rank {self.rank()} calls it with root {call[1]}, but rank {rank} "
                    f"calls {other}; all ranks have to make the same calls in the same order",
                    call=call[0],
                    rank=self.rank(),
                    peer=rank,
                )
