"""Calls under way as PyTorch's `Work`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from .. import _core
from .._errors import Error, TimeoutError
from . import _flight
from ._futures import watcher
from ._messages import Deadline
from ._profile import recorded
from ._tensors import Finish


class Work(dist.Work):
    """A call: started ones have handles. Those that have ended have none."""

    _handles: Sequence[_core.Handle[Any]] = ()
    _finish: Sequence[Finish] = ()
    _deadline: Deadline | None = None
    _lock: threading.Lock | None = None
    _future: torch.futures.Future[Any] | None = None
    _source = -1
    _error: BaseException | None = None

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        handles: Sequence[_core.Handle[Any]] = (),
        finish: Sequence[Finish] = (),
        deadline: Deadline | None = None,
    ) -> None:
        super().__init__()
        self._outputs = outputs
        # Each blocking call makes a work that has ended, which takes no time for what it lacks.
        if handles or finish:
            self._handles = list(handles)
            self._finish = finish
            self._deadline = deadline
            self._lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the call has ended, or so long: the call goes on then."""
        if self._lock is None:
            return True
        if self._handles:
            seconds = timeout.total_seconds() if timeout else None
            with recorded("wait", self._outputs):
                self._wait_for_all(seconds or None)
        self._end()
        return True

    def _wait_for_all(self, seconds: float | None) -> None:
        for handle in list(self._handles):
            self._wait_for(handle, seconds)

    def _wait_for(self, handle: _core.Handle[Any], seconds: float | None) -> None:
        late = None
        if seconds is None and self._deadline is not None:
            seconds, late = self._deadline.left(), self._deadline.error()
        try:
            handle.wait(seconds)
        except TimeoutError:
            if late is None or handle.done():
                raise
            self.fail(late)

    def fail(self, error: Exception) -> None:
        """Ends the call without its results, unless it has ended."""
        if self._lock is None:
            return
        with self._lock:
            if self._handles and self._error is None:
                self._error = error

    def _end(self) -> None:
        """Brings the results to their tensors, once."""
        if self._lock is None:
            return
        with self._lock:
            if self._error:
                _flight.dump_after(self._error)
                raise self._error
            try:
                for handle in self._handles:
                    status = handle.wait()
                    self._source = getattr(status, "rank", self._source)
                for finish in self._finish:
                    finish()
            except Exception as error:
                self._error = error
            # An interrupt, by Ctrl-C, does not come here: a wait may be repeated.
            self._handles, self._finish = [], []
            if self._error:
                _flight.dump_after(self._error)
                raise self._error

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if self._error is None and not all(handle.done() for handle in list(self._handles)):
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

    def result(self) -> Sequence[torch.Tensor]:
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
            self._watch(lambda: ended.set_result(None))
        return self._future

    def _watch(self, end: Finish) -> None:
        """Calls a function once the call has ended."""
        self._watch_handles(self._handles, end)

    def _watch_handles(self, handles: Sequence[_core.Handle[Any]], end: Finish) -> None:
        deadline = self._deadline
        late = (deadline.end, lambda: self.fail(deadline.error())) if deadline else None
        watcher.watch(list(handles), end, late)

    def _value(self) -> Sequence[torch.Tensor]:
        # What a callback raises is what C++ sees as the future's error.
        self._end()
        return self._outputs


class JoinedWork(Work):
    """Several calls, which have ended when the last one has."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As a call's, with the time for each."""
        return all([work.wait(timeout) for work in self._works])

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return all([work.is_completed() for work in self._works])

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return all([work.is_success() for work in self._works])

    def _end(self) -> None:
        for work in self._works:
            work._end()

    def _watch(self, end: Finish) -> None:
        last = end
        for work in reversed(self._works):
            last = functools.partial(work._watch, last)
        last()


class ListWork(Work):
    """A call by messages. The first handle of a started one is that of the ranks' agreement that
    all make this call, which is checked as soon as it has ended. The messages of a call that fails
    go no further: they would meet memory that its caller uses again."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        handles: Sequence[_core.Handle[Any]],
        finish: Sequence[Finish],
        deadline: Deadline,
        check: Finish | None,
        abort: Finish,
    ) -> None:
        super().__init__(outputs, handles, finish, deadline)
        self._check, self._abort = check, abort

    def fail(self, error: Exception) -> None:
        """Also ends the group."""
        super().fail(error)
        self._abort()

    def _wait_for_all(self, seconds: float | None) -> None:
        if self._check is not None:
            self._wait_for(self._handles[0], seconds)
            self._agree()
        if self._error is None:
            super()._wait_for_all(seconds)

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        self._agree()
        return super().is_completed()

    def _agree(self) -> None:
        check = self._check
        if check is not None and self._handles and self._handles[0].done():
            self._check = None
            try:
                self._handles[0].wait()
                check()
            except Error as error:
                self.fail(error)

    def _watch(self, end: Finish) -> None:
        def agreed() -> None:
            self._agree()
            if self._error is None:
                self._watch_handles(self._handles, end)
            else:
                end()

        self._watch_handles(self._handles[:1], agreed)
