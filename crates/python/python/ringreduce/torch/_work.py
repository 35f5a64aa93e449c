"""Calls under way as PyTorch's `Work`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from .. import _core
from .._errors import TimeoutError
from . import _flight
from ._futures import watcher
from ._messages import Deadline
from ._profile import recorded
from ._tensors import Finish


class Work(dist.Work):
    """A call: started ones have handles. Those that have ended have none."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        handles: Sequence[_core.Handle[Any]] = (),
        finish: Sequence[Finish] = (),
        deadline: Deadline | None = None,
    ) -> None:
        super().__init__()
        self._outputs = list(outputs)
        self.handles = list(handles)
        self._finish = list(finish)
        self.deadline = deadline
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._source = -1
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the call has ended, or so long: the call goes on then."""
        seconds = timeout.total_seconds() if timeout else None
        if self.handles:
            with recorded("wait", self._outputs):
                for handle in list(self.handles):
                    self._wait_for(handle, seconds or None)
        self._end()
        return True

    def _wait_for(self, handle: _core.Handle[Any], seconds: float | None) -> None:
        late = None
        if seconds is None and self.deadline is not None:
            seconds, late = self.deadline.left(), self.deadline.error()
        try:
            handle.wait(seconds)
        except TimeoutError:
            if late is None or handle.done():
                raise
            self.fail(late)

    def fail(self, error: Exception) -> None:
        """Ends the call without its results, unless it has ended."""
        with self._lock:
            if self.handles and self._error is None:
                self._error = error

    def _end(self) -> None:
        """Brings the results to their tensors, once."""
        with self._lock:
            if self._error:
                _flight.dump_after(self._error)
                raise self._error
            try:
                for handle in self.handles:
                    status = handle.wait()
                    self._source = getattr(status, "rank", self._source)
                for finish in self._finish:
                    finish()
            except Exception as error:
                self._error = error
            # An interrupt, by Ctrl-C, does not come here: a wait may be repeated.
            self.handles, self._finish = [], []
            if self._error:
                _flight.dump_after(self._error)
                raise self._error

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if self._error is None and not all(handle.done() for handle in list(self.handles)):
            return False
        self.exception()
        return True

    def is_success(self) -> bool:
        """Whether the call has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Why the call failed; waits for its end."""
        try:
            self._end()
        except Exception as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that the call wrote to."""
        return self._outputs

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def source_rank(self) -> int:
        """The rank whose message came."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors that the call wrote to."""
        if self._future is None:
            ended: torch.futures.Future[Any] = torch.futures.Future()
            self._future = ended.then(lambda _: self._value())
            deadline = self.deadline
            late = (lambda: self.fail(deadline.error())) if deadline else None
            watcher.watch(
                list(self.handles),
                lambda: ended.set_result(None),
                (deadline.end, late) if deadline and late else None,
            )
        return self._future

    def _value(self) -> list[torch.Tensor]:
        # What a callback raises is what C++ sees as the future's error.
        self._end()
        return self._outputs
