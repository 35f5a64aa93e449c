"""Calls in the trace of PyTorch's profiler: each call or start, and each wait for a started one.

PyTorch gives Python no event that ends on another thread, so the time that a started call runs
beside the program has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

#: Whether a profiler records events.
is_profiled = torch.autograd._profiler_enabled

_NOTHING = contextlib.nullcontext()


def event(name: str, inputs: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[object]:
    """An event with the shapes of the tensors, for as long as it is open."""
    opened: contextlib.AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(
        f"ringreduce:{name.removesuffix('_v')}", list(inputs)
    )
    return opened


def recorded(
    name: str, inputs: Sequence[torch.Tensor]
) -> contextlib.AbstractContextManager[object]:
    """As `event`, if a profiler records it."""
    return event(name, inputs) if is_profiled() else _NOTHING
