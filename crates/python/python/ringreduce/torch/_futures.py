"""The threads that end the futures of calls which have ended.

A callback of a future may wait for another future, so while one thread runs callbacks another one
has to end other futures: there is always one that waits for the ends of calls.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import _core

Handles = list[_core.Handle[Any]]
End = Callable[[], object]
#: A time on the monotonic clock, and what to do if the calls have not ended then.
Late = tuple[float, End]

#: How long the end of the process waits for callbacks, in seconds.
EXIT_CALLBACK_WAIT = 2.0
#: One wait of `poll`, in milliseconds. It takes no time of a month.
LONGEST_POLL = 3_600_000


class Watcher:
    """The threads, which take turns."""

    def __init__(self) -> None:
        self._begin()
        atexit.register(self._stop)
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """A forked child begins again: it has none of its parent's threads, which may hold locks.
        It keeps its parent's calls, as letting them go takes locks too."""
        self._of_parent = vars(self).copy()
        self._lock = threading.Lock()
        #: Held by the thread that waits for the ends of calls.
        self._turn = threading.Lock()
        self._notifier: _core.Notifier | None = None
        self._tokens = itertools.count()
        self._waiting: dict[int, tuple[Handles, End, Late | None]] = {}
        self._ended: deque[int] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._wake_read, self._wake_write = -1, -1

    def watch(self, handles: Handles, end: End, late: Late | None = None) -> None:
        """Calls `end` after the last of the handles, or at the given time at the latest."""
        while handles and handles[-1].done():
            handles.pop()
        if not handles:
            end()
            return
        with self._lock:
            if self._wake_read < 0:
                self._wake_read, self._wake_write = os.pipe()
            if self._notifier is None:
                self._notifier = _core.Notifier()
            if not self._threads:
                self._start()
            token = next(self._tokens)
            self._waiting[token] = (handles, end, late)
        handles[-1]._notify(self._notifier, token)
        if late is not None:
            # The thread that waits has to know of the time.
            os.write(self._wake_write, b"t")

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ring-futures", daemon=True)
        thread.start()
        self._threads.add(thread)
        self._idle += 1

    def _run(self) -> None:
        while (token := self._next()) is not None:
            with self._lock:
                found = self._waiting.pop(token, None)
                self._idle -= 1
                if self._idle == 0:
                    # Without another thread, callbacks run one after the other.
                    with contextlib.suppress(RuntimeError):
                        self._start()
            if found is not None:
                handles, end, late = found
                if late is not None and time.monotonic() >= late[0] and not handles[-1].done():
                    late[1]()
                    end()
                else:
                    self.watch(*found)
            with self._lock:
                if self._idle > 1:
                    break
                self._idle += 1
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _next(self) -> int | None:
        """The next call that has ended or is late; None at the end of the process."""
        assert self._notifier is not None
        with self._turn:
            poll = select.poll()
            poll.register(self._notifier.fileno(), select.POLLIN)
            poll.register(self._wake_read, select.POLLIN)
            while not self._ended:
                for descriptor, _ in poll.poll(self._milliseconds()):
                    if descriptor == self._wake_read and b"e" in os.read(descriptor, 4096):
                        os.write(self._wake_write, b"e")
                        return None
                self._ended.extend(self._notifier.take())
                now = time.monotonic()
                with self._lock:
                    waiting = list(self._waiting.items())
                self._ended.extend(at for at, (_, _, late) in waiting if late and late[0] <= now)
            return self._ended.popleft()

    def _milliseconds(self) -> float | None:
        """How long until the next call is late, or the longest time that can be asked for."""
        with self._lock:
            times = [late[0] for _, _, late in self._waiting.values() if late]
        left = max(0, min(times) - time.monotonic()) * 1000 + 1 if times else None
        return left if left is None else min(left, LONGEST_POLL)

    def _stop(self) -> None:
        """Ends all calls, and then the threads: a callback must not meet the interpreter's end."""
        if not self._threads:
            return
        _core.close_all()
        deadline = time.monotonic() + EXIT_CALLBACK_WAIT
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.005)
        os.write(self._wake_write, b"e")
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.1))


watcher = Watcher()
