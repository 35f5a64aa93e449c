"""PyTorch's reductions by the library's names, and the sum of sparse tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from ._tensors import address, refuse
from ._work import Work

if TYPE_CHECKING:
    from ._backend import Backend

_Op = dist.ReduceOp.RedOpType
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


def reduction(call: str, given: Any, tensor: torch.Tensor) -> str:
    """The name of an operation on tensors of this type."""
    op = getattr(given, "op", given)
    name = _NAMES.get(op)
    if name is None:
        raise refuse(call, "op", str(op), f"one of {', '.join(_NAMES.values())}")
    if op == _Op.PREMUL_SUM and not (tensor.is_floating_point() or tensor.is_complex()):
        raise refuse(call, "tensor", f"of type {tensor.dtype}", "floats, for PREMUL_SUM")
    return _OF_BOOL.get(name, name) if tensor.dtype is torch.bool else name


def scaled(given: Any, tensor: torch.Tensor) -> torch.Tensor:
    """What a rank adds: the tensor, or a multiple of it if the operation asks for that."""
    if getattr(given, "op", given) != _Op.PREMUL_SUM:
        return tensor
    return (tensor.detach() * given.factor).to(tensor.dtype)


def sparse_all_reduce(backend: Backend, tensor: torch.Tensor, opts: Any) -> Work:
    """The sum of a sparse tensor of each rank, in place."""
    name = "all_reduce"
    if reduction(name, opts.reduceOp, tensor) != "sum":
        raise refuse(name, "op", str(opts.reduceOp), "SUM, for a sparse tensor")
    mine = tensor.coalesce()
    size = backend.size()
    counts = torch.zeros(size, dtype=torch.int64)
    counts[backend.rank()] = mine._nnz()
    with backend._lock:
        backend._comm.all_gather(address(name, counts))
    lengths = counts.tolist()

    def gathered(part: torch.Tensor, width: int) -> torch.Tensor:
        part = part.contiguous()
        whole = torch.empty(sum(lengths), width, dtype=part.dtype)
        there = (address(name, part), address(name, whole), [n * width for n in lengths])
        with backend._lock:
            backend._comm.all_gather_v(*there)
        return whole

    indices, values = mine.indices().t(), mine.values()
    width = math.prod(values.shape[1:])
    all_indices = gathered(indices, max(indices.shape[1], 1)).t()
    all_values = gathered(values, width).view(-1, *values.shape[1:])
    total = torch.sparse_coo_tensor(all_indices, all_values, tensor.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total)
    return backend._made(Work([tensor]))
