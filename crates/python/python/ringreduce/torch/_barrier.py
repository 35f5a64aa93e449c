"""A barrier at rank 0 by messages, which can name all ranks that are missing."""

from __future__ import annotations

import time

import numpy as np

from .. import _core
from .._errors import Error, MissingRanksError, TimeoutError
from ._messages import Tags


def monitored_barrier(
    comm: _core.Communicator, sequence: int, timeout: float, names_all: bool
) -> None:
    """Fails at rank 0 with the names of the ranks that did not come in time: all, or the first."""
    tag = Tags.BARRIERS + sequence % Tags.LENGTH
    if comm.rank == 0:
        _lead(comm, tag, timeout, names_all)
        return
    here = np.zeros(1, np.uint8)
    try:
        comm.nonblocking.send(here, 0, tag).wait(timeout)
        comm.nonblocking.recv(here, 0, tag).wait(timeout)
    except Error as error:
        raise TimeoutError(
            f"Rank {comm.rank} successfully reached monitoredBarrier, but received errors while "
            f"waiting for send/recv from rank 0, whose log names the faulty rank: {error}",
            call="monitored_barrier",
            rank=comm.rank,
            peer=0,
        ) from error


def _lead(comm: _core.Communicator, tag: int, timeout: float, names_all: bool) -> None:
    end = time.monotonic() + timeout
    came = {rank: np.zeros(1, np.uint8) for rank in range(1, comm.size)}
    handles = {rank: comm.nonblocking.recv(it, rank, tag) for rank, it in came.items()}
    missing = []
    for rank, handle in handles.items():
        try:
            handle.wait(max(end - time.monotonic(), 0))
        except Error:
            missing.append(rank)
            if not names_all:
                break
    if missing and timeout <= 0:
        raise TimeoutError(
            "Rank 0 timed out in monitoredBarrier: it waits for no time at all",
            call="monitored_barrier",
            rank=0,
        )
    if missing:
        which = ", ".join(map(str, missing))
        raise MissingRanksError(
            f"Rank{'s' if names_all else ''} {which} failed to pass monitoredBarrier in "
            f"{round(timeout * 1000)} ms",
            call="monitored_barrier",
            rank=0,
            missing=missing,
        )
    for handle in [comm.nonblocking.send(it, rank, tag) for rank, it in came.items()]:
        handle.wait(max(end - time.monotonic(), 0))
