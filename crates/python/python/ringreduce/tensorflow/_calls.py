"""Collectives of tensors: eager ones at once, those of a graph by `tf.numpy_function`.

TensorFlow carries out the functions of a graph that have effects in the order in which a program
made them, so all ranks make their calls in one order.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .. import _core
from .._errors import ArgumentError

_comm: _core.Communicator | None = None
#: TensorFlow's threads call, one at a time.
_lock = threading.Lock()


def init(comm: _core.Communicator | None = None) -> _core.Communicator:
    """Has all calls use a communicator: by default that of the environment."""
    global _comm
    with _lock:
        _comm = comm if comm is not None else _core.init()
        return _comm


def communicator() -> _core.Communicator:
    """The communicator of all calls."""
    return _comm if _comm is not None else init()


def rank() -> int:
    """This rank, from 0."""
    return communicator().rank


def size() -> int:
    """The number of ranks."""
    return communicator().size


def _array(call: str, tensor: Any) -> np.ndarray[Any, Any]:
    """The elements of a tensor, without a copy of them."""
    array = tensor._numpy() if hasattr(tensor, "_numpy") else np.asarray(tensor)
    if array.dtype == object or array.dtype.kind in "SU":
        expected = "numbers"
        message = f"{call}: tensor is of type {tensor.dtype}, expected {expected}"
        raise ArgumentError(message, call=call, argument="tensor")
    return np.ascontiguousarray(array).reshape(array.shape)


Many = Callable[..., list[np.ndarray[Any, Any]]]


def make(work: Many, tensors: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Makes a call whose results have the types of the tensors, and these shapes."""
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(it) for it in work(*tensors)]
    dtypes = [tensor.dtype for tensor in tensors]
    made = tf.numpy_function(work, tensors, dtypes)
    made = list(made) if isinstance(made, (list, tuple)) else [made]
    for result, shape in zip(made, shapes, strict=True):
        result.set_shape(shape)
    return made


def _dense(call: str, value: Any) -> Any:
    if isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        kind = type(value).__name__
        message = f"{call}: tensor is of type {kind}, expected a dense one: tf.convert_to_tensor"
        raise ArgumentError(message, call=call, argument="tensor")
    return tf.convert_to_tensor(value)


def all_reduce(tensor: Any, op: str = "sum") -> Any:
    """Reduces a tensor over all ranks. The gradient of a sum or average is the same call of it."""

    def work(given: Any) -> list[np.ndarray[Any, Any]]:
        send = _array("all_reduce", given)
        recv = np.empty_like(send)
        current = communicator()
        with _lock:
            current.all_reduce(send, recv, op)  # type: ignore[call-overload]
        return [recv]

    tensor = _dense("all_reduce", tensor)

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def call(given: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            if op not in ("sum", "avg"):
                message = f"all_reduce: op is {op!r}, expected sum or avg for a gradient"
                raise ArgumentError(message, call="all_reduce", argument="op")
            return all_reduce(upstream, op)

        return make(work, [given], [given.shape])[0], gradient

    return call(tensor)


def broadcast(tensor: Any, root: int = 0) -> Any:
    """The tensor of rank `root`, at all ranks, whose tensors have the same shape."""

    def work(given: Any) -> list[np.ndarray[Any, Any]]:
        array = np.array(_array("broadcast", given))
        current = communicator()
        with _lock:
            current.broadcast(array, root)
        return [array]

    tensor = _dense("broadcast", tensor)
    return make(work, [tensor], [tensor.shape])[0]


def all_gather(tensor: Any) -> Any:
    """The tensors of all ranks, one after the other along the first dimension, which may differ."""

    def work(given: Any) -> list[np.ndarray[Any, Any]]:
        send = _array("all_gather", given)
        current = communicator()
        with _lock:
            rows = np.zeros(current.size, np.int64)
            rows[current.rank] = send.shape[0]
            current.all_gather(rows)
            width = int(np.prod(send.shape[1:], dtype=np.int64))
            recv = np.empty((int(rows.sum()), *send.shape[1:]), send.dtype)
            current.all_gather_v(send, recv, [int(it) * width for it in rows])
        return [recv]

    tensor = _dense("all_gather", tensor)
    if tensor.shape.rank == 0:
        tensor = tf.reshape(tensor, [1])
    known = tensor.shape.rank is not None
    shape = tf.TensorShape([None, *tensor.shape[1:]] if known else None)
    return make(work, [tensor], [shape])[0]


def barrier() -> None:
    """Waits for all ranks; of no use inside of a graph."""
    current = communicator()
    with _lock:
        current.barrier()


def reduce_many(tensors: Sequence[Any], op: str) -> list[Any]:
    """Reduces many tensors as few calls: those of one type are one, in registered memory."""

    def work(*given: Any) -> list[np.ndarray[Any, Any]]:
        arrays = [_array("all_reduce", it) for it in given]
        results = list(arrays)
        current = communicator()
        with _lock:
            for dtype in sorted({array.dtype for array in arrays}, key=str):
                which = [at for at, array in enumerate(arrays) if array.dtype == dtype]
                flat = _registered(current, dtype, sum(arrays[at].size for at in which))
                parts = np.split(flat, np.cumsum([arrays[at].size for at in which])[:-1])
                for at, part in zip(which, parts, strict=True):
                    part[:] = arrays[at].reshape(-1)
                current.all_reduce(flat, op=op)  # type: ignore[call-overload]
                for at, part in zip(which, parts, strict=True):
                    results[at] = part.reshape(arrays[at].shape).copy()
        return results

    tensors = [_dense("all_reduce", tensor) for tensor in tensors]
    return make(work, tensors, [tensor.shape for tensor in tensors])


def _registered(comm: _core.Communicator, dtype: Any, count: int) -> np.ndarray[Any, Any]:
    """So many elements of registered memory, which the next call uses again."""
    of_type = _memory.setdefault(comm, {})
    if dtype not in of_type or of_type[dtype].size < count:
        of_type[dtype] = comm.empty(count, dtype)
    return of_type[dtype][:count]


#: Registered memory by type, for each communicator.
_memory: weakref.WeakKeyDictionary[_core.Communicator, dict[Any, Any]]
_memory = weakref.WeakKeyDictionary()
