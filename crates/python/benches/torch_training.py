"""Times of a step of PyTorch's DDP by ringreduce and by Gloo, in the same processes: a table.

python -m ringreduce.run -n 2 crates/python/benches/torch_training.py

Milliseconds, the best of several means, of the slowest rank; and the share that is communication:
what a step takes beyond one without DDP.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import ringreduce.torch
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ROUNDS = 8, 6


def lenet() -> tuple[Any, torch.Tensor]:
    """`ringtrain --model lenet`, and a rank's part of a batch."""
    layers = [
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    ]
    return nn.Sequential(*layers), torch.rand(32, 1, 28, 28)


def dense() -> tuple[Any, torch.Tensor]:
    """`ringtrain --model dense`."""
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), torch.rand(32, 784)


def mlp() -> tuple[Any, torch.Tensor]:
    """Ten million parameters in three layers."""
    sizes = [784, 2304, 2304, 1280]
    layers = [nn.Sequential(nn.Linear(*it), nn.ReLU()) for it in itertools.pairwise(sizes)]
    return nn.Sequential(*layers, nn.Linear(1280, 10)), torch.rand(16, 784)


def stepper(model: Any, batch: torch.Tensor) -> Callable[[], None]:
    """A training step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    target = torch.zeros(len(batch), dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()

    return step


def main() -> None:
    """Measures, and prints the table at rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"ringreduce": dist.new_group(backend="ringreduce"), "gloo": dist.group.WORLD}
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: ms a step, and the share of communication")
        print(f"{'model':8}{'parameters':>12}{'alone':>9}{'ringreduce':>17}{'Gloo':>17}")
    for make in (lenet, dense, mlp):
        model, batch = make()
        count = sum(parameter.numel() for parameter in model.parameters())
        steps = {"alone": stepper(model, batch)}
        for name, group in groups.items():
            model, _ = make()
            steps[name] = stepper(DistributedDataParallel(model, process_group=group), batch)
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(ROUNDS):
            for name, step in steps.items():
                step()
                dist.barrier()
                began = time.perf_counter()
                for _ in range(STEPS):
                    step()
                slowest = torch.tensor([(time.perf_counter() - began) / STEPS])
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                best[name] = min(best[name], 1e3 * slowest.item())
        if dist.get_rank() == 0:
            alone = best.pop("alone")
            cells = [f"{it:>9.2f} ({max(0, 1 - alone / it):>4.0%})" for it in best.values()]
            print(f"{make.__name__:8}{count:>12}{alone:>9.2f} {' '.join(cells)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
