"""Messages and lists of tensors: their time, their tags, and what a refused call leaves behind."""

import pytest
from conftest import Run
from test_torch_bad_input import REFUSED
from test_torch_groups import output

pytest.importorskip("torch")

#: A list of tensors long enough for messages, gathered.
GATHER = (
    REFUSED
    + """
def zeros():
    return [torch.zeros(1 << 18) for _ in range(size)]

mine = torch.full((1 << 18,), float(rank))

def check(got):
    assert [it[0].item() for it in got] == list(range(size))
"""
)


def test_lists_after_calls_that_one_rank_has_not_made(job: Run) -> None:
    body = """
if rank == 0:
    single = torch.ones(2 * size, dtype=torch.float64)
    refused(lambda: dist.all_gather_into_tensor(single, mine[:2]), kind=rr.ArgumentError)
    refused(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.1)), "Rank 1")
    bad, options = torch.ones(1).expand(4), dist.AllreduceCoalescedOptions()
    coalesced = lambda: dist.group.WORLD.allreduce_coalesced([mine, bad], options)
    refused(coalesced, "strides", kind=rr.ArgumentError)
    assert mine[0] == 0
for is_async in (False, True):
    got = zeros()
    work = dist.all_gather(got, mine, async_op=is_async)
    if is_async:
        work.wait()
    check(got)
print("gathered", flush=True)
"""
    assert output(job, GATHER + body).count("gathered") == 2


def test_lists_in_modes_of_pytorch(job: Run) -> None:
    """Inference mode and what comes after it; a default device that is not the tensors'."""
    body = """
def exchange():
    got = [torch.zeros(3) for _ in range(size)]
    dist.all_to_all(got, [mine[:3].clone() for _ in range(size)])
    check(got)

with torch.inference_mode():
    exchange()
exchange()
got, sparse = zeros(), torch.eye(2).to_sparse()
with torch.device("meta"):
    dist.all_gather(got, mine)
    dist.all_reduce(sparse)
check(got)
assert torch.equal(sparse.to_dense(), size * torch.eye(2))
print("exchanged", flush=True)
"""
    assert output(job, GATHER + body).count("exchanged") == 2


def test_the_time_of_messages(job: Run) -> None:
    """It begins with the wait, may be a month, and leaves the call as it was."""
    body = """
def receive(timeout, end):
    group = dist.new_group(timeout=timeout)
    tensor = torch.zeros(4)
    if rank == 0:
        work = dist.irecv(tensor, 1, group)
        end(work, dist.barrier)
        assert tensor.sum() == 4
    else:
        dist.barrier()
        dist.send(torch.ones(4), 0, group)

def compute_for_longer_than_the_timeout(work, send):
    time.sleep(5.5)
    send()
    work.wait()

def wait_for_the_future(work, send):
    future = work.get_future()
    send()
    future.wait()

receive(timedelta(seconds=5), compute_for_longer_than_the_timeout)
receive(timedelta(days=30), wait_for_the_future)

got, others = zeros(), dist.new_group()
if rank == 1:
    dist.barrier(others)
work = dist.all_gather(got, mine, async_op=True)
if rank == 0:
    for seconds in (1e-3, 1e-6, -1):
        refused(lambda: work.wait(timedelta(seconds=seconds)), "goes on", kind=rr.TimeoutError)
    assert not work.is_completed()
    dist.barrier(others)
work.wait()
check(got)
print("received", flush=True)
"""
    assert output(job, GATHER + body).count("received") == 2


def test_futures_of_a_fork_with_a_group_of_its_own(job: Run) -> None:
    body = """
    dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
    # A message is under way when the process forks.
    got = torch.zeros(2)
    future = dist.irecv(got, 1 - rank).get_future()
    child = os.fork()
    if child == 0:
        try:
            dist.group.WORLD = None
            store = dist.HashStore()
            dist.init_process_group("ringreduce", store=store, rank=0, world_size=1)
            tensor, group = torch.zeros(2), dist.group.WORLD
            future = group.recv([tensor], 0, 0).get_future()
            group.send([torch.ones(2)], 0, 0).wait()
            future.wait()
            os._exit(0 if tensor.sum() == 2 else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.barrier()
    sent = dist.isend(torch.ones(2), 1 - rank)
    future.wait()
    sent.wait()
    assert got.sum() == 2
    print("ended", flush=True)
    """
    assert output(job, body).count("ended") == 2
