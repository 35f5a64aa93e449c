"""Handles in an event loop: one descriptor for each loop, which started calls make readable."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import Any

from . import _core


class Completions:
    """The calls that an event loop awaits, and the descriptor that tells it of their ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.notifier = _core.Notifier()
        self.tokens = itertools.count()
        self.waiting: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.notifier.fileno(), self.end_waits)

    def end_waits(self) -> None:
        """Ends the waits for the calls that have ended."""
        for token in self.notifier.take():
            future = self.waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def wait(self, handle: _core.Handle[Any]) -> None:
        """Waits for one call. It goes on if the wait is cancelled."""
        token = next(self.tokens)
        future = self.waiting[token] = asyncio.get_running_loop().create_future()
        handle._notify(self.notifier, token)
        try:
            await future
        finally:
            self.waiting.pop(token, None)


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Completions] = (
    weakref.WeakKeyDictionary()
)


async def ended(handle: _core.Handle[Any]) -> Any:
    """The result of a started call."""
    if not handle.done():
        loop = asyncio.get_running_loop()
        completions = _of_loops.get(loop)
        if completions is None:
            completions = _of_loops[loop] = Completions(loop)
        await completions.wait(handle)
    return handle.wait()
