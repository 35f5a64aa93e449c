"""Lazy conjugates and negatives, whose memory holds other elements than they have, in every call:
as inputs, as outputs, and in lists; short ones, and ones that go by messages."""

import sys

import torch
from torch import distributed as dist

import ringreduce as rr
import ringreduce.torch


def numbers(count, seed):
    """Complex numbers of which no two are equal."""
    start = 1000 * seed + torch.arange(float(count))
    return torch.complex(start % 4093, start % 509 + 1)


VIEWS = {
    "conjugate": lambda it: it.conj(),
    "negative": lambda it: it.conj().imag,
    "negated part": lambda it: it.view(-1, 2).conj().imag[:, 0],
}


def plain(view):
    """The same elements as memory has them."""
    return view.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def calls(rank, size, backend):
    """Each call, given inputs `a` and outputs `b`: one tensor, and a list with one per rank."""
    root = size - 1

    def at_root(given):
        return given if rank == root else None

    group, options = dist.group.WORLD, dist.ReduceOptions()
    options.rootRank = root
    scatter_options = dist.ReduceScatterOptions()
    return {
        "all_reduce": lambda a, b, more, to: group.allreduce([b]).wait(),
        "started all_reduce": lambda a, b, more, to: (
            ended(dist.all_reduce(b, async_op=True))
            if not b.is_complex()
            else group.allreduce([b]).wait()
        ),
        "backend all_reduce": lambda a, b, more, to: backend.allreduce(
            [b], dist.AllreduceOptions()
        ).wait(),
        "broadcast": lambda a, b, more, to: dist.broadcast(b, root),
        "reduce": lambda a, b, more, to: group.reduce([b], options).wait(),
        "all_gather": lambda a, b, more, to: dist.all_gather(to, a),
        "gather": lambda a, b, more, to: dist.gather(a, at_root(to), root),
        "scatter": lambda a, b, more, to: dist.scatter(b, at_root(more), root),
        "reduce_scatter": lambda a, b, more, to: group.reduce_scatter(
            [b], [more], scatter_options
        ).wait(),
        "all_to_all": lambda a, b, more, to: dist.all_to_all(to, more),
        "all_to_all_single": lambda a, b, more, to: dist.all_to_all_single(b, a),
        "started all_gather": lambda a, b, more, to: dist.all_gather(to, a, async_op=True).wait(),
        "coalesced": lambda a, b, more, to: group.allreduce_coalesced(to).wait(),
        "send": lambda a, b, more, to: exchange(rank, size, a, b),
        "all_gather in place": lambda a, b, more, to: dist.all_gather(
            [*to[:rank], a, *to[rank + 1 :]], a
        ),
    }


def ended(work):
    """Waits by the future, whose values are the tensors that were given."""
    work.get_future().wait()


def exchange(rank, size, given, got):
    """A message to the next rank and one of the last."""
    sent = dist.isend(given, (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)
    sent.wait()


def gather(to, tensor):
    """As all_gather_into_tensor, which refuses complex conjugates."""
    dist.group.WORLD._allgather_base(to, tensor).wait()


def whole(rank, size, view, count):
    """The calls on one tensor with a part for each rank."""
    given, seen = (make(numbers(count, rank)) for make in (view, lambda it: plain(view(it))))
    got = [view(numbers(size * count, 7)), plain(view(numbers(size * count, 7)))]
    for tensor, to in zip((given, seen), got, strict=True):
        gather(to, tensor)
    assert torch.equal(*got), "all_gather_into_tensor"
    # This rank's part of the output, read through a view that changes it.
    memory = [numbers(size * count, 7) for _ in range(2)]
    own = slice(rank * count, (rank + 1) * count)
    gather(memory[0], memory[0][own].conj())
    gather(memory[1], plain(memory[1][own].conj()))
    assert torch.equal(*memory), "all_gather_into_tensor in place"
    given, got = view(numbers(size * count, rank)), [view(numbers(count, 7)) for _ in range(2)]
    for to, tensor in zip(got, (given, plain(given)), strict=True):
        dist.group.WORLD._reduce_scatter_base(to, tensor, dist.ReduceScatterOptions()).wait()
    assert torch.equal(*got), "reduce_scatter_tensor"


def main():
    """All calls, each once with views and once with their elements."""
    dist.init_process_group("ringreduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for count in (2 * size, 60_000 * size):
        for kind, view in VIEWS.items():
            for name, call in calls(rank, size, backend).items():
                results = []
                for form in (view, lambda it, view=view: plain(view(it))):
                    one, out = form(numbers(count, rank)), form(numbers(count, 9 + rank))
                    more = [form(numbers(count, size * rank + at)) for at in range(size)]
                    to = [form(numbers(count, 20 + at)) for at in range(size)]
                    try:
                        call(one, out, more, to)
                    except RuntimeError as error:
                        # PyTorch's own functions refuse complex conjugates, at all ranks.
                        assert "view_as_real" in str(error) and one.is_conj(), (name, error)
                        break
                    results.append([plain(it) for it in (one, out, *more, *to)])
                if not results:
                    continue
                for at, (lazy, real) in enumerate(zip(*results, strict=True)):
                    assert torch.equal(lazy, real), (kind, name, count, at, lazy[:4], real[:4])
            whole(rank, size, view, count)
    indices, values = torch.tensor([[0, 2]]), numbers(2, rank).conj()
    sparse = [
        torch.sparse_coo_tensor(indices, it, (3,), is_coalesced=True)
        for it in (values, plain(values))
    ]
    for tensor in sparse:
        dist.all_reduce(tensor)
    assert torch.equal(*(it.to_dense().resolve_conj() for it in sparse)), sparse
    comm = rr.local(1)[0]
    try:
        comm.all_reduce(torch._neg_view(torch.ones(4)))
        raise AssertionError("a negative was taken for its memory")
    except rr.ArgumentError as error:
        assert "resolve_neg()" in str(error), error
    print("views are right")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
