"""The driver of Gloo in PyTorch: gloo.py RANKS STORE_FILE, then the arguments of loop.h, whose loop
this is. The ranks are forked once torch is imported."""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

BATCHES, WARM_UP_CALLS, MIN_BATCH_SECONDS = 3, 5, 0.004


class Rank:
    def __init__(self, rank, ranks, store, collective, budget, refill, sizes):
        self.rank, self.ranks, self.collective = rank, ranks, collective
        self.budget, self.refill, self.sizes = float(budget), refill == "1", map(int, sizes)
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)

    def call(self, given, result):
        match self.collective:
            case "all_reduce":
                dist.all_reduce(result)
            case "all_gather":
                dist.all_gather_into_tensor(result, given)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(result, given)
            case "broadcast":
                dist.broadcast(result, 0)
            case "reduce":
                dist.reduce(result, 0)
            case "all_to_all":
                dist.all_to_all_single(result, given)

    def values(self, rank, first, count):
        return (torch.arange(first, first + count) % 7 + rank + 1).float()

    def right(self, count):
        """What a rank must get, as in loop.h."""
        part, own = count // self.ranks, self.rank * (count // self.ranks)
        everyone = range(self.ranks)
        match self.collective:
            case "all_reduce" | "reduce":
                return sum(self.values(rank, 0, count) for rank in everyone)
            case "reduce_scatter":
                return sum(self.values(rank, own, part) for rank in everyone)
            case "all_gather":
                return torch.cat([self.values(rank, 0, count) for rank in everyone])
            case "broadcast":
                return self.values(0, 0, count)
            case "all_to_all":
                return torch.cat([self.values(rank, own, part) for rank in everyone])

    def batch(self, given, result, calls):
        """The seconds that these calls took this rank."""
        seconds, fresh = 0.0, self.fresh
        dist.barrier()
        if not self.refill:
            start = time.perf_counter()
            for _ in range(calls):
                self.call(given, result)
            return time.perf_counter() - start
        for _ in range(calls):
            given.copy_(fresh)
            dist.barrier()
            start = time.perf_counter()
            self.call(given, result)
            seconds += time.perf_counter() - start
        return seconds

    def largest(self, seconds):
        all_ranks = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(all_ranks, op=dist.ReduceOp.MAX)
        return all_ranks.item()

    def measure(self, size):
        in_place = self.collective in ("all_reduce", "broadcast", "reduce")
        part = max(1, size // 4 // (1 if in_place else self.ranks))
        count = part if in_place or self.collective == "all_gather" else part * self.ranks
        right = self.right(count)
        result = torch.zeros(len(right))
        given = result if in_place else torch.zeros(count)
        self.fresh = self.values(self.rank, 0, count)
        given.copy_(self.fresh)
        self.call(given, result)
        is_result = self.collective != "reduce" or self.rank == 0
        if is_result and not torch.equal(result, right):
            sys.exit(f"{self.collective}: rank {self.rank} has a wrong result of {size} bytes")
        self.batch(given, result, WARM_UP_CALLS)
        calls = 1
        while True:
            seconds = self.largest(self.batch(given, result, calls))
            if seconds >= MIN_BATCH_SECONDS or calls >= 1 << 20:
                break
            calls *= 4
        calls = min(max(1, int(self.budget / BATCHES / (seconds / calls))), 1_000_000)
        for _ in range(BATCHES):
            us = self.largest(self.batch(given, result, calls)) / calls * 1e6
            if self.rank == 0:
                print(size, f"{us:.4f}", flush=True)


def main():
    ranks = int(sys.argv[1])
    for rank in range(ranks):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            one = Rank(rank, ranks, *sys.argv[2:6], sys.argv[6:])
            for size in one.sizes:
                one.measure(size)
            dist.barrier()
            sys.stdout.flush()
            os._exit(0)
    for _ in range(ranks):
        if os.wait()[1] != 0:
            sys.exit(1)


main()
