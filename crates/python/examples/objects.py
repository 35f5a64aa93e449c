"""Objects and messages by mpi4py's names: bcast, gather, allgather, send and recv of anything."""

from typing import Any, TypeVar

import ringreduce as rr

T = TypeVar("T")


class Comm:
    """The lowercase methods of an mpi4py communicator."""

    def __init__(self, comm: rr.Communicator) -> None:
        self.comm = comm
        self.bcast = comm.broadcast_object
        self.gather = comm.gather_object
        self.allgather = comm.all_gather_object
        self.barrier = comm.barrier

    def send(self, obj: object, dest: int, tag: int = 0) -> None:
        """Sends an object to rank `dest`."""
        self.comm.send_object(obj, dest, tag)

    def recv(self, source: int | None = None, tag: int | None = None) -> Any:
        """Receives an object; None stands for MPI's ANY_SOURCE and ANY_TAG."""
        return self.comm.recv_object(source, tag)

    def allreduce(self, obj: T) -> T:
        """The sum of all ranks' objects, by their own `+`."""
        first, *rest = self.comm.all_gather_object(obj)
        for other in rest:
            first = first + other  # type: ignore[operator]
        return first


def main() -> None:
    """Passes objects around."""
    comm = rr.init()
    world = Comm(comm)
    settings = world.bcast({"rate": 0.1} if comm.rank == 0 else {})
    if comm.rank > 0:
        world.send({"from": comm.rank}, dest=0, tag=comm.rank)
    else:
        print(settings, sorted(world.recv()["from"] for _ in range(comm.size - 1)))
    print(f"rank {comm.rank}: {world.allreduce([comm.rank])}")


if __name__ == "__main__":
    main()
