"""How the ranks of a group get the id of their communicator, through PyTorch's store.

torchrun keeps the store when it restarts a job, so a key may be of an earlier attempt. An answer is
under a key that its asker has just made up.

Everybody who reaches the store can read it, and the id has a secret. So a question is a public key,
and the answer is sealed for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch import distributed as dist

from .. import _core


@contextmanager
def shared_id(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Iterator[bytes]:
    """The id, by which the ranks meet inside of the context."""
    if rank > 0:
        key = _core.UniqueIdKey()
        question = key.public.hex()
        store.set(f"ringreduce/{rank}", question)
        store.wait([f"ringreduce/{question}"], timeout)
        yield key.open(bytes.fromhex(store.get(f"ringreduce/{question}").decode()))
        return
    made, ended = _core.unique_id(), threading.Event()
    thread = threading.Thread(target=_answer, args=(store, size, made, ended), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join()


def _answer(store: dist.Store, size: int, made: bytes, ended: threading.Event) -> None:
    """Answers all ranks until they have met: what looks like a question may be an old one."""
    asked: dict[int, bytes] = {}
    pause = 0.001
    while not ended.wait(pause):
        for rank in range(1, size):
            key = f"ringreduce/{rank}"
            question = store.get(key) if store.check([key]) else b""
            if question and asked.get(rank) != question:
                asked[rank] = question
                # What is no question, of whoever can write here, gets no answer.
                with suppress(ValueError):
                    public = question.decode()
                    sealed = _core.seal_unique_id(made, bytes.fromhex(public))
                    store.set(f"ringreduce/{public}", sealed.hex())
        pause = min(pause * 1.5, 0.05)
