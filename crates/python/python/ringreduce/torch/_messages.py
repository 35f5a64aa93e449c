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
    """When messages have to have come: the time begins when the program first asks for the end, by
    a wait, a poll or a future. Collectives have their time in the library."""

    def __init__(self, timeout: float, call: str, rank: int, peer: int | None = None) -> None:
        self._timeout, self._call, self._rank, self._peer = timeout, call, rank, peer
        self._end: float | None = None

    def end(self) -> float:
        """The time on the monotonic clock."""
        if self._end is None:
            self._end = time.monotonic() + self._timeout
        return self._end

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
