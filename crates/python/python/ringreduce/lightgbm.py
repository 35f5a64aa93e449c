"""LightGBM's distributed training over a communicator.

    with ringreduce.lightgbm.network(comm):
        booster = lightgbm.train({"tree_learner": "data", "num_machines": comm.size, ...}, data)

LightGBM asks the network for two functions: a reduce-scatter by a function of its own, and an
all-gather. Their blocks have any lengths.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightgbm.basic as lgb
import numpy as np

from . import _core
from ._errors import ArgumentError

_Int = ctypes.c_int32
_Bytes = ctypes.c_void_p
_Ints = ctypes.POINTER(_Int)
_Reduce = ctypes.CFUNCTYPE(None, _Bytes, _Bytes, ctypes.c_int, _Int)
_Blocks = (_Ints, _Ints, ctypes.c_int)
_ReduceScatter = ctypes.CFUNCTYPE(
    None, _Bytes, _Int, ctypes.c_int, *_Blocks, _Bytes, _Int, ctypes.POINTER(_Reduce)
)
_AllGather = ctypes.CFUNCTYPE(None, _Bytes, _Int, *_Blocks, _Bytes, _Int)

#: LightGBM has one network for each thread.
_thread = threading.local()

_Array = np.ndarray[Any, np.dtype[np.uint8]]


def _view(address: int | None, length: int) -> _Array:
    """Memory of LightGBM's as bytes."""
    if not address or not length:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


class _Functions:
    """The two functions. What they raise can't pass LightGBM, so the first exception is kept, and
    LightGBM goes on as if all ranks had this rank's data: with none at all it would crash."""

    def __init__(self, comm: _core.Communicator) -> None:
        self.comm = comm
        self.failure: BaseException | None = None
        self.reduce_scatter = _ReduceScatter(self._guarded(self._reduce_scatter, self._own_part))
        self.all_gather = _AllGather(self._guarded(self._all_gather, self._own_copies))

    def _guarded(
        self, work: Callable[..., None], alone: Callable[..., None]
    ) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            try:
                if self.failure is None:
                    return work(*arguments)
            except BaseException as failure:
                self.failure = failure
                # The other ranks would wait for this one.
                self.comm.monitor().abort()
            return alone(*arguments)

        return call

    def _reduce_scatter(
        self,
        given: int,
        size: int,
        type_size: int,
        starts: Any,
        lengths: Any,
        blocks: int,
        output: int,
        output_size: int,
        reducer: Any,
    ) -> None:
        send = _view(given, size)
        counts = [lengths[at] for at in range(blocks)]
        if [starts[at] for at in range(blocks)] != [sum(counts[:at]) for at in range(blocks)]:
            raise ValueError("LightGBM's blocks are not one after the other")
        mine = counts[self.comm.rank]
        parts = np.empty(mine * blocks, np.uint8)
        self.comm.all_to_all_v(send[: sum(counts)], counts, parts, [mine] * blocks)
        to = _view(output, output_size)
        # All ranks' parts in their order, so that the result does not depend on who comes first.
        to[:mine] = parts[:mine]
        for part in range(1, blocks):
            reducer[0](parts[part * mine :].ctypes.data, output, type_size, mine)

    def _own_part(
        self, given: int, size: int, _: int, starts: Any, lengths: Any, __: int, *to: Any
    ) -> None:
        start, length = starts[self.comm.rank], lengths[self.comm.rank]
        _view(to[0], to[1])[:length] = _view(given, size)[start : start + length]

    def _own_copies(
        self, given: int, size: int, starts: Any, lengths: Any, blocks: int, *to: Any
    ) -> None:
        mine, gathered = _view(given, size), _view(*to)
        for at in range(blocks):
            length = min(size, lengths[at])
            gathered[starts[at] : starts[at] + length] = mine[:length]

    def _all_gather(
        self,
        given: int,
        size: int,
        starts: Any,
        lengths: Any,
        blocks: int,
        output: int,
        output_size: int,
    ) -> None:
        counts = [lengths[at] for at in range(blocks)]
        if [starts[at] for at in range(blocks)] != [sum(counts[:at]) for at in range(blocks)]:
            raise ValueError("LightGBM's blocks are not one after the other")
        to = _view(output, output_size)[: sum(counts)]
        self.comm.all_gather_v(_view(given, size).copy(), to, counts)


@contextmanager
def network(comm: _core.Communicator) -> Iterator[None]:
    """Has LightGBM train over the communicator, on the thread that is inside of the context.

    A lost rank ends the training with the library's error, when LightGBM comes to an end.
    """
    if not isinstance(comm, _core.Communicator):
        message = f"network: comm is of type {type(comm).__name__}, expected a Communicator"
        raise ArgumentError(message, call="network", argument="comm")
    if getattr(_thread, "is_inside", False):
        message = "network: comm is the second one of this thread, expected one context at a time"
        raise ArgumentError(message, call="network", argument="comm")
    # A communicator that is closed or broken says so here, before LightGBM depends on it.
    comm.barrier()
    functions = _Functions(comm)
    lgb._safe_call(
        lgb._LIB.LGBM_NetworkInitWithFunctions(
            ctypes.c_int(comm.size),
            ctypes.c_int(comm.rank),
            ctypes.cast(functions.reduce_scatter, ctypes.c_void_p),
            ctypes.cast(functions.all_gather, ctypes.c_void_p),
        )
    )
    _thread.is_inside = True
    try:
        yield
    except lgb.LightGBMError as error:
        if functions.failure is None:
            raise
        raise functions.failure from error
    finally:
        _thread.is_inside = False
        lgb._LIB.LGBM_NetworkFree()
    if functions.failure is not None:
        raise functions.failure
