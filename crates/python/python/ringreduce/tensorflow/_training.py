"""Data-parallel training: gradients averaged over the ranks, for tapes and Keras' optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .._errors import ArgumentError
from . import _calls

#: The attribute of optimizers that average gradients.
_AVERAGES = "_ringreduce_averages"


def average_gradients(gradients: Sequence[Any]) -> list[Any]:
    """The averages over all ranks. None stays None: it has to be None at all ranks."""
    present = [at for at, gradient in enumerate(gradients) if gradient is not None]
    averaged = list(gradients)
    if present and _calls.size() > 1:
        dense = [tf.convert_to_tensor(gradients[at]) for at in present]
        for at, average in zip(present, _calls.reduce_many(dense, "avg"), strict=True):
            averaged[at] = average
    return averaged


def broadcast_variables(variables: Iterable[Any], root: int = 0) -> None:
    """Gives variables the values of rank `root`."""
    for variable in variables:
        variable.assign(_calls.broadcast(tf.convert_to_tensor(variable), root))


class DistributedGradientTape:
    """A tape whose gradients are averages: `DistributedGradientTape(tape).gradient(..)`."""

    def __init__(self, tape: tf.GradientTape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._tape.__exit__(*raised)

    def gradient(self, target: Any, sources: Any, **options: Any) -> Any:
        """As the tape's, averaged over all ranks."""
        made = self._tape.gradient(target, sources, **options)
        return tf.nest.pack_sequence_as(made, average_gradients(tf.nest.flatten(made)))


def DistributedOptimizer(optimizer: Any) -> Any:  # noqa: N802
    """The same optimizer, which averages the gradients over all ranks before it applies them.

    Compile the model with `jit_compile=False`.
    """
    optimizer = keras.optimizers.get(optimizer)
    if optimizer.built:
        raise ArgumentError(
            "DistributedOptimizer: optimizer is one that has been used, expected a new one: its "
            "state would be lost",
            call="DistributedOptimizer",
            argument="optimizer",
        )
    kind = type(optimizer)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return kind.apply(self, average_gradients(grads), trainable_variables)

    members = {"apply": apply, "__module__": kind.__module__, _AVERAGES: True}
    ours: Any = type(kind.__name__, (kind,), members)
    return ours.from_config(optimizer.get_config())


class BroadcastVariables(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Gives the model's and the optimizer's variables the values of rank `root` before training, or
    after the first batch, which builds a model that was made without an input.
    """

    def __init__(self, root: int = 0) -> None:
        super().__init__()
        self._root = root
        self._is_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """As Keras calls it."""
        self._is_done = False
        if self.model.built and self.model.variables:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """As Keras calls it."""
        if not self._is_done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._is_done = True
        optimizer = getattr(self.model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", None)
        if hasattr(inner, _AVERAGES) and not hasattr(optimizer, _AVERAGES):
            raise ArgumentError(
                "BroadcastVariables: optimizer scales the loss around a DistributedOptimizer, so a "
                "rank whose gradients overflow would skip their average; expected "
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))",
                call="BroadcastVariables",
                argument="optimizer",
            )
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        state = optimizer.variables if optimizer is not None else []
        broadcast_variables([it.value for it in [*self.model.variables, *state]], self._root)


class AverageMetrics(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Averages what an epoch logs over all ranks. Put it before callbacks that use the logs."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As Keras calls it."""
        if logs:
            names = sorted(logs)
            means = np.array([float(logs[name]) for name in names])
            _calls.communicator().all_reduce(means, op="avg")
            logs.update(zip(names, means.tolist(), strict=True))
