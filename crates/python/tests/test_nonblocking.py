"""Started calls: waiting, polling, awaiting, forgetting."""

import asyncio
import gc
import time

import numpy as np
import pytest
import ringreduce as rr
from conftest import Run, on_threads


def test_every_started_call_gives_its_result() -> None:
    def body(comm: rr.Communicator) -> None:
        start, rank = comm.nonblocking, comm.rank
        out = np.zeros(2)
        handles = [
            start.all_reduce(np.full(2, 1.0)),
            start.all_gather(np.full(1, 2.0), out),
            start.broadcast(np.full(1, float(rank)), root=1),
            start.scan(np.ones(1)),
        ]
        results = [handle.wait().tolist() for handle in handles]
        assert results == [[2, 2], [2, 2], [1], [rank + 1]]
        assert all(handle.done() for handle in handles)
        assert handles[1].wait() is out
        assert start.barrier().wait() is None

    on_threads(2, body)


def test_a_handle_may_be_dropped() -> None:
    def body(comm: rr.Communicator) -> None:
        for _ in range(20):
            comm.nonblocking.all_reduce(np.ones(10_000))
        gc.collect()
        assert comm.all_reduce(np.ones(1)).tolist() == [2]

    on_threads(2, body)


def test_a_wait_may_end_before_its_call() -> None:
    def body(comm: rr.Communicator) -> None:
        if comm.rank == 0:
            handle = comm.nonblocking.all_reduce(array := np.ones(1))
            with pytest.raises(rr.TimeoutError, match="it goes on") as caught:
                handle.wait(0.05)
            assert isinstance(caught.value, TimeoutError)
            assert not handle.done()
            comm.send(np.ones(1), 1)
            assert handle.wait() is array and array[0] == 2
        else:
            comm.recv(np.ones(1))
            comm.all_reduce(np.ones(1))

    on_threads(2, body)


def test_a_failure_is_raised_by_each_wait() -> None:
    def body(comm: rr.Communicator) -> None:
        handle = comm.nonblocking.all_reduce(np.ones(1 + comm.rank))
        for _ in range(2):
            with pytest.raises(rr.MismatchError) as caught:
                handle.wait()
        assert caught.value.rank == comm.rank and caught.value.peer == 1 - comm.rank

    on_threads(2, body)


def test_an_event_loop_goes_on_meanwhile() -> None:
    async def run(comm: rr.Communicator) -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        counting = asyncio.create_task(count())
        if comm.rank == 1:
            await asyncio.sleep(0.1)
        arrays = [np.full(3, float(n)) for n in range(4)]
        results = await asyncio.gather(*(comm.nonblocking.all_reduce(it) for it in arrays))
        assert [it.tolist() for it in results] == [[2.0 * n] * 3 for n in range(4)]
        recv = comm.nonblocking.recv(np.zeros(1), tag=4)
        await asyncio.sleep(0.02)
        await comm.nonblocking.send(np.ones(1), 1 - comm.rank, tag=4)
        assert (await recv).rank == 1 - comm.rank
        counting.cancel()
        return turns

    turns = on_threads(2, lambda comm: asyncio.run(run(comm)))
    assert min(turns) > 5, turns


def test_a_cancelled_wait_leaves_its_call_alone() -> None:
    async def run(comm: rr.Communicator) -> None:
        handle = comm.nonblocking.all_reduce(np.ones(1))
        if comm.rank == 0:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.ensure_future(_result(handle)), 0.02)
        assert (await handle).tolist() == [2]

    def body(comm: rr.Communicator) -> None:
        if comm.rank == 1:
            time.sleep(0.1)
        asyncio.run(run(comm))

    on_threads(2, body)


def test_all_who_wait_for_a_call_are_woken() -> None:
    async def run(comm: rr.Communicator) -> None:
        if comm.rank == 1:
            # Not before the other rank waits in each of its ways.
            await comm.nonblocking.recv(np.zeros(1))
        handle = comm.nonblocking.all_reduce(np.ones(1))
        if comm.rank == 1:
            await handle
            return
        awaiting = asyncio.ensure_future(_result(handle))
        await asyncio.sleep(0)
        assert not handle.done()
        waiting = asyncio.get_running_loop().run_in_executor(None, handle.wait, 10)
        with pytest.raises(rr.TimeoutError):
            handle.wait(timeout=0.05)
        comm.send(np.zeros(1), 1)
        assert (await asyncio.wait_for(awaiting, 10)).tolist() == [2]
        assert (await asyncio.wait_for(waiting, 10)).tolist() == [2]

    on_threads(2, lambda comm: asyncio.run(run(comm)))


async def _result(handle: "rr.Handle[np.ndarray]") -> np.ndarray:
    return await handle


def test_a_thousand_awaited_calls_need_no_thread_each(job: Run) -> None:
    job(
        2,
        """
        async def main(comm):
            arrays = [np.ones(1) for _ in range(1000)]
            handles = [comm.nonblocking.all_reduce(it) for it in arrays]
            threads = len(os.listdir("/proc/self/task"))
            assert threads < 12, threads
            await asyncio.gather(*handles)
            assert all(it[0] == 2 for it in arrays)

        comm = rr.init()
        asyncio.run(main(comm))
        """,
    )
