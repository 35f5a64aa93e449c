"""Collectives of tensors, by operators of TensorFlow's, eagerly and in graphs alike.

TensorFlow carries out the operators of a `tf.function` that have effects in the order in which the
program made them, so all ranks make their calls in one order.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from .. import _core
from .._errors import ArgumentError, BrokenError

_LIBRARY = str(Path(__file__).with_name("operators.so"))
try:
    _operators = tf.load_op_library(_LIBRARY)
except tf.errors.NotFoundError as error:
    raise ImportError(
        f"ringreduce.tensorflow: {_LIBRARY} can't be loaded, which the wheel's build makes with "
        f"a C compiler for TensorFlow 2: {error.message}; install the wheel again"
    ) from error
ctypes.CDLL(_LIBRARY).ringreduce_connect(ctypes.c_void_p(_core.tensorflow_function()))

_NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
    "complex64 complex128 float8_e4m3fn float8_e5m2"
)
_TYPES = frozenset(tf.as_dtype(name) for name in _NAMES.split())

_comm: _core.Communicator | None = None
_is_fork = False


def _note_fork() -> None:
    global _is_fork
    _is_fork = True


# TensorFlow's threads are not in a fork, where its operators would wait for them.
os.register_at_fork(after_in_child=_note_fork)


def init(comm: _core.Communicator | None = None) -> _core.Communicator:
    """Has all calls use a communicator: by default that of the environment."""
    global _comm
    if comm is not None and not isinstance(comm, _core.Communicator):
        message = f"init: comm is of type {type(comm).__name__}, expected a Communicator"
        raise ArgumentError(message, call="init", argument="comm")
    used = comm if comm is not None else _core.init()
    _core.use_in_tensorflow(used)
    _comm = used
    return used


def communicator() -> _core.Communicator:
    """The communicator of all calls."""
    return _comm if _comm is not None else init()


def rank() -> int:
    """This rank, from 0."""
    return communicator().rank


def size() -> int:
    """The number of ranks."""
    return communicator().size


def _dense(call: str, value: Any) -> Any:
    if _is_fork:
        message = f"{call}: this process is a fork of the rank's process; start workers by `spawn`"
        raise BrokenError(message, call=call)
    if isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        kind = type(value).__name__
        message = f"{call}: tensor is of type {kind}, expected a dense one: tf.convert_to_tensor"
        raise ArgumentError(message, call=call, argument="tensor")
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in _TYPES:
        message = f"{call}: tensor is of type {tensor.dtype.name}, expected numbers: {_NAMES}"
        raise ArgumentError(message, call=call, argument="tensor")
    return tensor


def _run(operator: Callable[..., Any], *tensors: Any, **attributes: Any) -> Any:
    """Makes an eager call, which raises the library's exceptions, or a part of a graph, which later
    raises those of `tf.errors` with the same text."""
    communicator()
    try:
        return operator(*tensors, **attributes)
    except tf.errors.OpError as error:
        failure = _core.tensorflow_failure(error.message)
        if failure is None:
            raise
        raise failure from None


def all_reduce(tensor: Any, op: str = "sum") -> Any:
    """Reduces a tensor over all ranks. The gradient of a sum or average is the same call of it."""
    return _run(_operators.ringreduce_all_reduce, [_dense("all_reduce", tensor)], op=op)[0]


def broadcast(tensor: Any, root: int = 0) -> Any:
    """The tensor of rank `root`, at all ranks, whose tensors have the same shape.

    Its gradient is the sum of all ranks' at the root, and zero at the others.
    """
    return _run(_operators.ringreduce_broadcast, _dense("broadcast", tensor), root=root)


def all_gather(tensor: Any) -> Any:
    """The tensors of all ranks, one after the other along the first dimension, which may differ.

    Its gradient is the sum of all ranks' for this rank's part.
    """
    return _gather(_dense("all_gather", tensor))[0]


def _gather(tensor: Any) -> Any:
    """The tensors of all ranks, and how many rows each has."""
    if tensor.shape.rank == 0:
        tensor = tf.reshape(tensor, [1])
    gathered, rows = _run(_operators.ringreduce_all_gather, tensor)
    if not tf.executing_eagerly() and tensor.shape.rank is not None:
        gathered.set_shape([None, *tensor.shape[1:]])
    return gathered, rows


def barrier() -> None:
    """Waits for all ranks; of no use inside of a graph."""
    communicator().barrier()


def reduce_many(tensors: Sequence[Any], op: str) -> list[Any]:
    """Reduces many tensors as few calls: those of one type are one."""
    tensors = [_dense("all_reduce", tensor) for tensor in tensors]
    results = list(tensors)
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=lambda it: str(it.name)):
        which = [at for at, tensor in enumerate(tensors) if tensor.dtype == dtype]
        given = [tensors[at] for at in which]
        reduced = _run(_operators.ringreduce_all_reduce, given, op=op)
        for at, result in zip(which, reduced, strict=True):
            results[at] = result
    return results


@tf.RegisterGradient("RingreduceAllReduce")
def _of_all_reduce(made: Any, *upstream: Any) -> Any:
    op = tf.compat.as_str(made.get_attr("op"))
    if op not in ("sum", "avg"):
        message = f"all_reduce: op is {op!r}, expected sum or avg for a gradient"
        raise ArgumentError(message, call="all_reduce", argument="op")
    return _run(_operators.ringreduce_all_reduce, list(upstream), op=op)


@tf.RegisterGradient("RingreduceBroadcast")
def _of_broadcast(made: Any, upstream: Any) -> Any:
    return _run(_operators.ringreduce_reduce, upstream, root=made.get_attr("root"))


@tf.RegisterGradient("RingreduceReduce")
def _of_reduce(made: Any, upstream: Any) -> Any:
    return _run(_operators.ringreduce_broadcast, upstream, root=made.get_attr("root"))


@tf.RegisterGradient("RingreduceAllGather")
def _of_all_gather(made: Any, upstream: Any, _: Any) -> Any:
    part = _run(_operators.ringreduce_reduce_scatter, upstream, made.outputs[1])
    return tf.ensure_shape(part, made.inputs[0].shape)


@tf.RegisterGradient("RingreduceReduceScatter")
def _of_reduce_scatter(made: Any, upstream: Any) -> Any:
    return tf.ensure_shape(_gather(upstream)[0], made.inputs[0].shape), None
