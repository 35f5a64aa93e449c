"""What an array may be, and what is refused, by the name of the argument."""

import array as stdlib
import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import ringreduce as rr
from conftest import on_threads


@pytest.fixture(scope="module")
def comm() -> rr.Communicator:
    return rr.local(1)[0]


class ByInterface:
    """An array that shows itself by one protocol alone."""

    def __init__(self, array: Any) -> None:
        self.__array_interface__ = array.__array_interface__
        self.array = array


class ByDLPack:
    """As above, by another one."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__ = array.__dlpack__


@pytest.mark.parametrize("protocol", [ByInterface, ByDLPack])
def test_protocols_lead_to_the_same_memory(protocol: Any) -> None:
    def body(comm: rr.Communicator) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        comm.all_reduce(protocol(array))
        assert array.ravel().tolist() == [0, 2, 4, 6, 8, 10]

    on_threads(2, body)


def test_older_dlpack(comm: rr.Communicator) -> None:
    class Old:
        array = np.ones(3)

        def __dlpack__(self) -> Any:
            return self.array.__dlpack__()

    assert comm.all_gather(Old(), out := np.zeros(3)) is out and out.tolist() == [1, 1, 1]


def test_buffers_that_are_no_arrays() -> None:
    def body(comm: rr.Communicator) -> None:
        data = bytearray([comm.rank, 1])
        assert comm.all_reduce(data) == bytearray([1, 2])
        doubles = stdlib.array("d", [1.5])
        assert comm.all_reduce(doubles)[0] == 3.0
        numbers = (ctypes.c_int32 * 2)(1, 2)
        comm.all_reduce(numbers)
        assert list(numbers) == [2, 4]
        comm.all_reduce(memoryview(data)[1:])
        assert data == bytearray([1, 4])

    on_threads(2, body)


READ_ONLY = np.ones(4)
READ_ONLY.flags.writeable = False
MATRIX = np.ones((4, 4))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (MATRIX[:, 1], "send is not a contiguous"),
        (MATRIX[::2], "send is not a contiguous"),
        (np.asfortranarray(MATRIX), "send is not a contiguous"),
        (np.ones(9, ml_dtypes.bfloat16)[::2], "send is not a contiguous"),
        (ByDLPack(MATRIX[:, 1]), "send is not a contiguous"),
        (READ_ONLY, "send is read-only"),
        (b"bytes", "send is read-only"),
        (np.ones(2, ">f4"), "send is an array of the format"),
        (np.array(["a"]), "send is an array of the format"),
        (np.ones(2, "datetime64[s]"), "send is an array of"),
        (np.array([None]), "send is an array of the format"),
        (np.ones(2, np.longdouble), "send is an array of the format"),
        (np.ones(2, ml_dtypes.float8_e4m3b11fnuz), "send is an array of"),
    ],
)
def test_arrays_that_are_refused(comm: rr.Communicator, array: Any, message: str) -> None:
    for calls in (comm, comm.nonblocking):
        with pytest.raises(rr.ArgumentError, match=message) as caught:
            calls.all_reduce(array)
        assert caught.value.argument == "send" and caught.value.call == "all_reduce"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("thing", [None, 3, "text", [1.0, 2.0]])
def test_things_that_are_no_arrays(comm: rr.Communicator, thing: Any) -> None:
    with pytest.raises((TypeError, rr.ArgumentError), match="send"):
        comm.all_reduce(thing)


def test_pairs_that_are_refused(comm: rr.Communicator) -> None:
    send = np.ones(4)
    pairs: list[tuple[Any, str]] = [
        (send, "recv is memory that overlaps send"),
        (send[:4], "recv is memory that overlaps send"),
        (np.ones(4, np.float32), "recv is an array of float, expected one of double"),
        (np.ones(5), "recv is 40 bytes long"),
        (READ_ONLY, "recv is read-only"),
    ]
    for recv, message in pairs:
        with pytest.raises(rr.ArgumentError, match=message) as caught:
            comm.all_reduce(send, recv)
        assert caught.value.argument == "recv"


def test_what_is_only_read_may_be_read_only(comm: rr.Communicator) -> None:
    out = np.zeros(4)
    assert comm.all_reduce(READ_ONLY, out).tolist() == [1] * 4
    comm.broadcast(READ_ONLY)


def test_other_arguments_that_are_refused(comm: rr.Communicator) -> None:
    with pytest.raises(rr.ArgumentError, match='op is "mean", expected one of sum'):
        comm.all_reduce(np.ones(1), op="mean")  # type: ignore[call-overload]
    with pytest.raises(rr.ArgumentError, match="root is 1"):
        comm.broadcast(np.ones(1), root=1)
    with pytest.raises(rr.ArgumentError, match="op is avg"):
        comm.scan(np.ones(1), op="avg")
    with pytest.raises(rr.ArgumentError, match="colour is no setting"):
        rr.local(1, colour=1)  # type: ignore[call-arg]
    with pytest.raises(rr.ArgumentError, match="deterministic"):
        rr.local(1, deterministic="yes")  # type: ignore[arg-type]
    with pytest.raises(rr.ArgumentError, match="timeout is -1"):
        rr.local(1, timeout=-1)
    with pytest.raises(rr.ArgumentError, match="n is 0"):
        rr.local(0)


def test_a_resize_waits_for_the_call() -> None:
    """A started call keeps the memory that it works on."""

    def body(comm: rr.Communicator) -> None:
        data = bytearray(8)
        handle = comm.nonblocking.recv(data, 1 - comm.rank, 1)
        with pytest.raises(BufferError):
            data.extend(b"more")
        comm.barrier()
        comm.send(b"12345678", 1 - comm.rank, 1)
        assert handle.wait().bytes == 8 and data == b"12345678"

    on_threads(2, body)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def body(comm: rr.Communicator) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            tensor = torch.full((2, 3), comm.rank + 1, dtype=dtype)
            assert comm.all_reduce(tensor) is tensor
            assert (tensor == 3).all()
        with pytest.raises(rr.ArgumentError, match="send is an array that can't be shared"):
            comm.all_reduce(torch.ones(2, requires_grad=True))
        with pytest.raises(rr.ArgumentError, match="send is not a contiguous"):
            comm.all_reduce(torch.ones(2, 3).t())

    on_threads(2, body)


def test_jax_arrays() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")

    def body(comm: rr.Communicator) -> None:
        send, recv = jax.numpy.ones(3), np.zeros(3, np.float32)
        assert comm.all_reduce(send, recv).tolist() == [2, 2, 2]
        with pytest.raises(rr.ArgumentError, match="send is read-only"):
            comm.all_reduce(send)

    on_threads(2, body)
