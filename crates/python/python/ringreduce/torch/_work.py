"""Calls under way as PyTorch's `Work`, and the thread that ends their futures."""

from __future__ import annotations

import itertools
import select
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from .. import _core
from ._profile import recorded
from ._tensors import Finish


class Work(dist.Work):
    """A call: started ones have handles. Those that have ended have none."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        handles: Sequence[_core.Handle[Any]] = (),
        finish: Sequence[Finish] = (),
    ) -> None:
        super().__init__()
        self._outputs = list(outputs)
        self.handles = list(handles)
        self._finish = list(finish)
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
                    handle.wait(seconds or None)
        self._end()
        return True

    def _end(self) -> None:
        """Brings the results to their tensors, once."""
        with self._lock:
            if self._error:
                raise self._error
            try:
                for handle in self.handles:
                    status = handle.wait()
                    self._source = getattr(status, "rank", self._source)
                for finish in self._finish:
                    finish()
            except Exception as error:
                self._error = error
                raise
            finally:
                self.handles, self._finish = [], []

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if not all(handle.done() for handle in list(self.handles)):
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
        self._end()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors that the call wrote to."""
        if self._future is None:
            ended: torch.futures.Future[Any] = torch.futures.Future()
            self._future = ended.then(lambda _: self._value())
            _watcher.watch(list(self.handles), ended)
        return self._future

    def _value(self) -> list[torch.Tensor]:
        # What a callback raises is what C++ sees as the future's error.
        self._end()
        return self._outputs


class _Watcher:
    """A thread that ends the futures of calls which have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notifier: _core.Notifier | None = None
        self._tokens = itertools.count()
        self._waiting: dict[int, tuple[list[_core.Handle[Any]], Any]] = {}

    def watch(self, handles: list[_core.Handle[Any]], future: Any) -> None:
        """Has the future end after the last of the handles."""
        while handles and handles[-1].done():
            handles.pop()
        if not handles:
            future.set_result(None)
            return
        with self._lock:
            if self._notifier is None:
                self._notifier = _core.Notifier()
                threading.Thread(target=self._run, name="ring-futures", daemon=True).start()
            token = next(self._tokens)
            self._waiting[token] = (handles, future)
        handles[-1]._notify(self._notifier, token)

    def _run(self) -> None:
        notifier = self._notifier
        assert notifier is not None
        poll = select.poll()
        poll.register(notifier.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for token in notifier.take():
                found = self._waiting.pop(token, None)
                if found is not None:
                    self.watch(*found)


_watcher = _Watcher()
