"""Data-parallel training in the form of MXNet's Trainer, on NumPy arrays alone.

python -m ringreduce.run -n 2 trainer.py
"""

from typing import Any

import numpy as np
import ringreduce as rr

Array = np.ndarray[Any, np.dtype[np.float32]]


class Parameter:
    """A value and its gradient. The gradient is in memory that all ranks of a host share."""

    def __init__(self, comm: rr.Communicator, value: Array) -> None:
        self.value = comm.broadcast(value)
        self.grad = comm.empty(value.shape, value.dtype)


class Trainer:
    """Applies gradients that are summed over all ranks: `step` after each backward pass."""

    def __init__(self, comm: rr.Communicator, parameters: list[Parameter], rate: float) -> None:
        self.comm, self.parameters, self.rate = comm, parameters, rate

    def step(self, batch_size: int) -> None:
        """Sums the gradients and makes a step; `batch_size` counts the rows of all ranks."""
        self.comm.all_reduce_many([parameter.grad for parameter in self.parameters])
        for parameter in self.parameters:
            parameter.value -= self.rate / batch_size * parameter.grad


def main() -> None:
    """Fits a line."""
    comm = rr.init()
    generator = np.random.default_rng(comm.rank)
    x = generator.random(32, np.float32)
    y = 3 * x + 1
    slope, offset = (Parameter(comm, generator.random(1, np.float32)) for _ in range(2))
    trainer = Trainer(comm, [slope, offset], 0.5)
    for _ in range(300):
        error = slope.value * x + offset.value - y
        slope.grad[:] = (2 * error * x).sum()
        offset.grad[:] = (2 * error).sum()
        trainer.step(len(x) * comm.size)
    print(f"rank {comm.rank}: y = {slope.value[0]:.2f} x + {offset.value[0]:.2f}")


main()
