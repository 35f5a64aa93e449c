"""The driver of Gloo in PyTorch: gloo.py RANKS STORE_FILE, then the arguments of loop.h, whose loop
this is. The ranks are forked once torch is imported."""

import ctypes
import os
import signal
import sys
import time

# Functions of CUDA that are not called need not be there.
sys.setdlopenflags(os.RTLD_LAZY)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

BATCHES, WARM_UP_CALLS, MIN_BATCH_SECONDS = 3, 5, 0.004
RANKS, STORE, COLLECTIVE, BUDGET, REFILL, *SIZES = sys.argv[1:]
TIMED_ALONE = REFILL == "1" or COLLECTIVE in ("broadcast", "reduce")
RANKS, IN_PLACE = int(RANKS), COLLECTIVE in ("all_reduce", "broadcast", "reduce")
CALL = {
    "all_reduce": lambda given, result: dist.all_reduce(result),
    "all_gather": lambda given, result: dist.all_gather_into_tensor(result, given),
    "reduce_scatter": lambda given, result: dist.reduce_scatter_tensor(result, given),
    "broadcast": lambda given, result: dist.broadcast(result, 0),
    "reduce": lambda given, result: dist.reduce(result, 0),
    "all_to_all": lambda given, result: dist.all_to_all_single(result, given),
}[COLLECTIVE]


def pattern(first, count):
    """at % 7 for each element from the first one on."""
    return ((torch.arange(7) + first) % 7).float().repeat(count // 7 + 1)[:count]


def values(rank, first, count):
    return pattern(first, count).add_(rank + 1)


def wanted(rank, count):
    """What a rank must get, as in loop.h."""
    part, first = count, 0
    if COLLECTIVE in ("reduce_scatter", "all_to_all"):
        part, first = count // RANKS, rank * (count // RANKS)
    if COLLECTIVE == "broadcast":
        return values(0, 0, count)
    if COLLECTIVE in ("all_gather", "all_to_all"):
        return torch.cat([values(other, first, part) for other in range(RANKS)])
    return pattern(first, part).mul_(RANKS).add_(RANKS * (RANKS + 1) // 2)


def batch(given, result, fresh, calls):
    """The seconds that these calls took the slowest rank."""
    dist.barrier()
    seconds, start = 0.0, time.perf_counter()
    for _ in range(calls):
        if REFILL == "1":
            given.copy_(fresh)
        if TIMED_ALONE:
            dist.barrier()
            start = time.perf_counter()
        CALL(given, result)
        if TIMED_ALONE:
            seconds += time.perf_counter() - start
    seconds = torch.tensor([seconds or time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def measure(rank, size):
    part = max(1, size // 4 // (1 if IN_PLACE else RANKS))
    count = part if IN_PLACE or COLLECTIVE == "all_gather" else part * RANKS
    right, fresh = wanted(rank, count), values(rank, 0, count)
    result = torch.zeros(len(right))
    given = result if IN_PLACE else torch.zeros(count)
    given.copy_(fresh)
    CALL(given, result)
    if (COLLECTIVE != "reduce" or rank == 0) and not torch.equal(result, right):
        print(f"{COLLECTIVE}: rank {rank} has a wrong result of {size} bytes", file=sys.stderr, flush=True)
        # The end of the parent ends all ranks, before others report the loss of this one.
        os.kill(os.getppid(), signal.SIGKILL)
    del right
    buffers, calls = (given, result, fresh), 1
    batch(*buffers, WARM_UP_CALLS)
    while (seconds := batch(*buffers, calls)) < MIN_BATCH_SECONDS and calls < 1 << 20:
        calls *= 4
    calls = min(max(1, int(float(BUDGET) / BATCHES / (seconds / calls))), 1_000_000)
    for _ in range(BATCHES):
        us = batch(*buffers, calls) / calls * 1e6
        if rank == 0:
            print(size, f"{us:.4f}", flush=True)


for rank in range(RANKS):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{STORE}", rank=rank, world_size=RANKS)
        for size in map(int, SIZES):
            measure(rank, size)
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)
for _ in range(RANKS):
    if os.wait()[1] != 0:
        sys.exit(1)
