"""Four ranks that are threads: CuPy's NCCL module sums NumPy arrays by libnccl.so.2."""

import threading

import numpy as np
from cupy_backends.cuda.libs import nccl

RANKS = 4
ID = nccl.get_unique_id()


def rank_of_the_job(rank: int) -> None:
    comm = nccl.NcclCommunicator(RANKS, ID, rank)
    numbers = np.full(1000, rank + 1, np.float32)
    address = numbers.ctypes.data
    comm.allReduce(address, address, numbers.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
    print(f"rank {comm.rank_id()} of {comm.size()}: {numbers[-1]}\n", end="", flush=True)
    comm.destroy()


threads = [threading.Thread(target=rank_of_the_job, args=(rank,)) for rank in range(RANKS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
