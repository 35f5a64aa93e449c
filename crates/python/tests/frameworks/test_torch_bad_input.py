"""Wrong arguments and ranks that misbehave: each is an exception that says what is wrong."""

import pytest
from conftest import Run
from test_torch_groups import output

torch = pytest.importorskip("torch")

REFUSED = """
def refused(call, *words, kind=RuntimeError):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)
"""


def test_tensors_that_no_call_can_take(job: Run) -> None:
    body = (
        REFUSED
        + """
spread = torch.ones(1).expand(4)
refused(lambda: dist.all_reduce(spread), "tensor", "strides", kind=rr.ArgumentError)
refused(lambda: dist.recv(spread, 1 - rank), "tensor", "strides", kind=rr.ArgumentError)
same = torch.ones(4)
lists = [same[:2], same[1:3]]
refused(lambda: dist.all_gather(lists, torch.ones(2)), "overlap", kind=rr.ArgumentError)
refused(lambda: dist.all_to_all(lists, lists), "overlap", kind=rr.ArgumentError)
quantized = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
refused(lambda: dist.all_reduce(quantized), "Quantized")
sparse = torch.ones(2, 2).to_sparse()
refused(lambda: dist.broadcast(sparse, 0), "Sparse")
refused(lambda: dist.all_reduce(sparse, dist.ReduceOp.MAX), "SUM")
refused(lambda: dist.all_reduce(torch.ones(2).numpy()), "tensor", kind=TypeError)
# Reading them is no mistake.
got = [torch.zeros(4) for _ in range(size)]
dist.all_gather(got, spread)
assert torch.equal(got[1], torch.ones(4))
overlapping = torch.arange(3.0)
out = torch.zeros(4)
dist.all_to_all_single(out, overlapping.unfold(0, 2, 1).reshape(4))
every = [torch.zeros(0) for _ in range(size)]
dist.all_gather(every, torch.zeros(0))
dist.barrier()
print("refused")
"""
    )
    assert output(job, body).count("refused") == 2


def test_lists_with_more_than_a_call_takes(job: Run) -> None:
    """A group's own methods take lists, of which PyTorch's calls give one tensor."""
    body = (
        REFUSED
        + """
group, one = dist.group.WORLD, torch.ones(2)
two, lists = [one, one.clone()], [[one, one.clone()]] * 2
each = [torch.zeros(2) for _ in range(size)]
calls = {
    "all_reduce": lambda: group.allreduce(two),
    "broadcast": lambda: group.broadcast(two, dist.BroadcastOptions()),
    "reduce": lambda: group.reduce(two, dist.ReduceOptions()),
    "all_gather": lambda: group.allgather(lists, two),
    "gather": lambda: group.gather([each] if rank == 0 else [], two, dist.GatherOptions()),
    "scatter": lambda: group.scatter(two, [each] if rank == 0 else [], dist.ScatterOptions()),
    "reduce_scatter": lambda: group.reduce_scatter(two, lists, dist.ReduceScatterOptions()),
    "send": lambda: group.send(two, 1 - rank, 0),
    "recv": lambda: group.recv(two, 1 - rank, 0),
}
for name, call in calls.items():
    refused(call, name, "a list of 2", kind=rr.ArgumentError)
refused(lambda: group.allreduce(two), "allreduce_coalesced", kind=rr.ArgumentError)
lists_of_root = lambda: group.gather([each], [one], dist.GatherOptions())
if rank == 1:
    refused(lists_of_root, "not the root, 0", kind=rr.ArgumentError)
dist.barrier()
print("refused")
"""
    )
    assert output(job, body).count("refused") == 2


def test_whether_lists_share_memory() -> None:
    """The sweep says as much as each pair of tensors does."""
    from ringreduce.torch._tensors import share_memory

    memory, random = torch.zeros(64), torch.Generator().manual_seed(1)
    for _ in range(500):
        starts = torch.randint(0, 56, (6,), generator=random).tolist()
        lengths = torch.randint(0, 6, (6,), generator=random).tolist()
        bounds = list(zip(starts, lengths, strict=True))
        spans = [set(range(start, start + length)) for start, length in bounds]
        tensors = [memory[start : start + length] for start, length in bounds]
        expected = any(one & other for one in spans[:3] for other in spans[3:])
        assert share_memory(tensors[:3], tensors[3:]) == expected, bounds


def test_lengths_that_differ_between_ranks(job: Run) -> None:
    out = output(
        job,
        """
        def each(tensor):
            return [torch.ones_like(tensor) for _ in range(size)]

        def at_root(tensor):
            return each(tensor) if rank == 0 else None

        calls = {
            "all_reduce": lambda it, group: dist.all_reduce(it, group=group),
            "broadcast": lambda it, group: dist.broadcast(it, 0, group),
            "reduce": lambda it, group: dist.reduce(it, 0, group=group),
            "all_gather": lambda it, group: dist.all_gather(each(it), it, group),
            "all_gather_into_tensor": lambda it, group: dist.all_gather_into_tensor(
                torch.ones(size * len(it)), it, group
            ),
            "gather": lambda it, group: dist.gather(it, at_root(it), 0, group),
            "scatter": lambda it, group: dist.scatter(it, at_root(it), 0, group),
            "reduce_scatter": lambda it, group: dist.reduce_scatter(it, each(it), group=group),
            "reduce_scatter_tensor": lambda it, group: dist.reduce_scatter_tensor(
                it, torch.ones(size * len(it)), group=group
            ),
            "all_to_all": lambda it, group: dist.all_to_all(each(it), each(it), group),
            "all_to_all_single": lambda it, group: dist.all_to_all_single(
                torch.ones_like(it), it, group=group
            ),
            "async all_gather": lambda it, group: dist.all_gather(
                each(it), it, group, async_op=True
            ).wait(),
        }
        for lengths in [(4, 6), (4, 1 << 20), (1 << 19, 1 << 20)]:
            for name, call in calls.items():
                group = dist.new_group([0, 1], timeout=timedelta(seconds=10))
                noticed = torch.zeros(1)
                try:
                    call(torch.ones(lengths[rank]), group)
                except rr.TimeoutError as error:
                    print("late", name, lengths, error, flush=True)
                except rr.Error as error:
                    assert f"rank {1 - rank}" in str(error), error
                    noticed += 1
                # The root of a call may have sent all before the other rank looks at it.
                dist.all_reduce(noticed)
                assert noticed > 0, (name, lengths)
        """,
    )
    assert "late" not in out, out


def test_sparse_tensors_that_differ_between_ranks(job: Run) -> None:
    body = (
        REFUSED
        + """
shapes = torch.eye(2 + rank), torch.eye(3, dtype=[torch.float32, torch.float64][rank])
for tensor in shapes:
    group = dist.new_group()
    words = f"rank {rank}", f"rank {1 - rank}", "sparse"
    call = lambda: dist.all_reduce(tensor.to_sparse(), group=group)
    refused(call, *words, kind=rr.MismatchError)
print("refused")
"""
    )
    assert output(job, body).count("refused") == 2


def test_calls_that_differ_between_ranks(job: Run) -> None:
    """Blocking and started calls by messages, whose end is waited for in each way."""
    out = output(
        job,
        """
        def completed(work):
            while not work.is_completed():
                time.sleep(0.001)
            assert not work.is_success()
            raise work.exception()

        ends = [
            lambda call: call(False),
            lambda call: call(True).wait(),
            lambda call: call(True).get_future().wait(),
            lambda call: completed(call(True)),
            lambda call: (work := call(True)).get_future() and work.wait(),
            lambda call: (_ for _ in ()).throw(call(True).exception()),
        ]
        long = torch.ones(1 << 20)
        for end in ends:
            group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
            begin = time.monotonic()
            try:
                if rank == 0:
                    given = [torch.ones_like(long) for _ in range(size)]
                    end(lambda is_async: dist.gather(long, given, 0, group, is_async))
                else:
                    end(lambda is_async: dist.scatter(long, None, 0, group, is_async))
            except (rr.MismatchError, RuntimeError) as error:
                assert "gather" in str(error) and "scatter" in str(error), error
                print("noticed", flush=True)
            # Messages that nobody sends must not hold up the end of the group.
            dist.destroy_process_group(group)
            assert time.monotonic() - begin < 30
        """,
    )
    assert out.count("noticed") == 12, out


def test_messages_of_a_late_list_are_given_up(job: Run) -> None:
    """A rank sends its tensor when the other one has stopped waiting and uses its memory again."""
    out = output(
        job,
        """
        class Late:
            def __init__(self, started):
                self.started, self.kept = started, []

            def send(self, *arguments):
                self.kept.append(arguments)
                return self.started.recv(torch.empty(1).numpy(), 1 - rank, 1 << 30)

            def __getattr__(self, name):
                return getattr(self.started, name)

        long = torch.ones(1 << 20)
        for is_async in (False, True):
            group = dist.new_group([0, 1], timeout=timedelta(seconds=1 if rank == 0 else 60))
            backend = group._get_backend(torch.device("cpu"))
            to = [torch.zeros_like(long) for _ in range(size)]
            late = Late(backend._started)
            if rank == 0:
                try:
                    work = dist.all_gather(to, long, group, is_async)
                    work.wait()
                except rr.TimeoutError as error:
                    assert "all_gather" in str(error), error
                    print("late", flush=True)
                to[1].fill_(7)
            else:
                backend._started = late
                work = dist.all_gather(to, long, group, True)
            dist.barrier()
            if rank == 1:
                handles = [late.started.send(*arguments) for arguments in late.kept]
            # Messages make progress in a call that waits for one.
            dist.send(long, 0) if rank == 1 else dist.recv(long.clone(), 1)
            probe = torch.ones(2)
            if rank == 0:
                backend._comm.send(probe.numpy(), 1, 5)
                assert bool((to[1] == 7).all()), to[1]
            else:
                backend._comm.recv(probe.numpy(), 0, 5)
            dist.barrier()
            print("untouched", flush=True)
            os._exit(0) if is_async else None
        """,
    )
    assert out.count("late") == 2 and out.count("untouched") == 4, out


def test_many_works_in_one_have_one_future(job: Run) -> None:
    out = output(
        job,
        """
        tensors = [torch.ones(2) for _ in range(2000)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
        future = dist.group.WORLD.allreduce_coalesced(tensors, options).get_future()
        future.wait()
        assert all(tensor[0] == size * size for tensor in tensors)
        print("summed", flush=True)
        """,
    )
    assert out.count("summed") == 2, out


def test_a_group_that_was_destroyed_and_a_second_one(job: Run) -> None:
    body = (
        REFUSED
        + """
refused(lambda: dist.init_process_group("ringreduce"), "twice", kind=ValueError)
group = dist.group.WORLD
backend = group._get_backend(torch.device("cpu"))
dist.destroy_process_group()
options = torch._C._distributed_c10d.AllreduceOptions()
refused(lambda: backend.allreduce([torch.ones(2)], options), "closed", kind=rr.BrokenError)
refused(lambda: dist.all_reduce(torch.ones(2)), "init_process_group", kind=ValueError)
refused(lambda: dist.all_reduce(torch.ones(2), group=group), "")
refused(lambda: ringreduce.torch.empty(4), "group", kind=rr.ArgumentError)
print("refused")
"""
    )
    assert output(job, body).count("refused") == 2


def test_calls_of_a_fork(job: Run) -> None:
    body = (
        REFUSED
        + """
started = dist.all_reduce(torch.ones(2), async_op=True)
started.wait()
child = os.fork()
if child == 0:
    try:
        refused(lambda: dist.all_reduce(torch.ones(2)), "fork", kind=rr.BrokenError)
        refused(lambda: dist.send(torch.ones(2), 1 - rank), "fork", kind=rr.BrokenError)
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
dist.all_reduce(torch.ones(2))
print("refused")
"""
    )
    assert output(job, body).count("refused") == 2


def test_aborted_by_pytorch(job: Run) -> None:
    out = output(
        job,
        """
        import threading

        from torch.distributed.distributed_c10d import _abort_process_group

        group = dist.new_group([0, 1])
        if rank == 0:
            thread = threading.Timer(0.3, group.abort)
            thread.start()
            try:
                dist.all_reduce(torch.ones(2), group=group)
            except rr.AbortedError as error:
                print("aborted", flush=True)
            thread.join()
        dist.barrier()
        _abort_process_group(group)
        assert group not in dist.distributed_c10d._world.pg_map
        dist.barrier()
        """,
    )
    assert out.count("aborted") == 1, out
