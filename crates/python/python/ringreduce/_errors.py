"""The exceptions. Each is an `Error`, and its attributes say what is known of the failure."""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """A call failed. An attribute is None where the failure has no such fact."""

    def __init__(
        self,
        message: str,
        *,
        call: str | None = None,
        argument: str | None = None,
        rank: int | None = None,
        host: str | None = None,
        communicator: str | None = None,
        step: int | None = None,
        sequence: int | None = None,
        peer: int | None = None,
        peer_host: str | None = None,
        peer_pid: int | None = None,
        missing: list[int] | None = None,
    ) -> None:
        super().__init__(message)
        #: The method.
        self.call = call
        #: The argument that is wrong.
        self.argument = argument
        #: The rank that reports, its host, and the step of the call at which it failed.
        self.rank = rank
        self.host = host
        self.step = step
        #: The name of the communicator, if it has one.
        self.communicator = communicator
        #: The number of the call on this communicator, from 1.
        self.sequence = sequence
        #: The other rank that the failure is about, its host and its process.
        self.peer = peer
        self.peer_host = peer_host
        self.peer_pid = peer_pid
        #: The ranks that did not come.
        self.missing = missing


class ArgumentError(Error, ValueError):
    """An argument is wrong. Nothing was sent, and the communicator is as before."""


class ConfigError(Error):
    """A setting is wrong, or launchers disagree."""


class ObjectError(Error):
    """A rank's object can't be pickled."""


class MissingRanksError(Error):
    """Some ranks did not come in time."""


class DuplicateRankError(Error):
    """Two processes claim one rank."""


class ConnectError(Error, ConnectionError):
    """The ranks' meeting point or a rank can't be reached, or is another program."""


class SystemError(Error, OSError):  # noqa: A001
    """The operating system refused something."""


class ExhaustedError(SystemError):
    """A limit of the operating system is reached."""


class DeviceError(Error):
    """A CUDA driver or device is missing, or refuses something."""


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001
    """A wait has reached its deadline: `peer` did not come, or keeps all others waiting."""


class PeerLostError(Error, ConnectionError):
    """The rank `peer` has ended, or its connection is lost."""


class MismatchError(Error):
    """Two ranks make different calls."""


class CorruptError(Error):
    """What `peer` sent was changed on its way."""


class AbortedError(Error):
    """The rank `peer` ended all calls."""


class EvictedError(Error):
    """The other ranks went on without this one, or too few are left."""


class BrokenError(Error):
    """An earlier failure, or the end of the communicator, left it unusable."""
