"""Calls under way as PyTorch's `Work`."""

from __future__ import annotations

import threading
import time
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
from ._tensors import Finish, copy_to


class Work(dist.Work):
    """A call: started ones have handles. Those that have ended have none."""

    _handles: Sequence[_core.Handle[Any]] = ()
    _finish: list[Finish]
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
            self._finish = list(finish)
            self._deadline = deadline
            self._lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the call has ended, or so long: the call goes on then."""
        if self._lock is None:
            return True
        if self._handles:
            end = time.monotonic() + timeout.total_seconds() if timeout else None
            with recorded("wait", self._outputs):
                self._wait_for_all(end)
        self._end()
        return True

    def _wait_for_all(self, end: float | None) -> None:
        """Waits until then, or without a time for as long as the call may take."""
        for handle in list(self._handles):
            self._wait_for(handle, end, self._deadline)

    def _wait_for(
        self, handle: _core.Handle[Any], end: float | None, deadline: Deadline | None
    ) -> None:
        is_last = end is None
        if end is None and deadline is not None:
            end = deadline.end()
        left = None if end is None else max(end - time.monotonic(), 0)
        if not handle._has_ended_after(left):
            if not is_last or deadline is None:
                raise TimeoutError("wait: the call has not ended yet; it goes on", call="wait")
            self.fail(deadline.error())
            return
        try:
            handle.wait()
        except Error as error:
            self.fail(error)

    def fail(self, error: Exception) -> bool:
        """Ends the call without its results, unless it has ended."""
        if self._lock is None:
            return False
        with self._lock:
            if not self._handles or self._error is not None:
                return False
            self._error = error
            return True

    def _end(self) -> None:
        """Brings the results to their tensors, once. All handles have ended."""
        if self._lock is None:
            return
        with self._lock:
            try:
                if self._error is None:
                    for handle in self._handles:
                        status = handle.wait()
                        self._source = getattr(status, "rank", self._source)
                # An interrupt, by Ctrl-C, is no failure: a wait may be repeated, and goes on here.
                while self._finish and self._error is None:
                    self._finish[0]()
                    self._finish.pop(0)
            except Exception as error:
                self._error = error
            self._handles = []
            if self._error:
                _flight.dump_after(self._error)
                raise self._error

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if self._error is None and not all(handle.done() for handle in list(self._handles)):
            deadline = self._deadline
            if deadline is None or time.monotonic() < deadline.end():
                return False
            self.fail(deadline.error())
        self.exception()
        return True

    def is_success(self) -> bool:
        """Whether the call has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Why the call failed; waits for its end."""
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> Sequence[torch.Tensor]:
        """The tensors that the call wrote to."""
        return self._outputs

    def replace_outputs(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Makes the first tensor of each pair an output in place of the second, from which it gets
        the results once the call has ended."""
        given = {id(copy): tensor for tensor, copy in pairs}
        self._outputs = [given.get(id(it), it) for it in self._outputs]

        def bring_back() -> None:
            for tensor, copy in pairs:
                copy_to(tensor, copy)

        self._then(bring_back)

    def _then(self, finish: Finish) -> None:
        """Does something more when the call has ended, or now if it has."""
        if self._lock is not None:
            with self._lock:
                if self._handles:
                    self._finish.append(finish)
                    return
        finish()

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
            future = ended.then(lambda _: self._value())
            self._watch(lambda: ended.set_result(None))
            self._future = future
        return self._future

    def _watch(self, end: Finish) -> None:
        """Calls a function once the call has ended."""
        deadline = self._deadline
        late = (deadline.end(), lambda: self.fail(deadline.error())) if deadline else None
        watcher.watch(list(self._handles), end, late)

    def _value(self) -> Sequence[torch.Tensor]:
        # What a callback raises is what C++ sees as the future's error.
        self._end()
        return self._outputs


def cancel(handles: Sequence[_core.Handle[Any]]) -> None:
    """Gives messages up that have not ended."""
    for handle in list(handles):
        handle._cancel()


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

    def source_rank(self) -> int:
        """The rank whose message came last."""
        return self._works[-1].source_rank() if self._works else -1

    _source_rank = source_rank

    def _end(self) -> None:
        for work in self._works:
            work._end()

    def _then(self, finish: Finish) -> None:
        left = list(self._works)

        def end_one() -> None:
            left.pop()
            if not left:
                finish()

        for work in self._works:
            work._then(end_one)

    def exception(self) -> BaseException | None:
        """Why the first of those that failed did; waits for the end of all."""
        return next(filter(None, [work.exception() for work in self._works]), None)

    def _watch(self, end: Finish) -> None:
        works = iter(self._works)

        def watch_next() -> None:
            for work in works:
                if not work.is_completed():
                    work._watch(watch_next)
                    return
            end()

        watch_next()


class ListWork(Work):
    """A call by messages. A started one begins with the ranks' agreement that all make this call,
    which the first wait, poll or future checks. The messages of a call that fails are given up:
    they would meet memory that its caller uses again."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        handles: Sequence[_core.Handle[Any]],
        finish: Sequence[Finish],
        deadline: Deadline,
        agreement: tuple[_core.Handle[Any], Finish] | None,
    ) -> None:
        super().__init__(outputs, handles, finish, deadline)
        self._agreement = agreement

    def fail(self, error: Exception) -> bool:
        """Also gives the messages up."""
        is_first = super().fail(error)
        if is_first:
            self.cancel()
        return is_first

    def cancel(self) -> None:
        """Gives up what has not been sent or received."""
        cancel(self._handles)

    def _wait_for_all(self, end: float | None) -> None:
        # Another thread may take it away, once it has come.
        agreement = self._agreement
        if agreement is not None:
            self._wait_for(agreement[0], end, None)
            self._agree()
        if self._error is None:
            super()._wait_for_all(end)

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._agree() and super().is_completed()

    def _agree(self) -> bool:
        """Whether the agreement has come."""
        agreement = self._agreement
        if agreement is None:
            return True
        handle, check = agreement
        if not handle.done():
            return False
        try:
            handle.wait()
            check()
        except Error as error:
            self.fail(error)
        self._agreement = None
        return True

    def _watch(self, end: Finish) -> None:
        def agreed() -> None:
            self._agree()
            if self._error is None:
                super(ListWork, self)._watch(end)
            else:
                end()

        agreement = self._agreement
        watcher.watch([agreement[0]] if agreement else [], agreed)
