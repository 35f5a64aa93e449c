"""Averages of gradients, each started as soon as it is there, and awaited by an event loop."""

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
import ringreduce as rr

Layer = npt.NDArray[np.float32]


async def average(comm: rr.Communicator, layers: list[Layer]) -> list[Layer]:
    """The averages over all ranks."""
    handles = [comm.nonblocking.all_reduce(layer, op="avg") for layer in layers]
    # ... compute something else, or await other things ...
    return await asyncio.gather(*handles)


def backward(comm: rr.Communicator, layers: list[Layer]) -> None:
    """The same without an event loop."""
    started: list[rr.Handle[Any]] = []
    for layer in layers:
        started.append(comm.nonblocking.all_reduce(layer, op="avg"))
        # ... compute the next layer's gradients ...
    for handle in started:
        handle.wait()


def main() -> None:
    """Averages the ranks' numbers twice, which changes nothing the second time."""
    comm = rr.init()
    layers = [np.full(n, comm.rank, np.float32) for n in (3, 5)]
    means = asyncio.run(average(comm, layers))
    backward(comm, means)
    print(f"rank {comm.rank}: {[layer.tolist() for layer in means]}")


if __name__ == "__main__":
    main()
