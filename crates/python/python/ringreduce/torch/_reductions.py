"""PyTorch's reductions by the library's names, and the sum of sparse tensors."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from .. import _core
from .._errors import MismatchError
from ._tensors import NAMES, address, dense, refuse
from ._work import Work

if TYPE_CHECKING:
    from ._backend import Backend

_Op = dist.ReduceOp.RedOpType
_SUM = _Op.SUM
_NAMES = {
    _Op.SUM: "sum",
    _Op.AVG: "avg",
    _Op.PRODUCT: "prod",
    _Op.MIN: "min",
    _Op.MAX: "max",
    _Op.BAND: "band",
    _Op.BOR: "bor",
    _Op.BXOR: "bxor",
    _Op.PREMUL_SUM: "sum",
}
#: A sum of booleans is whether any is true.
_OF_BOOL = {"sum": "lor", "prod": "land"}


def addend(call: str, asked: Any, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """The name of an operation on tensors of this type, and what a rank adds: the tensor, or a
    multiple of it if the operation asks for that."""
    # To look up PyTorch's object of an operation takes microseconds, and most are sums.
    if asked == _SUM and tensor.dtype is torch.float32:
        return "sum", tensor
    op = getattr(asked, "op", asked)
    name = _NAMES.get(op)
    if name is None:
        raise refuse(call, "op", str(op), f"one of {', '.join(_NAMES.values())}")
    if tensor.dtype not in NAMES:
        raise refuse(call, "tensor", f"of type {tensor.dtype}", "a type that can be reduced")
    if op == _Op.PREMUL_SUM and not (tensor.is_floating_point() or tensor.is_complex()):
        raise refuse(call, "tensor", f"of type {tensor.dtype}", "floats, for PREMUL_SUM")
    if op == _Op.PREMUL_SUM:
        return name, (tensor.detach() * asked.factor).to(tensor.dtype)
    return _OF_BOOL.get(name, name) if tensor.dtype is torch.bool else name, tensor


def sparse_all_reduce(backend: Backend, tensor: torch.Tensor, opts: Any) -> Work:
    """The sum of a sparse tensor of each rank, in place."""
    name = "all_reduce"
    if addend(name, opts.reduceOp, tensor)[0] != "sum":
        raise refuse(name, "op", str(opts.reduceOp), "SUM, for a sparse tensor")
    coalesced = tensor.coalesce()
    # The entries of each rank's tensor, and what all tensors must have alike.
    facts = torch.zeros(backend.size(), 2, dtype=torch.int64)
    form = repr((tuple(tensor.shape), coalesced.sparse_dim(), tensor.dtype)).encode()
    facts[backend.rank()] = torch.tensor([coalesced._nnz(), zlib.crc32(form)])
    indices, values = coalesced.indices(), dense(name, coalesced.values())
    shape = values.shape[1:]
    lengths: list[int] = []

    def gathered(
        comm: _core.Communicator, part: torch.Tensor, width: int
    ) -> tuple[torch.Tensor, ...]:
        """The parts of all ranks, each with so many elements for each entry of a tensor."""
        each = [entries * width for entries in lengths]
        whole = torch.empty(sum(each), dtype=part.dtype)
        comm.all_gather_v(address(name, part), address(name, whole), each)
        return whole.split(each)

    def gather(comm: _core.Communicator) -> tuple[tuple[torch.Tensor, ...], ...]:
        comm.all_gather(address(name, facts))
        for rank, (entries, of_rank) in enumerate(facts.tolist()):
            if of_rank != facts[backend.rank(), 1]:
                raise MismatchError(
                    f"all_reduce: the sparse tensor of rank {backend.rank()} is of shape "
                    f"{list(tensor.shape)} and type {tensor.dtype}, that of rank {rank} is not; "
                    "all ranks' have to be alike",
                    call=name,
                    rank=backend.rank(),
                    peer=rank,
                )
            lengths.append(entries)
        by_rank = gathered(comm, indices.contiguous(), len(indices))
        return by_rank, gathered(comm, values, math.prod(shape))

    all_indices, all_values = backend.operation(name, (tensor,), opts, gather)
    terms = [
        torch.sparse_coo_tensor(
            where.view(len(indices), entries),
            what.view(entries, *shape),
            tensor.shape,
            is_coalesced=True,
            check_invariants=False,
        )
        for where, what, entries in zip(all_indices, all_values, lengths, strict=True)
    ]
    # Sums of two merge their entries, which takes less time than to sort those of all.
    while len(terms) > 1:
        terms = [sum(terms[at + 1 : at + 2], terms[at]) for at in range(0, len(terms), 2)]
    total = terms[0]
    with torch.no_grad():
        tensor.copy_(total)
    return backend._noted(Work([tensor]))
