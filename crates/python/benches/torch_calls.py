"""Times of PyTorch's collectives by ringreduce and by Gloo, in the same processes: a table.

python -m ringreduce.run -n 2 crates/python/benches/torch_calls.py [--json FILE] [OPERATION...]

Times are in microseconds: for each length the best and the median of several means, of the slowest
rank. The backends take turns.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import ringreduce.torch
import torch
from torch import distributed as dist

SIZES = [4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
Call = Callable[[], object]


def operations(group: Any, size: int) -> dict[str, Call]:
    """The calls by their names, each for `size` bytes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = max(1, size // 4)
    each = max(1, count // ranks)
    tensor, part, whole = torch.ones(count), torch.ones(each), torch.ones(each * ranks)
    other = torch.ones(each * ranks)
    parts = list(torch.ones(ranks, each).unbind())
    at_root = parts if rank == 0 else None
    separate = [torch.ones(each) for _ in range(ranks)]
    separate_at_root = separate if rank == 0 else None
    is_ours = group is not None and dist.get_backend(group) == "ringreduce"
    registered = ringreduce.torch.empty(count, group=group) if is_ours else torch.zeros(count)
    rows = torch.arange(max(1, count // 32)).view(1, -1)
    values, shape = torch.ones(rows.shape[1], 16), (rows.shape[1], 16)
    sparse = torch.sparse_coo_tensor(rows, values, shape, check_invariants=False)

    def ping_pong() -> None:
        if rank == 0:
            dist.send(tensor, 1, group)
            dist.recv(tensor, 1, group)
        elif rank == 1:
            dist.recv(tensor, 0, group)
            dist.send(tensor, 0, group)

    return {
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "all_reduce, registered": lambda: dist.all_reduce(registered, group=group),
        "broadcast": lambda: dist.broadcast(tensor, 0, group),
        "reduce": lambda: dist.reduce(tensor, 0, group=group),
        "all_gather": lambda: dist.all_gather(parts, part, group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part, group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "gather": lambda: dist.gather(part, at_root, 0, group),
        "scatter": lambda: dist.scatter(part, at_root, 0, group),
        "all_gather, separate": lambda: dist.all_gather(separate, part, group),
        "reduce_scatter, separate": lambda: dist.reduce_scatter(part, separate, group=group),
        "gather, separate": lambda: dist.gather(part, separate_at_root, 0, group),
        "scatter, separate": lambda: dist.scatter(part, separate_at_root, 0, group),
        "all_reduce, sparse": lambda: dist.all_reduce(sparse.clone(), group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(other, whole, group=group),
        "ping_pong": ping_pong,
        "barrier": lambda: dist.barrier(group),
    }


def mean(call: Call, count: int) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def measure(groups: dict[str, Any], name: str, size: int) -> dict[str, tuple[float, float]]:
    """Best and median microseconds of a call, by backend."""
    calls = {backend: operations(group, size)[name] for backend, group in groups.items()}
    count = int(max(3, min(400, (16 << 20) / (size + 32768))))
    times: dict[str, list[float]] = {backend: [] for backend in groups}
    for call in calls.values():
        mean(call, 2 + count // 4)
    for _ in range(5):
        for backend, call in calls.items():
            slowest = torch.tensor([mean(call, count)])
            dist.all_reduce(slowest, dist.ReduceOp.MAX, groups["gloo"])
            times[backend].append(1e6 * slowest.item())
    return {backend: (min(each), median(each)) for backend, each in times.items()}


def main() -> None:
    """Measures, and prints the table at rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("operations", nargs="*")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"ringreduce": dist.new_group(backend="ringreduce"), "gloo": dist.group.WORLD}
    rows = []
    if dist.get_rank() == 0:
        backends = "".join(f"{it:>12}{'median':>10}" for it in ("ringreduce", "Gloo"))
        head = f"{'operation':26}{'bytes':>10}{backends}{'ratio':>8}{'median':>8}"
        print(f"{dist.get_world_size()} ranks, microseconds\n{head}", flush=True)
    for name in asked.operations or operations(None, 4):
        for size in [4] if name == "barrier" else SIZES:
            times = measure(groups, name, size)
            rows.append({"operation": name, "bytes": size, **times})
            if dist.get_rank() == 0:
                ours, theirs = times["ringreduce"], times["gloo"]
                cells = [f"{best:>12.1f}{middle:>10.1f}" for best, middle in (ours, theirs)]
                cells += [f"{g / r:>8.2f}" for g, r in zip(theirs, ours, strict=True)]
                print(f"{name:26}{size:>10}{''.join(cells)}", flush=True)
    if asked.json and dist.get_rank() == 0:
        with open(asked.json, "w") as file:
            json.dump(rows, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
