"""Collectives between the ranks of a job: `comm = ringreduce.init(); comm.all_reduce(array)`."""

import atexit
import sys
from typing import Final

from . import _core
from ._core import (
    Communicator,
    CurrentCall,
    Handle,
    Memory,
    Monitor,
    Nonblocking,
    Status,
    init,
    local,
    unique_id,
)
from ._errors import (
    AbortedError,
    ArgumentError,
    BrokenError,
    ConfigError,
    ConnectError,
    CorruptError,
    DeviceError,
    DuplicateRankError,
    Error,
    EvictedError,
    ExhaustedError,
    MismatchError,
    MissingRanksError,
    ObjectError,
    PeerLostError,
    SystemError,
    TimeoutError,
)

__version__ = _core.__version__

# The core's threads and its state are one for the process: a second copy would have its own.
_loaded: Final = (__version__, _core.__file__)
_first = sys.__dict__.setdefault("_ringreduce", _loaded)
if _first != _loaded:
    raise ImportError(
        f"ringreduce {_loaded[0]} ({_loaded[1]}): this process has loaded version {_first[0]} "
        f"({_first[1]}) before; use one of them"
    )

# Started calls end, or are aborted, while the interpreter can still wait for them.
atexit.register(_core.close_all)

__all__ = [
    "AbortedError",
    "ArgumentError",
    "BrokenError",
    "Communicator",
    "ConfigError",
    "ConnectError",
    "CorruptError",
    "CurrentCall",
    "DeviceError",
    "DuplicateRankError",
    "Error",
    "EvictedError",
    "ExhaustedError",
    "Handle",
    "Memory",
    "MismatchError",
    "MissingRanksError",
    "Monitor",
    "Nonblocking",
    "ObjectError",
    "PeerLostError",
    "Status",
    "SystemError",
    "TimeoutError",
    "init",
    "local",
    "unique_id",
]
