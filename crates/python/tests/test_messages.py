"""Messages by rank and tag."""

import threading

import numpy as np
import pytest
import ringreduce as rr
from conftest import on_threads


def test_from_any_rank_with_any_tag() -> None:
    def body(comm: rr.Communicator) -> None:
        if comm.rank > 0:
            comm.send(np.array([comm.rank]), 0, tag=comm.rank + 5)
            return comm.barrier()
        value, seen = np.zeros(1, int), set()
        for _ in range(2):
            status = comm.recv(value)
            assert (status.rank, status.tag, status.bytes) == (value[0], value[0] + 5, 8)
            seen.add(status.rank)
        assert seen == {1, 2} and comm.try_probe() is None
        # A probe where all others have left is an error.
        comm.barrier()

    on_threads(3, body)


def test_probe_tells_what_to_receive() -> None:
    def body(comm: rr.Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.arange(5, dtype=np.float32), 1, tag=3)
            return
        found = comm.probe(tag=3)
        assert (found.rank, found.dtype, found.bytes) == (0, "float", 20)
        assert "tag=3" in repr(found)
        recv = np.empty(found.bytes // 4, np.float32)
        comm.recv(recv, found.rank, found.tag)
        assert recv.tolist() == [0, 1, 2, 3, 4]

    on_threads(2, body)


def test_both_ways_at_once() -> None:
    def body(comm: rr.Communicator) -> None:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        recv = np.zeros(100_000)
        comm.send_recv(np.full(100_000, float(comm.rank)), right, recv, left)
        assert (recv == left).all()
        comm.send_object({"from": comm.rank}, right)
        assert comm.recv_object(left) == {"from": left}

    on_threads(3, body)


def test_threads_do_not_take_each_others_objects() -> None:
    """A thread that has seen how long a message is gets that one."""
    count = 300

    def body(comm: rr.Communicator) -> None:
        if comm.rank == 0:
            for number in range(2 * count):
                comm.send_object([number] * (number % 7 * 400), 1)
            return
        failures: list[BaseException] = []

        def receive() -> None:
            try:
                for _ in range(count):
                    comm.recv_object()
            except BaseException as failure:
                failures.append(failure)
                comm.monitor().abort()

        threads = [threading.Thread(target=receive) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures

    on_threads(2, body)


def test_started_messages() -> None:
    def body(comm: rr.Communicator) -> None:
        other, recv = 1 - comm.rank, np.zeros(100_000)
        theirs = comm.nonblocking.recv(recv, other)
        mine = comm.nonblocking.send(np.full(100_000, float(comm.rank)), other)
        assert theirs.wait().rank == other and theirs.done() and (recv == other).all()
        mine.wait(5)
        never = comm.nonblocking.recv(np.zeros(1), other, tag=77)
        with pytest.raises(TimeoutError, match="wait"):
            never.wait(0.05)
        assert not never.done()
        comm.barrier()
        comm.send(np.ones(1), other, tag=77)
        assert never.wait().tag == 77

    on_threads(2, body)


def test_messages_that_do_not_fit() -> None:
    def body(comm: rr.Communicator) -> None:
        other = 1 - comm.rank
        with pytest.raises(rr.ArgumentError, match="to is 7"):
            comm.send(np.ones(1), 7)
        with pytest.raises(rr.ArgumentError, match="recv is read-only"):
            comm.recv(b"text", other)
        comm.barrier()
        handle = comm.nonblocking.send(np.ones(2), other)
        with pytest.raises(rr.Error):
            comm.recv(np.ones(3), other)
        del handle
        comm.barrier()

    on_threads(2, body)
