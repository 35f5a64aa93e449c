"""Every collective, in place and not, on every type."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import ringreduce as rr
from conftest import on_threads

SIZE = 3

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
OTHERS = ["float16", "float32", "float64", "complex64", "complex128"]
NARROW = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", [*INTEGERS, *OTHERS, *NARROW])
def test_every_type_is_summed(dtype: Any) -> None:
    def body(comm: rr.Communicator) -> None:
        array = np.full(5, comm.rank + 1, dtype)
        assert comm.all_reduce(array) is array
        assert (array == np.full(5, 6, dtype)).all()

    on_threads(SIZE, body)


def test_bool_keeps_to_truth_values() -> None:
    def body(comm: rr.Communicator) -> None:
        array = np.array([comm.rank == 0, False, True])
        comm.all_reduce(array, op="lor")
        assert array.tolist() == [True, False, True]
        with pytest.raises(rr.ArgumentError, match='op is "sum"'):
            comm.all_reduce(array)

    on_threads(SIZE, body)


def test_values_with_an_index() -> None:
    def body(comm: rr.Communicator) -> None:
        array = np.array([(7 - comm.rank, comm.rank)], [("value", "f4"), ("index", "u4")])
        comm.all_reduce(array, op="minloc")
        assert array["value"] == 5 and array["index"] == 2

    on_threads(SIZE, body)


def test_results_go_where_they_are_asked() -> None:
    def body(comm: rr.Communicator) -> None:
        rank, size = comm.rank, comm.size
        ranks = np.arange(size)
        one, all_ = np.array([rank]), np.arange(size) * 10 + rank
        out, outs = np.zeros(1, int), np.zeros(size, int)

        def check(result: Any, *expected: int) -> None:
            assert result.tolist() == list(expected), (rank, result, expected)

        check(comm.all_reduce(one, out), 3)
        check(comm.all_reduce(one.copy(), op="max"), 2)
        check(comm.reduce(one, out if rank == 1 else None, root=1), 3 if rank == 1 else rank)
        check(comm.reduce_scatter(all_, out), 30 * rank + 3)
        part = comm.reduce_scatter(all_.copy())
        check(part[rank : rank + 1], 30 * rank + 3)
        check(comm.all_gather(one, outs), 0, 1, 2)
        check(comm.all_gather(np.where(ranks == rank, rank + 5, 0)), 5, 6, 7)
        check(comm.all_to_all(all_, outs), *(rank * 10 + ranks))
        check(comm.all_to_all(all_.copy()), *(rank * 10 + ranks))
        check(comm.broadcast(one.copy(), root=2), 2)
        gathered = comm.gather(one, outs if rank == 1 else None, root=1)
        check(gathered, *([0, 1, 2] if rank == 1 else [rank]))
        check(comm.scatter(all_ if rank == 0 else None, out), rank * 10)
        check(comm.scan(one.copy()), [0, 1, 3][rank])
        check(comm.scan(one, out, op="max"), rank)
        check(comm.exscan(np.array([1])), max(rank, 1))
        comm.exscan(one, out, op="max")
        comm.barrier()

    on_threads(SIZE, body)


def test_parts_may_differ_in_length() -> None:
    def body(comm: rr.Communicator) -> None:
        rank, counts = comm.rank, [1, 0, 2]
        mine, every = np.full(counts[rank], rank), np.array([0, 2, 2])
        recv = np.zeros(3, int)
        assert comm.all_gather_v(mine, recv, counts).tolist() == every.tolist()
        own = np.zeros(counts[rank], int)
        assert comm.reduce_scatter_v(np.ones(3, int), own, counts).tolist() == [3] * counts[rank]
        comm.gather_v(mine, recv if rank == 0 else None, counts)
        comm.scatter_v(every if rank == 0 else None, own, counts)
        assert own.tolist() == mine.tolist()
        send = np.full(3, rank)
        comm.all_to_all_v(send, [1, 1, 1], recv, [1, 1, 1])
        assert recv.tolist() == [0, 1, 2]

    on_threads(SIZE, body)


def test_several_arrays_are_one_call() -> None:
    def body(comm: rr.Communicator) -> None:
        arrays = [np.ones(n, np.float32) for n in (1, 0, 5)]
        comm.all_reduce_many(arrays, op="sum")
        assert all((it == SIZE).all() for it in arrays)
        with pytest.raises(rr.ArgumentError, match="overlap"):
            comm.all_reduce_many([arrays[2], arrays[2][1:]])
        with pytest.raises(rr.ArgumentError, match="as the first"):
            comm.all_reduce_many([arrays[2], np.ones(1)])
        with pytest.raises(rr.ArgumentError, match="arrays is empty"):
            comm.all_reduce_many([])

    on_threads(SIZE, body)


def test_empty_arrays_are_calls_too() -> None:
    def body(comm: rr.Communicator) -> None:
        for shape in (0, (3, 0), (0, 3)):
            comm.all_reduce(np.zeros(shape))
            comm.all_gather(np.zeros(shape), np.zeros(shape))
        scalar = np.array(2.0)
        assert comm.all_reduce(scalar) == 2 * SIZE

    on_threads(SIZE, body)


def test_subgroups() -> None:
    def body(comm: rr.Communicator) -> None:
        half = comm.split(comm.rank % 2 if comm.rank < 2 else None)
        assert (half is None) == (comm.rank == 2)
        other = comm.duplicate()
        assert other.all_reduce(np.ones(1)).tolist() == [SIZE]
        if half is not None:
            assert half.size == 1 and half.all_reduce(np.ones(1)).tolist() == [1]
        ends = [SIZE - 1, 0]
        assert comm.can_create_group(ends)
        if comm.rank in ends:
            pair = comm.create_group(ends, tag=3, timeout=20)
            assert pair.size == 2 and ends[pair.rank] == comm.rank and pair.timeout == 20
            assert pair.all_reduce(np.ones(1)).tolist() == [2]
        with pytest.raises(rr.ArgumentError, match="different ranks below"):
            comm.create_group([SIZE])

    on_threads(SIZE, body)


def test_objects() -> None:
    def body(comm: rr.Communicator) -> None:
        rank = comm.rank
        assert comm.broadcast_object({"a": [rank]}, root=1) == {"a": [1]}
        assert comm.all_gather_object(rank * "x") == ["", "x", "xx"]
        assert comm.gather_object(rank, root=2) == ([0, 1, 2] if rank == 2 else None)
        with pytest.raises(rr.ObjectError) as caught:
            comm.all_gather_object((lambda: 1) if rank == 1 else rank)
        assert caught.value.peer == 1 and caught.value.call == "all_gather_object"
        comm.barrier()

    on_threads(SIZE, body)


def test_registered_memory_is_a_numpy_array() -> None:
    def body(comm: rr.Communicator) -> None:
        array = comm.empty((100, 200), np.float32)
        assert array.shape == (100, 200) and not array.any()
        array[:] = comm.rank
        comm.all_reduce(array)
        assert (array == 3).all()
        view = memoryview(comm.alloc(10))
        assert len(view) == 10 and not view.readonly

    on_threads(SIZE, body)
