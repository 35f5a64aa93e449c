"""PyTorch's flight recorder, which records the calls of every group: writing its record to a file.

PyTorch dumps the record when a call fails for its own backends alone (a backend in Python has no
abort hooks), so a call that fails here does it. The variables and the format are PyTorch's.
"""

from __future__ import annotations

import contextlib
import os
import threading

from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

from .._errors import ArgumentError, Error

#: The name of the backend, under which PyTorch keeps its own record of each.
BACKEND = "ringreduce"
#: Where a failed call dumps the record: this, followed by the rank.
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SWITCHES = ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")

_lock = threading.Lock()
_is_dumped = False


def dump_flight_record(path: str | os.PathLike[str]) -> None:
    """Writes the last calls of this process's groups to a file, for `torchfrtrace`: it wants a
    folder with one file of each rank, `NAME_0`, `NAME_1` and so on. Needs PyTorch 2.15 or newer;
    `TORCH_FR_BUFFER_SIZE` is the number of calls that PyTorch keeps, 2000 by default."""
    record = c10d._dump_fr_trace(backend=BACKEND)
    with open(path, "wb") as file:
        file.write(record)


def dump_after(error: BaseException) -> None:
    """Dumps the record after the first failure of a call, if the environment says where."""
    global _is_dumped
    if not isinstance(error, Error) or isinstance(error, ArgumentError):
        # No call of the library has failed.
        return
    prefix = next((os.environ[name] for name in _FILES if os.environ.get(name)), None)
    switch = next((os.environ[name] for name in _SWITCHES if name in os.environ), "1")
    if prefix is None or switch.lower() in ("0", "false", "no", "n"):
        return
    with _lock:
        if _is_dumped or not dist.is_initialized():
            return
        _is_dumped = True
    # The failure itself matters more than a file that can't be written.
    with contextlib.suppress(Exception):
        dump_flight_record(f"{prefix}{dist.get_rank()}")
