"""LeNet on Fashion-MNIST by PyTorch's DDP, under ringrun or torchrun.

python -m ringreduce.run -n 2 crates/python/examples/torch_lenet.py FOLDER [--epochs N]
torchrun --nproc-per-node 2 crates/python/examples/torch_lenet.py FOLDER

FOLDER has the four files of the images, packed or not.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import ringreduce.torch  # noqa: F401
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def read(folder: Path, name: str, header: int) -> torch.Tensor:
    """The bytes of an IDX file after its header."""
    path = folder / name
    if path.exists():
        content = path.read_bytes()
    else:
        content = gzip.decompress(Path(f"{path}.gz").read_bytes())
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).copy())


def load(folder: Path, name: str) -> TensorDataset:
    """Images and their classes."""
    images = read(folder, f"{name}-images-idx3-ubyte", 16).view(-1, 1, 28, 28)
    return TensorDataset(images, read(folder, f"{name}-labels-idx1-ubyte", 8).long())


def lenet() -> nn.Module:
    """Two convolutions and three dense layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
    )


def main() -> None:
    """Trains, and prints each epoch's loss and accuracy at rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks")
    parser.add_argument("--backend", default="ringreduce")
    asked = parser.parse_args()
    dist.init_process_group(asked.backend)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    training, test = load(asked.folder, "train"), load(asked.folder, "t10k")
    sampler = DistributedSampler(training)
    model = DistributedDataParallel(lenet())
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(asked.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3)
        for images, classes in DataLoader(training, asked.batch // size, sampler=sampler):
            loss = nn.functional.cross_entropy(model(images / 255), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums[0] += loss.detach()
            sums[1] += 1
        with torch.no_grad():
            images, classes = (tensor[rank::size] for tensor in test.tensors)
            sums[2] = (model(images / 255).argmax(1) == classes).sum()
        dist.all_reduce(sums)
        if rank == 0:
            accuracy = sums[2] / len(test)
            print(
                f"epoch {epoch}: loss {sums[0] / sums[1]:.4f}, accuracy {accuracy:.4f}", flush=True
            )
    dist.destroy_process_group()


main()
