"""PyTorch's groups: DDP's buckets, splits, timeouts of operations, and the flight record."""

import json
import os
import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, run_command

pytest.importorskip("torch")

HEAD = """\
import os, signal, sys, time
from datetime import timedelta
import torch
from torch import distributed as dist
import ringreduce as rr
import ringreduce.torch
dist.init_process_group("ringreduce", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
"""


def output(job: Run, body: str, size: int = 2, environment: dict[str, str] | None = None) -> str:
    """What ranks print that run `body`, and end well."""
    done = job(size, HEAD + textwrap.dedent(body), **environment or {})
    return done.stdout + done.stderr


TRAIN = """
from torch.nn.parallel import DistributedDataParallel

# A bucket's whole memory is one mapping of the file that the ranks share.
def mapped():
    with open("/proc/self/maps") as maps:
        return sum(
            int(end, 16) - int(start, 16)
            for start, end in (line.split()[0].split("-") for line in maps if "memfd" in line)
        )

def train(views):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
    net = DistributedDataParallel(net, bucket_cap_mb=1, gradient_as_bucket_view=views)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    torch.manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        net(torch.rand(8, 512)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
"""


def reductions(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The long all-reduces in the library's own trace of a rank."""
    found = []
    for path in folder.glob(f"rank.{rank}*.json"):
        events = json.loads(path.read_text())
        events = events["traceEvents"] if isinstance(events, dict) else events
        found += [event for event in events if event.get("name") == "all_reduce"]
    return [event["args"] for event in found if event["args"].get("bytes", 0) >= 1 << 18]


@pytest.mark.parametrize("switch", ["", "0", "1"])
def test_ddp_reduces_its_buckets_in_registered_memory(
    job: Run, tmp_path: Path, switch: str
) -> None:
    trace = tmp_path / "trace"
    trace.mkdir()
    body = (
        TRAIN
        + """
one, other = train(True), train(False)
assert torch.equal(one, other)
both = [torch.empty_like(one) for _ in range(size)]
dist.all_gather(both, one)
assert torch.equal(both[0], both[1])
# Enough calls that those before them are in the trace's file.
for _ in range(1000):
    dist.barrier()
print("trained")
"""
    )
    environment = {"RINGREDUCE_TRACE": str(trace)}
    if switch:
        environment["DDP_DISABLE_COMM_MEM"] = switch
    assert output(job, body, environment=environment).count("trained") == 2
    for rank in range(2):
        algorithms = {call["algorithm"] for call in reductions(trace, rank)}
        assert ("direct" in algorithms) == (switch != "1"), algorithms
        assert switch == "1" or algorithms == {"direct"}, algorithms


def test_buckets_that_are_rebuilt_or_dropped_release_their_memory(job: Run) -> None:
    body = (
        TRAIN
        + """
import gc

train(True)
gc.collect()
dist.barrier()
before = mapped()
for _ in range(5):
    train(True)
    gc.collect()
    dist.barrier()
assert mapped() <= before + (1 << 20), (before, mapped())
# 2 MiB of gradients are in it while they are used.
net = DistributedDataParallel(torch.nn.Linear(1024, 512))
for _ in range(3):
    net(torch.rand(1, 1024)).sum().backward()
dist.barrier()
print("held", mapped() - before)
"""
    )
    held = [
        int(line.split("held ")[1]) for line in output(job, body).splitlines() if "held " in line
    ]
    # This rank's own mapping and those of the others.
    assert len(held) == 2 and all(2 << 20 <= it < 8 << 20 for it in held), held


def test_a_group_is_split(job: Run) -> None:
    out = output(
        job,
        """
        wait = timedelta(seconds=7)
        group = dist.split_group(split_ranks=[[2, 0], [1]], timeout=wait, group_desc="tensor")
        backends = [it._get_backend(torch.device("cpu")) for it in (group, dist.group.WORLD)]
        assert [it._comm.name for it in backends] == ["tensor", "default_pg"]
        tensor = torch.tensor([1.0 + rank])
        dist.all_reduce(tensor, group=group)
        assert tensor == (2 if rank == 1 else 4)
        assert group.rank() == {2: 0, 0: 1, 1: 0}[rank]
        assert dist.get_process_group_ranks(group) == ([1] if rank == 1 else [2, 0])
        part = dist.split_group(split_ranks=[[0, 1]])
        assert (part is dist.GroupMember.NON_GROUP_MEMBER) == (rank == 2), part
        if rank < 2:
            dist.broadcast(tensor, 0, group=part)
            assert tensor == 4
        # The group of all is in step.
        dist.all_reduce(tensor)
        assert tensor == 12
        dist.destroy_process_group()
        print("split")
        """,
        size=3,
    )
    assert out.count("split") == 3, out


def test_many_groups_have_no_thread_and_one_descriptor_each(job: Run) -> None:
    out = output(
        job,
        """
        def used():
            return [len(os.listdir(f"/proc/self/{it}")) for it in ("fd", "task")]

        def groups(count):
            return [dist.new_group([3, 1, 0][at % 2:]) for at in range(count)]

        warm = groups(2)
        dist.barrier()
        fds, threads = used()
        kept = groups(200)
        dist.barrier()
        mine = [it for it in kept if it is not dist.GroupMember.NON_GROUP_MEMBER]
        assert len(mine) == [200, 200, 0, 100][rank]
        more_fds, more_threads = used()
        assert more_fds - fds <= len(mine) and more_threads <= threads, (used(), fds, threads)
        # The groups work in any order, and their ranks are PyTorch's.
        for at in range(len(mine)):
            group = mine[at * 7 % len(mine)]
            members = dist.get_process_group_ranks(group)
            tensor = torch.tensor([1.0 + rank])
            dist.all_reduce(tensor, group=group)
            assert tensor == sum(1.0 + it for it in members)
            dist.broadcast(tensor, members[0], group=group)
        local = dist.new_group([0, 2], use_local_synchronization=True) if rank in (0, 2) else None
        if local is not None:
            dist.barrier(group=local)
        dist.barrier()
        dist.destroy_process_group()
        print("kept")
        """,
        size=4,
    )
    assert out.count("kept") == 4, out


def test_an_operation_has_a_timeout_of_its_own(job: Run) -> None:
    out = output(
        job,
        """
        from torch._C import _distributed_c10d as c10d

        for starts, description in ((False, None), (True, "experts\\n" + 60 * "x")):
            group = dist.new_group([0, 1], group_desc=description)
            # As much of its name as a communicator takes.
            name = (description or group.group_name).replace("\\n", "?")[-64:]
            if rank == 0:
                options = c10d.AllreduceOptions()
                options.asyncOp, options.timeout = starts, timedelta(seconds=0.5)
                began = time.monotonic()
                try:
                    group.allreduce([torch.ones(2)], options).wait()
                except rr.TimeoutError as error:
                    assert "rank 1" in str(error) and time.monotonic() - began < 10, error
                    assert error.communicator == name, error
                    print("late", flush=True)
            dist.barrier()
        """,
    )
    assert out.count("late") == 2, out


FAILURE = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tensor = torch.ones(3, 2)
        for _ in range(3):
            dist.all_reduce(tensor)
        group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
        dist.broadcast(tensor, 0, group=group)
        if rank == 0:
            try:
                dist.all_reduce(tensor, group=group)
            except rr.TimeoutError as error:
                print("late:", error, flush=True)
        else:
            ringreduce.torch.dump_flight_record("record_1")
        dist.barrier()
"""


def test_a_failed_call_dumps_the_flight_record(job: Run, tmp_path: Path) -> None:
    prefix = str(tmp_path / "record_")
    out = output(job, FAILURE, environment={"TORCH_FR_DUMP_TEMP_FILE": prefix})
    assert "late:" in out, out
    record = pickle.loads((tmp_path / "record_0").read_bytes())
    last = record["entries"][-1]
    assert last["profiling_name"] == "ringreduce:all_reduce" and not last["retired"], last
    assert last["input_sizes"] == [[3, 2]] and last["state"] == "scheduled", last
    folder = tmp_path / "records"
    folder.mkdir()
    for rank in range(2):
        os.rename(f"{prefix}{rank}", folder / f"record_{rank}")
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    done = run_command(command)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "missing ranks: {1}" in said, said


@pytest.mark.parametrize("switch", ["0", None])
def test_no_record_is_dumped_unless_it_is_asked_for(
    job: Run, tmp_path: Path, switch: str | None
) -> None:
    prefix = str(tmp_path / "other_")
    asked = (
        {"TORCH_FR_DUMP_ON_TIMEOUT": switch, "TORCH_FR_DUMP_TEMP_FILE": prefix} if switch else {}
    )
    assert "late:" in output(job, FAILURE, environment=asked)
    assert not list(tmp_path.glob("*_0")), list(tmp_path.iterdir())


def test_the_store_never_has_the_secret() -> None:
    """PyTorch's store can be read by whoever reaches its port."""
    import threading
    from datetime import timedelta

    from ringreduce.torch._meeting import shared_id
    from torch import distributed as dist

    written: list[str] = []

    class Store(dist.HashStore):  # type: ignore[misc,unused-ignore]
        """Keeps all that was ever written."""

        def set(self, key: str, value: str) -> None:
            written.extend([key, value])
            super().set(key, value)

    store, size, ids = Store(), 3, []
    store.set("ringreduce/2", "what is no question")

    def ask(rank: int) -> None:
        with shared_id(store, rank, size, timedelta(seconds=20)) as made:
            ids.append(made)

    others = [threading.Thread(target=ask, args=(rank,)) for rank in range(1, size)]
    with shared_id(store, 0, size, timedelta(seconds=20)) as made:
        for other in others:
            other.start()
        for other in others:
            other.join()
    assert ids == [made] * 2
    assert len(written) >= 10
    for part in (made, made[26:58]):
        assert not any(part.hex() in text for text in written)
