"""How PyTorch finds the ranks of a job that `ringrun` started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import _rendezvous_handlers

from .. import _core

Meeting = Iterator[tuple[dist.Store, int, int]]


def _is_ours() -> bool:
    return "RANK" not in os.environ and "RINGREDUCE_RANK" in os.environ


def _meet(timeout: timedelta) -> Meeting:
    """Rank 0 opens a store, and tells the others where."""
    # By numbers, so that the program may have a communicator of the environment beside it.
    rank, size = (int(os.environ[name]) for name in ("RINGREDUCE_RANK", "RINGREDUCE_SIZE"))
    comm = _core.init(timeout=timeout.total_seconds(), rank=rank, size=size)
    os.environ["LOCAL_RANK"] = str(comm.local_rank)
    store = None
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, timeout, wait_for_workers=False)
    host = socket.gethostname() if len(set(comm.hosts)) > 1 else "127.0.0.1"
    host, port = comm.broadcast_object((host, store.port if store else 0))
    if store is None:
        store = dist.TCPStore(host, port, size, False, timeout)
    # Rank 0 keeps the store until all ranks have found it.
    comm.barrier()
    comm.close()
    yield store, rank, size
    raise RuntimeError("env:// under ringrun: a rendezvous serves one group")


def _handler(of_torch: Callable[..., Meeting]) -> Callable[..., Meeting]:
    def handle(url: str, timeout: timedelta = default_pg_timeout, **kwargs: Any) -> Meeting:
        return _meet(timeout) if _is_ours() else of_torch(url, timeout=timeout, **kwargs)

    return handle


def install() -> None:
    """Has `env://`, PyTorch's default, know ringrun's variables where torchrun's are missing."""
    if _rendezvous_handlers["env"].__module__ != __name__:
        _rendezvous_handlers["env"] = _handler(_rendezvous_handlers["env"])
