"""PyTorch on the backend: its operations, its ways of training, its own tests, and failures."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Run, run_command, share_of_names
from test_torch_groups import HEAD

pytest.importorskip("torch")

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"


def launch(size: int, program: Path, *arguments: str) -> str:
    """What a program prints, which must end well."""
    command = [sys.executable, "-m", "ringreduce.run", "-n", str(size), sys.executable]
    done = run_command([*command, str(program), *arguments], OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fails(job: Run, body: str, size: int = 2, expect: int | None = 0) -> str:
    """What ranks print that run `body`."""
    done = job(size, HEAD + textwrap.dedent(body), expect=expect)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("size", "name"), [(2, "ringreduce"), (3, "cpu:ringreduce,cuda:ringreduce")]
)
def test_every_operation_is_right(size: int, name: str) -> None:
    out = launch(size, PROGRAMS / "torch_operations.py", name)
    assert out.count("all operations are right") == size


def test_conjugates_and_negatives_go_as_their_elements() -> None:
    assert launch(2, PROGRAMS / "torch_views.py").count("views are right") == 2


@pytest.mark.parametrize("size", [2, 4])
def test_all_ways_train_as_one_process_does(size: int) -> None:
    out = launch(size, PROGRAMS / "torch_training.py")
    assert out.count("train as one process does") == size


def test_torchrun_starts_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        HEAD
        + textwrap.dedent("""
            if rank == 1 and not os.path.exists("second"):
                open("second", "w").close()
                sys.exit(7)
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            assert tensor[0] == 2
            dist.destroy_process_group()
            """)
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command = [*torchrun, "--max-restarts=1", "--standalone", str(program)]
    done = run_command(command, cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "second").exists()


@pytest.mark.parametrize("size", [2, 4])
def test_pytorchs_own_tests_pass_that_pass_with_gloo(tmp_path: Path, size: int) -> None:
    """Those of `outcomes.json`, or a share of them."""
    known = json.loads((HERE / "outcomes.json").read_text())[str(size)]
    names = [name for name, of in known.items() if of["gloo"] == of["ringreduce"] == "passed"]
    names = share_of_names(names, of=4 * size)
    out = tmp_path / "outcomes"
    command = [sys.executable, str(HERE / "torch_suite.py"), "ringreduce", str(size)]
    done = run_command([*command, *names, "--out", str(out)], TEST_LIMIT="1800")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    other = [line for line in lines if line["outcome"] != "passed"]
    assert len(lines) == len(names) and not other, (other, done.stderr[-5000:])


def test_wrong_arguments_are_errors_that_name_them(job: Run) -> None:
    out = fails(
        job,
        """
        def refused(call, *words):
            try:
                call()
            except (rr.ArgumentError, ValueError, RuntimeError) as error:
                assert all(word in str(error) for word in words), error
            else:
                raise AssertionError(words)

        other = torch.ones(2).to(torch.float8_e4m3fnuz)
        refused(lambda: dist.all_reduce(other), "tensor", "float8_e4m3fnuz")
        refused(lambda: dist.all_gather([torch.ones(2)], torch.ones(2)), "list of 1", "2 ranks")
        refused(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "float", "band")
        both = [torch.ones(2), torch.ones(2, dtype=torch.int32)]
        refused(lambda: dist.all_to_all(both, [torch.ones(2)] * 2), "dtypes")
        refused(lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)), "shape", "of 2")
        refused(lambda: dist.init_process_group("ringreduce"), "twice")
        tensor = torch.ones(0)
        dist.all_reduce(tensor)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor[0] == 2, "the ranks are in step"
        group = dist.group.WORLD
        dist.destroy_process_group()
        refused(lambda: dist.all_reduce(tensor, group=group), "")
        print("refused")
        """,
    )
    assert out.count("refused") == 2, out


def test_lengths_that_differ_are_an_error_at_all_ranks(job: Run) -> None:
    out = fails(
        job,
        """
        from torch._C import _distributed_c10d as c10d

        for starts in (True, False):
            group = dist.new_group([0, 1])
            try:
                work = dist.all_reduce(torch.ones(100 + rank), group=group, async_op=starts)
                work.wait()
            except rr.MismatchError as error:
                backend = group._get_backend(torch.device("cpu"))
                assert backend.get_error() == c10d.ErrorType.COMM_ERROR
                assert dist.group.WORLD._get_backend(torch.device("cpu")).get_error().value == 0
                assert isinstance(error, RuntimeError)
                print("mismatch", error.rank, error.peer)
        """,
    )
    assert out.count("mismatch 0 1") == out.count("mismatch 1 0") == 2, out


@pytest.mark.parametrize("how", ["waited", "future", "ddp"])
def test_a_killed_rank_is_an_error_that_names_it(job: Run, how: str) -> None:
    out = fails(
        job,
        f"""
        how = {how!r}
        # ringrun tells the others to end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        """
        """
        tensor = torch.ones(8)
        try:
            if how == "waited":
                dist.all_reduce(tensor)
            elif how == "future":
                dist.all_reduce(tensor, async_op=True).get_future().wait()
            else:
                net(torch.ones(1, 4)).sum().backward()
        except RuntimeError as error:
            assert "rank 1" in str(error) and "PeerLost" in repr(error) + str(error), repr(error)
            print("lost", flush=True)
        """,
        expect=None,
    )
    assert "lost" in out, out


def test_a_rank_that_never_comes_is_an_error_that_names_it(job: Run) -> None:
    out = fails(
        job,
        """
        if rank == 2:
            time.sleep(6)
            sys.exit()
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
        except RuntimeError as error:
            print("barrier:", error, flush=True)
        group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
        try:
            if rank == 0:
                dist.all_reduce(torch.ones(2), group=group)
            else:
                time.sleep(4)
        except rr.TimeoutError as error:
            print("alone:", error, flush=True)
        os._exit(0)
        """,
        size=3,
        expect=None,
    )
    assert "Ranks 2 failed to pass monitoredBarrier" in out, out
    assert "alone: rank 0" in out and "rank 1" in out, out


def test_callbacks_that_wait_for_other_calls_end(job: Run) -> None:
    out = fails(
        job,
        """
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        def late():
            if rank == 1:
                time.sleep(0.05)

        late()
        first = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        chained = first.then(
            lambda _: dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()[0]
        )
        assert chained.wait()[0] == 2
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(5):
            late()
            net(torch.rand(4, 64)).sum().backward()
        print("ended")
        """,
    )
    assert out.count("ended") == 2, out


def test_a_message_that_never_comes_is_an_error_that_names_its_rank(job: Run) -> None:
    out = fails(
        job,
        """
        group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
        if rank == 0:
            for wait in (lambda it: it.wait(), lambda it: it.get_future().wait()):
                try:
                    wait(dist.irecv(torch.ones(2), 1, group))
                except RuntimeError as error:
                    assert "from rank 1" in str(error) and "1 s" in str(error), error
                    print("late", flush=True)
        dist.barrier()
        """,
    )
    assert out.count("late") == 2, out


def test_joined_calls_tell_whether_they_have_ended(job: Run) -> None:
    out = fails(
        job,
        """
        if rank == 1:
            dist.recv(torch.ones(1), 0)
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            tensors = [torch.ones(2), torch.ones(3)]
            for tensor in tensors:
                dist.all_reduce(tensor, async_op=True)
        work = manager.works[0]
        if rank == 0:
            assert not work.is_completed() and not work.get_future().done()
            try:
                work.wait(timedelta(seconds=0.1))
            except rr.TimeoutError:
                print("late", flush=True)
            dist.send(torch.ones(1), 1)
        work.wait()
        assert tensors[1][0] == 2
        """,
    )
    assert out.count("late") == 1, out


def test_a_wait_that_is_interrupted_may_be_repeated(job: Run) -> None:
    out = fails(
        job,
        """
        if rank == 1:
            dist.recv(torch.ones(1), 0)
        got = [torch.zeros(3) for _ in range(2)]
        work = dist.all_gather(got, torch.full((3,), rank + 1.0), async_op=True)
        if rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                work.wait()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            dist.send(torch.ones(1), 1)
        work.wait()
        assert torch.stack(got)[:, 0].tolist() == [1, 2], got
        """,
    )
    assert out.count("interrupted") == 1, out


def test_a_late_rank_does_not_spoil_later_monitored_barriers(job: Run) -> None:
    out = fails(
        job,
        """
        if rank == 1:
            time.sleep(1)
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=0.2))
        except RuntimeError:
            print("late", flush=True)
        for _ in range(3):
            dist.monitored_barrier(timeout=timedelta(seconds=10))
        print("in step", flush=True)
        """,
    )
    assert out.count("late") == 2 and out.count("in step") == 2, out


def test_the_end_of_a_program_with_many_futures(job: Run) -> None:
    out = fails(
        job,
        """
        futures = []
        for _ in range(200):
            future = dist.all_reduce(torch.ones(8), async_op=True).get_future()
            futures.append(future.then(lambda it: it.value()[0] + 1))
        print("end", flush=True)
        """,
    )
    assert out.count("end") == 2, out


def test_threads_may_send_while_another_one_reduces(job: Run) -> None:
    out = fails(
        job,
        """
        import threading

        def exchange():
            got = torch.zeros(1)
            waiting = dist.irecv(got, 1 - rank)
            dist.send(torch.full((1,), rank + 1.0), 1 - rank)
            waiting.wait()
            assert got[0] == 2 - rank
            print("sent", flush=True)

        thread = threading.Thread(target=exchange)
        thread.start()
        for _ in range(200):
            dist.all_reduce(torch.ones(8))
        thread.join()
        """,
    )
    assert out.count("sent") == 2, out


def test_workers_of_a_data_loader_and_the_end_of_a_program(job: Run) -> None:
    out = fails(
        job,
        """
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        data = TensorDataset(torch.arange(8.0))
        loader = DataLoader(data, 2, sampler=DistributedSampler(data), num_workers=2)
        seen = torch.zeros(1)
        for _ in range(2):
            for (batch,) in loader:
                seen += batch.sum()
                dist.all_reduce(batch)
        dist.all_reduce(seen)
        assert seen == 2 * 28, seen
        # The end comes while a call waits for the other rank.
        if rank == 0:
            pending = dist.all_reduce(torch.ones(4), async_op=True)
        print("end")
        """,
        expect=None,
    )
    assert out.count("end") == 2, out


def test_a_callback_that_raises_leaves_the_ranks_in_step(job: Run) -> None:
    out = fails(
        job,
        """
        def broken(future):
            raise KeyError("mine")

        chained = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(broken)
        try:
            chained.wait()
        except RuntimeError as error:
            assert "mine" in str(error)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor[0] == 2
        dist.destroy_process_group()
        from ringreduce.torch import _calls
        assert not _calls._backends
        print("in step")
        """,
    )
    assert out.count("in step") == 2, out
