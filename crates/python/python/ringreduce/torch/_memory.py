"""Tensors in registered memory, which the ranks of one host reduce straight from each other."""

from __future__ import annotations

import math

import torch
from torch import distributed as dist

from .. import _core
from ._tensors import refuse


def registered(
    comm: _core.Communicator, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of zeros. Its memory lives as long as it is used."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer(comm.alloc(count * size), dtype=dtype).view(shape)


def empty(
    *shape: int, dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """A tensor on the CPU, of zeros, in memory that all ranks of the group on this host map."""
    from ._backend import Backend

    group = group or dist.group.WORLD
    backend = group._get_backend(torch.device("cpu")) if group is not None else None
    if not isinstance(backend, Backend):
        raise refuse("empty", "group", f"{group}", "a group whose backend is ringreduce")
    return backend.allocate_tensor(shape, dtype=dtype or torch.get_default_dtype())
