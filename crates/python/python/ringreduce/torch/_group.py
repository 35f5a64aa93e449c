"""PyTorch's Python methods of process groups return our `Work` itself.

A group calls a backend through C++, which hands on `wait` and `get_future` of a work that was made
in Python and nothing else: `is_completed` would stay False for ever. C++ also takes copies of lazy
conjugates and negatives on the way, and would leave results in those.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import distributed as dist

from ._tensors import dense
from ._work import Work

_METHODS = """
allgather allgather_coalesced all_gather_single all_gather_single_coalesced allreduce
allreduce_coalesced all_to_all_single alltoall barrier broadcast gather reduce reduce_scatter
reduce_scatter_single reduce_scatter_single_coalesced recv recv_anysource scatter send
_allgather_base _reduce_scatter_base allgather_into_tensor_coalesced alltoall_base
reduce_scatter_tensor_coalesced _end_coalescing
""".split()


class _Latest(threading.local):
    is_wanted = False
    work: Work | None = None


_latest = _Latest()


def note_latest(work: Work) -> Work:
    """Notes the work that a backend of this library has made last on this thread."""
    if _latest.is_wanted:
        _latest.work = work
    return work


def _returning_ours(method: Callable[..., Any]) -> Callable[..., Any]:
    writes = method.__name__ != "send"

    @functools.wraps(method)
    def call(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        copies = _Copies()
        args = tuple(copies.plain(it, writes and at == 0) for at, it in enumerate(args))
        kwargs = {
            name: copies.plain(it, writes and name.startswith(("output", "tensor")))
            for name, it in kwargs.items()
        }
        _latest.is_wanted = True
        try:
            theirs = method(group, *args, **kwargs)
        finally:
            ours, _latest.work = _latest.work, None
            _latest.is_wanted = False
        if ours is None:
            return theirs
        copies.bring_back(ours)
        return ours

    return call


class _Copies:
    """Plain copies of the lazy conjugates and negatives among a call's arguments."""

    def __init__(self) -> None:
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def plain(self, argument: Any, is_written: bool) -> Any:
        """The argument, or for a tensor or list with such tensors one with copies of them."""
        if isinstance(argument, list | tuple):
            made = [self.plain(item, is_written) for item in argument]
            is_same = all(new is old for new, old in zip(made, argument, strict=True))
            return argument if is_same else made
        if not isinstance(argument, torch.Tensor) or not (argument.is_conj() or argument.is_neg()):
            return argument
        copy = dense("", argument)
        if is_written:
            self._written.append((argument, copy))
        return copy

    def bring_back(self, work: Work) -> None:
        """Has the end of a call write its results to the tensors that were given."""
        if self._written:
            work.replace_outputs(self._written)


def _splitting(method: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's C++ takes no None of a backend in Python, which is the answer to a rank that is in
    no part of a group that is split."""

    @functools.wraps(method)
    def split_group(group: dist.ProcessGroup, ranks: list[int], *args: Any, **kwargs: Any) -> Any:
        from ._calls import Calls

        backends = ((device, group._get_backend(device)) for device in group._device_types)
        for device, backend in backends:
            if isinstance(backend, Calls) and backend.rank() not in ranks:
                backend.perform_nocolor_split(device)
                return None
        part = method(group, ranks, *args, **kwargs)
        if part is not None:
            _name_communicators(part)
        return part

    return split_group


def _name_communicators(group: dist.ProcessGroup) -> None:
    """Names a group's communicators by its description, or by its name if it has none."""
    from ._calls import Calls

    is_described = group.group_desc not in ("", "undefined")
    name = group.group_desc if is_described else group.group_name
    for device in group._device_types:
        # Groups of other backends pass here too, and need not have one for each device.
        with suppress(RuntimeError):
            backend = group._get_backend(device)
            if isinstance(backend, Calls):
                backend.name_as(name)


def _describing(method: Callable[..., None]) -> Callable[..., None]:
    """PyTorch names a group and then describes it, after it has made its backend."""

    @functools.wraps(method)
    def _set_group_desc(group: dist.ProcessGroup, description: str) -> None:
        method(group, description)
        _name_communicators(group)

    return _set_group_desc


def install() -> None:
    """Wraps the methods, which stay as they are for the groups of other backends."""
    if not hasattr(dist.ProcessGroup.split_group, "__wrapped__"):
        dist.ProcessGroup.split_group = _splitting(dist.ProcessGroup.split_group)
        dist.ProcessGroup._set_group_desc = _describing(dist.ProcessGroup._set_group_desc)
    for name in _METHODS:
        method = getattr(dist.ProcessGroup, name, None)
        if method is not None and not hasattr(method, "__wrapped__"):
            setattr(dist.ProcessGroup, name, _returning_ours(method))
