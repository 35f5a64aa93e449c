"""Every operation of a process group, waited for and started, against what it must give."""

import sys

import torch
from torch import distributed as dist

import ringreduce as rr
import ringreduce.torch

TYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16),
    *(torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]
Op = dist.ReduceOp


def same(given, expected, what):
    """Ends the rank with an error that names the check."""
    assert torch.equal(given, expected.to(given.dtype)), (what, given, expected)


def ended(work):
    """Waits for a started call."""
    if isinstance(work, torch._C.Future):
        work.wait()
    elif work is not None:
        assert work.wait()
        assert work.is_completed() and work.is_success()
        work.get_future().wait()


def reductions(rank, size, starts):
    """Calls that reduce."""
    total = size * (size + 1) // 2
    for dtype in TYPES:
        tensor = torch.full((3, 2), rank + 1, dtype=dtype)
        ended(dist.all_reduce(tensor, async_op=starts))
        same(tensor, torch.full((3, 2), total), ("all_reduce", dtype))
    expected = {Op.PRODUCT: 1, Op.MIN: 1, Op.MAX: size, Op.BAND: 0, Op.BOR: 0, Op.BXOR: 0}
    for value in range(1, size + 1):
        expected[Op.PRODUCT] *= value
        expected[Op.BAND] = value if value == 1 else expected[Op.BAND] & value
        expected[Op.BOR] |= value
        expected[Op.BXOR] ^= value
    for op, value in expected.items():
        tensor = torch.tensor([rank + 1])
        ended(dist.all_reduce(tensor, op, async_op=starts))
        same(tensor, torch.tensor([value]), op)
    tensor = torch.full((4,), float(rank))
    ended(dist.all_reduce(tensor, Op.AVG, async_op=starts))
    same(tensor, torch.full((4,), (size - 1) / 2), "avg")
    half = dist._make_nccl_premul_sum(0.5)
    tensor = torch.full((4,), 2.0)
    ended(dist.all_reduce(tensor, half, async_op=starts))
    same(tensor, torch.full((4,), float(size)), "premul_sum")
    separate = [torch.full((4,), 2.0) for _ in range(size)]
    for given in (separate, list(torch.full((size, 4), 2.0).unbind())):
        ended(dist.reduce_scatter(tensor, given, half, async_op=starts))
        same(tensor, torch.full((4,), float(size)), "premul_sum in reduce_scatter")
        assert all(part[0] == 2 for part in given), "the inputs are as they were"
    tensor = torch.full((4,), 2.0)
    ended(dist.reduce(tensor, 0, half, async_op=starts))
    same(tensor, torch.full((4,), float(size) if rank == 0 else 2.0), "premul_sum in reduce")
    flags = torch.tensor([rank == 0, True, False])
    ended(dist.all_reduce(flags, async_op=starts))
    same(flags, torch.tensor([True, True, False]), "bool")
    transposed = torch.arange(6.0).view(2, 3).t()
    ended(dist.all_reduce(transposed, async_op=starts))
    same(transposed, size * torch.arange(6.0).view(2, 3).t(), "not contiguous")
    for root in range(size):
        tensor = torch.full((5,), rank + 1.0)
        ended(dist.reduce(tensor, root, async_op=starts))
        if rank == root:
            same(tensor, torch.full((5,), float(total)), "reduce")
    parts = [torch.full((4,), float(rank + 10 * at)) for at in range(size)]
    got = torch.empty(4)
    ended(dist.reduce_scatter(got, parts, async_op=starts))
    expected_part = torch.full((4,), float(total - size + 10 * rank * size))
    same(got, expected_part, "reduce_scatter")
    ended(dist.reduce_scatter_tensor(got, torch.cat(parts), async_op=starts))
    same(got, expected_part, "reduce_scatter_tensor")
    for given in (parts, list(torch.stack(parts).unbind())):
        ended(dist.reduce_scatter(given[rank], given, async_op=starts))
        same(given[rank], expected_part, "reduce_scatter in place")
    tensors = [torch.full((at + 1,), float(rank)) for at in range(3)]
    ended(dist.all_reduce_coalesced(tensors, async_op=starts))
    for at, tensor in enumerate(tensors):
        same(tensor, torch.full((at + 1,), float(total - size)), "coalesced")
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
    ended(dist.all_reduce(sparse, async_op=starts))
    same(sparse.to_dense(), torch.tensor([1.0] * size + [2.0 * size]), "sparse")
    entries = [[], []] if rank == 0 else [[1, 2], [0, 0]]
    rows = torch.ones(0 if rank == 0 else 2, 3)
    hybrid = torch.sparse_coo_tensor(torch.tensor(entries, dtype=torch.int64), rows, (4, 2, 3))
    ended(dist.all_reduce(hybrid, async_op=starts))
    assert hybrid.to_dense().sum() == 6 * (size - 1), "sparse with rows"


def copies(rank, size, starts):
    """Calls that copy."""
    for root in range(size):
        tensor = torch.arange(7) + 100 * rank
        ended(dist.broadcast(tensor, root, async_op=starts))
        same(tensor, torch.arange(7) + 100 * root, "broadcast")
        got = [torch.empty(2) for _ in range(size)] if rank == root else None
        ended(dist.gather(torch.full((2,), float(rank)), got, root, async_op=starts))
        for at, part in enumerate(got or []):
            same(part, torch.full((2,), float(at)), "gather")
        given = [torch.full((2,), at + 0.5) for at in range(size)] if rank == root else None
        part = torch.empty(2)
        ended(dist.scatter(part, given, root, async_op=starts))
        same(part, torch.full((2,), rank + 0.5), "scatter")
    got = [torch.empty(3, dtype=torch.int64) for _ in range(size)]
    ended(dist.all_gather(got, torch.full((3,), rank), async_op=starts))
    same(torch.stack(got), torch.arange(size).view(-1, 1).expand(-1, 3), "all_gather")
    for dtype in (torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2):
        mine = torch.full((6,), rank + 1.0, dtype=torch.complex64 if dtype.is_complex else None)
        got = [torch.empty(6, dtype=dtype) for _ in range(size)]
        ended(dist.all_gather(got, mine.to(dtype), async_op=starts))
        for at, part in enumerate(got):
            assert (part.to(mine.dtype) == at + 1).all(), (dtype, "all_gather")
        one = mine.to(dtype)
        ended(dist.broadcast(one, size - 1, async_op=starts))
        assert (one.to(mine.dtype) == size).all(), (dtype, "broadcast")
    half = torch.full((3,), rank + 1.0, dtype=torch.complex64).to(torch.complex32)
    ended(dist.all_reduce(half, async_op=starts))
    assert (half.to(torch.complex64) == size * (size + 1) / 2).all(), "complex32"
    uneven = [torch.empty(at + 1) for at in range(size)]
    ended(dist.all_gather(uneven, torch.full((rank + 1,), float(rank)), async_op=starts))
    for at, part in enumerate(uneven):
        same(part, torch.full((at + 1,), float(at)), "uneven all_gather")
    whole = torch.empty(size, 2)
    ended(dist.all_gather_into_tensor(whole, torch.full((1, 2), float(rank)), async_op=starts))
    same(whole, torch.arange(float(size)).view(-1, 1).expand(-1, 2), "all_gather_into_tensor")
    short = torch.ones(3 * size)
    try:
        dist.all_gather_into_tensor(short, short[2 * rank : 2 * rank + 2])
    except rr.ArgumentError:
        pass
    else:
        raise AssertionError("a part of another length")
    with torch.inference_mode():
        later = [torch.empty(2) for _ in range(size)]
        work = dist.all_gather(later, torch.full((2,), float(rank)), async_op=True)
    work.wait()
    assert torch.stack(later)[:, 0].tolist() == list(range(size)), "inference mode"
    parameter = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t())
    parameter = torch.nn.Parameter(parameter.data * (rank + 1))
    dist.broadcast(parameter, 0)
    same(parameter.data, torch.arange(6.0).view(2, 3).t(), "a leaf that is not contiguous")
    whole[rank] = rank
    ended(dist.all_gather_into_tensor(whole, whole[rank : rank + 1], async_op=starts))
    same(whole, torch.arange(float(size)).view(-1, 1).expand(-1, 2), "all_gather in place")
    given = torch.arange(size * 2) + 100 * rank
    back = torch.empty_like(given)
    ended(dist.all_to_all_single(back, given, async_op=starts))
    expected = [torch.arange(2 * rank, 2 * rank + 2) + 100 * at for at in range(size)]
    same(back, torch.cat(expected), "all_to_all_single")
    sizes = [at + 1 for at in range(size)]
    given, back = torch.full((sum(sizes), 2), rank), torch.empty((rank + 1) * size, 2)
    back = back.to(given.dtype)
    mine = [rank + 1] * size
    ended(dist.all_to_all_single(back, given, mine, sizes, async_op=starts))
    same(back[:, 0], torch.arange(size).repeat_interleave(rank + 1), "all_to_all by sizes")
    lists = [torch.full((at + 1,), rank) for at in range(size)]
    got = [torch.empty(rank + 1, dtype=torch.int64) for _ in range(size)]
    ended(dist.all_to_all(got, lists, async_op=starts))
    same(torch.cat(got), torch.arange(size).repeat_interleave(rank + 1), "all_to_all")
    ended(dist.barrier(async_op=starts))


def long_lists(rank, size, starts):
    """Calls on lists of tensors that are so long that none of them is copied."""
    shape, root = (300_000, 2), size - 1

    def zeros():
        return [torch.zeros(shape) for _ in range(size)]

    part, got = torch.full(shape, rank + 1.0), zeros()
    ended(dist.all_gather(got, part, async_op=starts))
    for at, tensor in enumerate(got):
        same(tensor, torch.full(shape, at + 1.0), "long all_gather")
    got = zeros()
    ended(dist.gather(part, got if rank == root else None, root, async_op=starts))
    for at, tensor in enumerate(got):
        same(tensor, torch.full(shape, at + 1.0 if rank == root else 0.0), "long gather")
    given = [torch.full(shape, at + 5.0) for at in range(size)]
    ended(dist.scatter(part, given if rank == root else None, root, async_op=starts))
    same(part, torch.full(shape, rank + 5.0), "long scatter")
    turned = [torch.zeros(2, 300_000).t() for _ in range(size)]
    ended(dist.all_gather(turned, part, async_op=starts))
    for at, tensor in enumerate(turned):
        same(tensor, torch.full(shape, at + 5.0), "long all_gather with gaps")
    got = zeros()
    got[rank].fill_(rank)
    ended(dist.all_gather(got, got[rank], async_op=starts))
    for at, tensor in enumerate(got):
        same(tensor, torch.full(shape, float(at)), "long all_gather in place")
    uneven = [torch.zeros(200_000 * (at + 1)) for at in range(size)]
    ended(dist.all_gather(uneven, torch.full((200_000 * (rank + 1),), 3.0), async_op=starts))
    assert all((tensor == 3).all() for tensor in uneven), "long and uneven all_gather"
    if rank == root:
        # The root's own tensor is a part of those that it sends.
        given = list(torch.arange(1.0, size + 1).repeat_interleave(600_000).split(600_000))
        part = given[0]
    else:
        part = torch.zeros(600_000)
    ended(dist.scatter(part, given if rank == root else None, root, async_op=starts))
    same(part, torch.full((600_000,), rank + 1.0), "long scatter over an input")


def messages(rank, size):
    """Messages by tag, from any rank, and in batches."""
    to, source = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(4)
    receives = dist.irecv(got, source, tag=7)
    dist.isend(torch.full((4,), float(rank)), to, tag=7).wait()
    receives.wait()
    same(got, torch.full((4,), float(source)), "isend")
    if rank == 0:
        came = {dist.recv(got, tag=3) for _ in range(1, size)}
        assert came == set(range(1, size)), came
    else:
        dist.send(torch.ones(4), 0, tag=3)
    pair = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), to)]
    pair.append(dist.P2POp(dist.irecv, got[:2], source))
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    same(got[:2], torch.full((2,), float(source)), "batch")
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": at} for at in range(size)]
    listed = [rank, "text"] if rank == 0 else [None, None]
    dist.broadcast_object_list(listed, 0)
    assert listed == [0, "text"]
    dist.monitored_barrier()


def groups(rank, size):
    """Groups of some of the ranks, and all ranks as a mesh."""
    pairs = [dist.new_group([0, size - 1]), dist.new_group(list(range(1, size)))]
    for group in pairs:
        if dist.get_rank(group) >= 0:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.full((3,), float(dist.get_world_size(group))), "group")
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as all_of:
        tensors = [torch.ones(2), torch.ones(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    all_of.wait()
    same(tensors[1], torch.full((3,), float(size)), "manager")


def main() -> None:
    """Runs the checks."""
    # Names of devices as well as the name alone.
    dist.init_process_group(sys.argv[1])
    rank, size = dist.get_rank(), dist.get_world_size()
    for starts in (False, True):
        reductions(rank, size, starts)
        copies(rank, size, starts)
        long_lists(rank, size, starts)
    messages(rank, size)
    groups(rank, size)
    shared = ringreduce.torch.empty(3, 40_000)
    shared.fill_(rank + 1)
    dist.all_reduce(shared)
    same(shared, torch.full((3, 40_000), size * (size + 1) / 2), "registered")
    assert ringreduce.torch.empty(0, 3, dtype=torch.int8).shape == (0, 3)
    # PyTorch's store ends with the last reference at rank 0. Ranks that are ahead of rank 0 would
    # find the old one, which then ends, when they meet again.
    kept = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group("ringreduce")
    del kept
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: all operations are right")


main()
