"""DDP's buckets in registered memory, so that their reductions copy nothing between ranks.

PyTorch's reducer asks a backend for memory by `supportsTensorAlloc` and `allocateTensor`, but a
backend in Python can't answer: an argument of the second one, `TensorOptions`, has no form in
Python. The reducer is made, and its buckets are rebuilt, by calls from Python though, so the
tensors that it allocates there are replaced.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.utils import _python_dispatch as dispatch

from .._errors import Error
from ._flight import BACKEND

if TYPE_CHECKING:
    from ._backend import Backend

#: Bytes of the smallest bucket that is registered. Shorter calls gain little by it.
LEAST_BYTES = 64 << 10
#: PyTorch's switch: 1 leaves buckets in ordinary memory.
SWITCH = "DDP_DISABLE_COMM_MEM"


class _RegisteredAllocation(dispatch.TorchDispatchMode):
    """Gives each new tensor of some length that this thread allocates registered memory."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensor = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.empty.memory_format or not _is_bucket(tensor):
            return tensor
        # Without memory for it, or after the group's end, a bucket is as PyTorch makes it.
        with contextlib.suppress(Error):
            tensor = self._backend.allocate_tensor(tuple(tensor.shape), dtype=tensor.dtype)
        return tensor


def _is_bucket(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.dim() == 1 and tensor.nbytes >= LEAST_BYTES


class Reducer(c10d.Reducer):
    """PyTorch's reducer of DDP, whose buckets are in registered memory if its group is ours."""

    def __init__(
        self,
        params: Any,
        indices: Any,
        limits: Any,
        group: dist.ProcessGroup,
        *args: Any,
        **kw: Any,
    ) -> None:
        from ._backend import Backend

        found = None
        # A group without a backend for the CPU says so by an error.
        with contextlib.suppress(RuntimeError):
            found = group._get_backend(torch.device("cpu"))
        self._backend = found if isinstance(found, Backend) else None
        self._is_rebuilt = False
        with self._allocation():
            super().__init__(params, indices, limits, group, *args, **kw)

    def _rebuild_buckets(self) -> bool:
        # DDP asks in each forward pass, and the answer is yes once at most.
        if self._is_rebuilt:
            return super()._rebuild_buckets()
        with self._allocation():
            self._is_rebuilt = super()._rebuild_buckets()
        return self._is_rebuilt

    def _allocation(self) -> contextlib.AbstractContextManager[object]:
        # Other modes, such as that of fake tensors, want to see every tensor themselves.
        is_off = os.environ.get(SWITCH) == "1" or dispatch._get_current_dispatch_mode() is not None
        if self._backend is None or is_off:
            return contextlib.nullcontext()
        return _RegisteredAllocation(self._backend)


class Logger(c10d.Logger):
    """PyTorch's record of DDP, where it writes `custom` for every backend that is not its own."""

    def __init__(self, reducer: c10d.Reducer) -> None:
        super().__init__(reducer)
        self._is_ours = isinstance(reducer, Reducer) and reducer._backend is not None

    def _get_ddp_logging_data(self) -> Any:
        data = super()._get_ddp_logging_data()
        if self._is_ours:
            data.strs_map = {**data.strs_map, "backend_name": BACKEND}
        return data


def install() -> None:
    """Has DDP make this reducer and this record."""
    dist.Reducer, dist.Logger = Reducer, Logger
