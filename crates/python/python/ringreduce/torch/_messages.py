"""What messages need that the library leaves to their callers: tags, and the time they may take."""

from __future__ import annotations

import time

from .._errors import TimeoutError


class Tags:
    """Ranges of tags above those of PyTorch's messages. Each call of a group has a tag of its own,
    so that what a failed one has left does not meet the next one."""

    BARRIERS = 1 << 31
    LISTS = 3 << 30
    #: Tags of each range.
    LENGTH = 1 << 30


class Deadline:
    """When messages have to have come. Collectives have theirs in the library."""

    def __init__(self, timeout: float, call: str, rank: int, peer: int | None = None) -> None:
        self._timeout, self._call, self._rank, self._peer = timeout, call, rank, peer
        self.begin()

    def begin(self) -> None:
        """Has the time begin now."""
        self.end = time.monotonic() + self._timeout

    def left(self) -> float:
        """The seconds until then."""
        return max(self.end - time.monotonic(), 0)

    def error(self) -> TimeoutError:
        """What a wait raises then."""
        peer = "any rank" if self._peer is None else f"rank {self._peer}"
        expected = {"recv": f"a message from {peer}", "send": f"a receive of a message to {peer}"}
        return TimeoutError(
            f"{self._call}: rank {self._rank} has waited {self._timeout:g} s, the timeout of the "
            f"group, for {expected.get(self._call, 'the tensors of the other ranks')}",
            call=self._call,
            rank=self._rank,
            peer=self._peer,
        )
