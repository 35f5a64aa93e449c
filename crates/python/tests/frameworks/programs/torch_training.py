"""Trains one model by each of PyTorch's ways, against one process with all of the data."""

import copy
import tempfile

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import ringreduce.torch

STEPS, ROWS = 5, 24


class Net(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.mid(torch.tanh(self.up(x)))))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """All rows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 8, generator=generator)
    return x, torch.tanh(x[:, :4])


def train(model, optimizer, rank=0, size=1) -> None:
    """Some steps on this rank's rows."""
    x, y = data()
    x, y = x[rank::size], y[rank::size]
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def values(model) -> torch.Tensor:
    """All parameters in one tensor."""
    flat = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in flat])


def close(given, expected, what, tolerance=1e-5) -> None:
    """Ends the rank with an error that names the way."""
    error = (given - expected).abs().max() / expected.abs().max()
    assert error < tolerance, (what, error)


def main() -> None:
    """All ways."""
    dist.init_process_group("ringreduce")
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    start = Net()
    alone = copy.deepcopy(start)
    train(alone, torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9))
    expected = values(alone)

    def sgd(model):
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    for view in (False, True):
        net = DistributedDataParallel(
            copy.deepcopy(start), bucket_cap_mb=0.001, gradient_as_bucket_view=view
        )
        train(net, sgd(net), rank, size)
        close(values(net), expected, ("ddp", view))
    gloo = dist.new_group(backend="gloo")
    net = DistributedDataParallel(copy.deepcopy(start), process_group=gloo)
    train(net, sgd(net), rank, size)
    by_gloo = [values(net)]
    net = DistributedDataParallel(copy.deepcopy(start))
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(net, sgd(net), rank, size)
    close(values(net), expected, "ddp fp16", 1e-2)

    net = DistributedDataParallel(copy.deepcopy(start))
    zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    train(net, zero, rank, size)
    close(values(net), expected, "zero")

    net = FullyShardedDataParallel(copy.deepcopy(start), device_id=torch.device("cpu"))
    train(net, sgd(net), rank, size)
    with FullyShardedDataParallel.summon_full_params(net):
        close(values(net), expected, "fsdp1")

    mesh = init_device_mesh("cpu", (size,))
    for of_mesh in (DeviceMesh.from_group(gloo, "cpu"), mesh):
        net = copy.deepcopy(start)
        for layer in (net.up, net.mid, net.down):
            fully_shard(layer, mesh=of_mesh)
        fully_shard(net, mesh=of_mesh)
        net.set_allocate_memory_from_process_group_for_comm(of_mesh is mesh)
        train(net, sgd(net), rank, size)
        by_gloo.append(values(net))
    for other in by_gloo:
        close(other, expected, "by Gloo, and fsdp2")
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save({"model": net.state_dict()}, checkpoint_id=folder[0])
    before = values(net)
    for parameter in net.parameters():
        parameter.data.zero_()
    checkpoint.load({"model": net.state_dict()}, checkpoint_id=folder[0])
    close(values(net), before, "checkpoint")

    net = copy.deepcopy(start)
    plan = {"up": ColwiseParallel(), "mid": RowwiseParallel()}
    net = parallelize_module(net, mesh, plan)
    train(net, sgd(net))
    close(values(net), expected, "tensor parallel")

    whole = torch.arange(size * 6.0).view(size * 2, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal((sharded * 2).full_tensor(), whole * 2)
    total = all_reduce(torch.ones(4), "sum", mesh)
    assert torch.equal(total + 0, torch.full((4,), float(size)))

    if size == 2:
        part = nn.Sequential(start.up, nn.Tanh()) if rank == 0 else start.mid
        stage = PipelineStage(part, rank, size, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, nn.functional.mse_loss)
        x, y = data()[0], torch.zeros(ROWS, 16)
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
            alone = nn.functional.mse_loss(start.mid(torch.tanh(start.up(x))), y)
            close(torch.stack(losses).mean(), alone, "pipeline")
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: all ways train as one process does")


main()
