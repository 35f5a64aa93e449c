"""Calls in the trace of PyTorch's profiler: each call or start, and each wait for a started one.

PyTorch gives Python no event that ends on another thread, so the time that a started call runs
beside the program has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

_NOTHING = contextlib.nullcontext()


def recorded(
    name: str, inputs: Sequence[torch.Tensor]
) -> contextlib.AbstractContextManager[object]:
    """An event with the shapes of the tensors, if somebody looks."""
    if not torch.autograd._profiler_enabled():
        return _NOTHING
    event: contextlib.AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(
        f"ringreduce:{name}", list(inputs)
    )
    return event
