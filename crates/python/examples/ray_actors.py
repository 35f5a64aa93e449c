"""Actors of Ray as ranks: Ray starts and places them, on one host or on many."""

import numpy as np
import ray
import ringreduce as rr
from ray.util.placement_group import placement_group

SIZE = 2


class Worker:
    """A rank. Ray runs all its methods in one thread, to which the communicator belongs."""

    def unique_id(self) -> bytes:
        """Where the others will find this actor, and a secret. It must become rank 0."""
        return rr.unique_id()

    def join(self, rank: int, unique_id: bytes) -> None:
        """Waits until all have joined."""
        self.comm = rr.init(rank=rank, size=SIZE, unique_id=unique_id)

    def sum(self, value: float) -> list[float]:
        """Sums [value, 1] over all ranks."""
        numbers = np.array([value, 1], dtype=np.float32)
        self.comm.all_reduce(numbers)
        return [float(number) for number in numbers]


actor = ray.remote(num_cpus=1)(Worker)
ray.init(log_to_driver=False)
# PACK fills one host after the other; SPREAD gives each host an actor in turn.
group = placement_group([{"CPU": 1}] * SIZE, strategy="PACK")
ray.get(group.ready())
workers = [
    actor.options(placement_group=group, placement_group_bundle_index=rank).remote()
    for rank in range(SIZE)
]
unique_id = ray.get(workers[0].unique_id.remote())
# A call needs all ranks: start it at each of them, and wait for all together.
ray.get([worker.join.remote(rank, unique_id) for rank, worker in enumerate(workers)])
sums = ray.get([worker.sum.remote(rank) for rank, worker in enumerate(workers)])
for rank, numbers in enumerate(sums):
    print(f"rank {rank} of {SIZE}: {numbers}")
