"""Trains a network by PyTorch's DDP: python -m ringreduce.run -n 2 torch_ddp.py, or torchrun."""

import ringreduce.torch  # noqa: F401
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("ringreduce")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
inputs = torch.rand(64, 8)
targets = inputs.sum(1, keepdim=True)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(200):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
print(f"rank {rank} of {size}: the loss is below 0.01: {loss.item() < 0.01}")
dist.destroy_process_group()
