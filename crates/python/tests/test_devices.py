"""Arrays on a CUDA device, which a stand-in for the driver plays."""

from pathlib import Path

import pytest
from conftest import ROOT, Run

PROGRAM = """
import ctypes

cuda = ctypes.CDLL("libcuda.so")

def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)

class DeviceArray:
    def __init__(self, array):
        self.array, self.at = array, ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(array.nbytes))
        call("cuMemcpyHtoD_v2", self.at, array.ctypes.data_as(ctypes.c_void_p),
             ctypes.c_size_t(array.nbytes))

    @property
    def __cuda_array_interface__(self):
        interface = dict(self.array.__array_interface__, data=(self.at.value, False), version=3)
        return interface | {"stream": 1}

    def numpy(self):
        out = np.empty_like(self.array)
        call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), self.at,
             ctypes.c_size_t(out.nbytes))
        return out

call("cuInit", 0)
context = ctypes.c_void_p()
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
comm = rr.init()
array = DeviceArray(np.full(1000, comm.rank + 1, np.float32))
try:
    comm.all_reduce(array)
    sys.exit("a call before use_device")
except rr.ArgumentError as error:
    assert "use_device" in str(error), error
try:
    comm.use_device(7)
    sys.exit("there is no such device")
except rr.ArgumentError as error:
    assert error.argument == "ordinal", error
comm.use_device(0)
for calls in (comm, comm.nonblocking):
    array = DeviceArray(np.full(1000, comm.rank + 1, np.float32))
    recv = DeviceArray(np.zeros(2000, np.float32))
    done = calls.all_reduce(array)
    all_ = calls.all_gather(array, recv)
    if calls is not comm:
        assert done.wait() is array and all_.wait() is recv
    comm.synchronize(1)
    assert (array.numpy() == 3).all() and (recv.numpy() == 3).all()
for wrong, why in [((array, np.zeros(1000, np.float32)), "recv is on the host"),
                   ((array, array), "overlaps send")]:
    try:
        comm.all_reduce(*wrong)
        sys.exit(why)
    except rr.ArgumentError as error:
        assert why in str(error), error
try:
    comm.send(array, 1 - comm.rank)
    sys.exit("a message of a device")
except rr.ArgumentError as error:
    assert "send is on a device" in str(error), error
comm.barrier()
"""


def driver() -> Path | None:
    """The newest stand-in that cargo has built."""
    built = (ROOT / "target" / profile / "deps/libcuda.so" for profile in ("debug", "release"))
    found = [path for path in built if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def test_arrays_on_a_device(job: Run) -> None:
    library = driver()
    if library is None:
        pytest.skip("the stand-in driver is not built: cargo build -p cuda-standin")
    job(2, PROGRAM, LD_LIBRARY_PATH=str(library.parent))


def test_no_driver_is_an_error(job: Run) -> None:
    program = """
    comm = rr.init()
    try:
        comm.use_device(0)
    except rr.DeviceError as error:
        sys.exit("libcuda" not in str(error))
    sys.exit("no error")
    """
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a CUDA driver")
    job(1, program)
