"""What goes wrong: an exception with facts, never a crash and never a hang."""

import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ringreduce as rr
from conftest import ROOT, TIMEOUT, Run, on_threads, run_command


def test_lengths_that_differ_name_both_ranks() -> None:
    def body(comm: rr.Communicator) -> None:
        with pytest.raises(rr.MismatchError, match="the count is") as caught:
            comm.all_reduce(np.ones(2 + comm.rank))
        error = caught.value
        assert (error.rank, error.peer, error.call) == (comm.rank, 1 - comm.rank, "all_reduce")
        assert error.host == error.peer_host and error.peer_pid == os.getpid()
        assert isinstance(error.step, int) and error.sequence == 1
        assert isinstance(comm.monitor().error(), rr.MismatchError)
        with pytest.raises(rr.BrokenError, match="failed before"):
            comm.all_reduce(np.ones(1))

    on_threads(2, body)


def test_a_rank_that_never_comes_is_a_timeout() -> None:
    def body(comm: rr.Communicator) -> None:
        if comm.rank == 1:
            return
        comm.timeout = 0.3
        assert comm.timeout == 0.3
        began = time.monotonic()
        with pytest.raises(rr.TimeoutError) as caught:
            comm.all_reduce(np.ones(1))
        assert caught.value.peer == 1 and isinstance(caught.value, TimeoutError)
        assert time.monotonic() - began < 5

    ranks = rr.local(2)
    body(ranks[0])
    with pytest.raises(rr.TimeoutError):
        ranks[1].timeout = 0.1
        ranks[1].recv(np.ones(1), 0)


def test_errors_and_metrics_say_the_communicators_name() -> None:
    comm, _late = rr.local(2)
    assert comm.name is None
    comm.name = "data"
    for name in ("", "x" * 65, "two\nlines"):
        with pytest.raises(rr.ArgumentError, match="1 to 64 bytes"):
            comm.name = name
    assert comm.name == "data"
    comm.timeout = 0.01
    with pytest.raises(rr.TimeoutError, match='of communicator "data", step') as caught:
        comm.all_reduce(np.ones(1))
    assert caught.value.communicator == "data"
    assert 'communicator="data",kind="stalled"' in comm.monitor().metrics()


def test_ranks_that_do_not_start_are_named() -> None:
    with pytest.raises(rr.MissingRanksError) as caught:
        rr.init(rank=0, size=3, store=f"unix:@{os.getpid()}", timeout=0.3)
    assert caught.value.missing == [1, 2] and caught.value.rank == 0


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(rr.ArgumentError, match="size is not set"):
        rr.init(rank=0)
    with pytest.raises(rr.ConfigError, match="store"):
        rr.init(rank=0, size=2, store="nowhere")


def test_after_close() -> None:
    with rr.local(1)[0] as comm:
        comm.barrier()
    for call in (comm.barrier, comm.nonblocking.barrier, lambda: comm.send_object(1, 0)):
        with pytest.raises(rr.BrokenError, match="closed"):
            call()
    comm.close()
    assert comm.rank == 0 and "rank 0 of 1" in repr(comm)
    assert isinstance(comm.monitor().error(), rr.BrokenError)


def test_a_second_init_says_what_to_do() -> None:
    first = rr.init()
    with pytest.raises(rr.ArgumentError, match=r"duplicate\(\)"):
        rr.init()
    first.close()
    second = rr.init()
    second.close()


def test_two_threads_may_not_share_a_communicator() -> None:
    ranks = rr.local(2)
    thread = threading.Thread(target=lambda: ranks[0].all_reduce(np.ones(1)))
    thread.start()
    while ranks[0].monitor().current_call() is None:
        time.sleep(0.001)
    call = ranks[0].monitor().current_call()
    assert call is not None and call.name == "all_reduce" and call.bytes == 8
    with pytest.raises(rr.BrokenError, match="another thread"):
        ranks[0].barrier()
    ranks[1].all_reduce(np.ones(1))
    thread.join()
    assert ranks[0].monitor().current_call() is None
    assert 'calls_total{collective="all_reduce",rank="0"} 1' in ranks[0].monitor().metrics()


def test_any_thread_may_abort_a_call() -> None:
    ranks = rr.local(2)
    threading.Timer(0.1, ranks[0].monitor().abort).start()
    with pytest.raises(rr.AbortedError) as caught:
        ranks[0].all_reduce(np.ones(1))
    assert caught.value.peer == 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ctrl_c_ends_every_wait(job: Run, transport: str) -> None:
    job(
        2,
        """
        WAITS = [
            lambda comm: comm.all_reduce(np.ones(1)),
            lambda comm: comm.all_reduce(np.ones(1 << 20)),
            lambda comm: comm.recv(np.ones(1), 1),
            lambda comm: comm.probe(),
            lambda comm: comm.nonblocking.all_reduce(np.ones(1)).wait(),
            lambda comm: comm.nonblocking.recv(np.ones(1)).wait(),
            lambda comm: (comm.nonblocking.barrier(), comm.barrier()),
            lambda comm: asyncio.run(asyncio.wait_for(comm.nonblocking.barrier(), None)),
            lambda comm: comm.broadcast_object(None, root=1),
            lambda comm: comm.split(0),
        ]
        comm = rr.init()
        spare = [comm.duplicate() for _ in WAITS]
        if comm.rank == 1:
            comm.recv(bytearray(1), 0)
            os._exit(0)
        for number, (wait, one) in enumerate(zip(WAITS, spare)):
            threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            try:
                wait(one)
            except KeyboardInterrupt:
                assert time.monotonic() - began < 2, number
                continue
            sys.exit(f"wait {number} was not interrupted")
        comm.send(b"x", 1)
        os._exit(0)
        """,
        RINGREDUCE_TRANSPORT=transport,
    )


@pytest.mark.parametrize("on_a_thread", [False, True])
def test_ctrl_c_ends_a_call_of_a_fork(tmp_path: Path, on_a_thread: bool) -> None:
    """A child with communicators of its own is as any other process."""
    program = f"""if True:
        import os, signal, threading, numpy as np, ringreduce as rr
        rr.local(1)[0].barrier()

        def fork():
            if os.fork():
                print(os.waitstatus_to_exitcode(os.wait()[1]))
                return
            ranks = rr.local(2)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                ranks[0].all_reduce(np.ones(1))
            except KeyboardInterrupt:
                os._exit(7)

        if {on_a_thread}:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        else:
            fork()
    """
    done = run_command([sys.executable, "-c", program], cwd=tmp_path)
    assert done.stdout == "7\n", done.stdout + done.stderr


def test_ctrl_c_ends_the_start(tmp_path: Path) -> None:
    program = (
        "import os, signal, threading, ringreduce\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "ringreduce.init(rank=0, size=2, store='unix:@' + str(os.getpid()))\n"
    )
    began = time.monotonic()
    done = run_command([sys.executable, "-c", program], cwd=tmp_path)
    assert "KeyboardInterrupt" in done.stderr and time.monotonic() - began < 5


def test_handlers_run_while_a_call_waits(job: Run) -> None:
    """A handler that does not raise leaves the call alone."""
    job(
        2,
        """
        comm, seen = rr.init(), []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
        comm.barrier()
        if comm.rank == 0:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            comm.all_reduce(np.ones(1))
            assert len(seen) == 1 and time.monotonic() - seen[0] > 0.2, seen
        else:
            time.sleep(0.6)
            comm.all_reduce(np.ones(1))
        """,
    )


def test_other_threads_run_while_a_call_waits(job: Run) -> None:
    job(
        2,
        """
        comm = rr.init()
        if comm.rank == 0:
            turns = 0
            def count():
                global turns
                while True:
                    turns += 1
                    time.sleep(0.001)
            threading.Thread(target=count, daemon=True).start()
            comm.barrier()
            assert turns > 20, turns
        else:
            time.sleep(0.3)
            comm.barrier()
        """,
    )


def test_a_rank_that_dies_is_named(job: Run) -> None:
    job(
        3,
        """
        comm = rr.init()
        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.2)
            os._exit(0)
        try:
            comm.all_reduce(np.ones(1))
        except rr.PeerLostError as error:
            assert (error.peer, error.rank) == (1, comm.rank), error
            assert isinstance(error, ConnectionError) and error.peer_host == error.host
            rest = comm.shrink(10)
            assert rest.size == 2 and rest.all_reduce(np.ones(1))[0] == 2
            sys.exit()
        sys.exit("nobody was lost")
        """,
    )


def test_without_a_deadline_only_the_other_rank_ends_a_wait(job: Run) -> None:
    """The wait outlasts one with a deadline that began later."""
    job(
        2,
        """
        comm = rr.init(timeout=float("inf"))
        assert comm.timeout == float("inf")
        if comm.rank == 1:
            comm.recv(bytearray(1), 0)
            assert comm.all_reduce(np.ones(1))[0] == 2
            os._exit(0)
        late = comm.nonblocking.all_reduce(np.ones(1))
        others = rr.local(2)
        others[0].timeout = 0.3
        try:
            others[0].all_reduce(np.ones(1))
        except rr.TimeoutError:
            assert not late.done()
            comm.send(b"x", 1)
        assert late.wait()[0] == 2
        try:
            comm.all_reduce(np.ones(1))
        except rr.PeerLostError as error:
            assert error.peer == 1, error
            sys.exit()
        sys.exit("nobody was lost")
        """,
    )


def test_seconds_of_a_timeout() -> None:
    comm = rr.local(1)[0]
    default = comm.timeout
    assert rr.init(timeout=None).timeout == float(TIMEOUT) and default == float(TIMEOUT)
    for seconds, then in ((2.5, 2.5), (float("inf"), float("inf")), (1e300, float("inf"))):
        comm.timeout = seconds
        assert comm.timeout == then
    for wrong in (-1.0, float("nan")):
        with pytest.raises(rr.ArgumentError, match=r"or math\.inf"):
            comm.timeout = wrong


def test_a_fork_may_not_use_the_communicator(job: Run) -> None:
    """As the workers of a DataLoader, which are forks by default."""
    job(
        2,
        """
        import multiprocessing
        comm = rr.init()
        started = comm.nonblocking.all_reduce(np.ones(100_000))
        comm.send_object(1, 1 - comm.rank)

        def work(answers):
            said = []
            for call in (comm.barrier, started.wait, started.done, comm.recv_object, comm.close,
                         lambda: comm.all_reduce(np.ones(1))):
                try:
                    call()
                except rr.BrokenError as error:
                    said.append("is a fork" in str(error))
            answers.put(said)

        fork = multiprocessing.get_context("fork")
        answers = fork.SimpleQueue()
        child = fork.Process(target=work, args=(answers,))
        child.start()
        assert answers.get() == [True] * 6
        child.join(20)
        assert child.exitcode == 0
        pid = os.fork()
        if pid == 0:
            sys.exit(7)  # With all that the interpreter does at its end.
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert started.wait()[0] == 2 and comm.recv_object() == 1
        comm.barrier()
        """,
    )


PENDING = {
    "that nobody waits for": "x = comm.nonblocking.all_reduce(np.ones(10))",
    "that others never make": "x = comm.rank or comm.nonblocking.all_reduce(np.ones(10))",
    "that are messages": "x = comm.nonblocking.recv(np.ones(1), tag=9)",
    "that are dropped": "comm.rank or comm.nonblocking.recv(bytearray(9))",
    "of a daemon thread": (
        "threading.Thread(target=comm.rank and (lambda: 0) or comm.barrier, daemon=True).start();"
        " time.sleep(0.1)"
    ),
    "that a loop awaits": "x = [comm.nonblocking.barrier(), asyncio.new_event_loop()]",
}


@pytest.mark.parametrize("pending", PENDING.values(), ids=PENDING.keys())
def test_the_interpreter_ends_with_calls_pending(job: Run, pending: str) -> None:
    began = time.monotonic()
    done = job(2, f"comm = rr.init()\n{pending}\nprint('end')\n", expect=None)
    # A rank whose partner has gone may fail, in words.
    assert done.stdout.count("end") == 2 and done.returncode in (0, 1), done.stderr
    assert time.monotonic() - began < 15


def test_two_copies_in_one_process(tmp_path: Path) -> None:
    package = Path(rr.__file__).parent
    shutil.copytree(package, tmp_path / "ringreduce")
    program = (
        "import sys, ringreduce\n"
        "for name in [it for it in sys.modules if it.startswith('ringreduce')]:\n"
        "    del sys.modules[name]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import ringreduce\n"
    )
    done = run_command([sys.executable, "-c", program], cwd=ROOT)
    assert done.returncode == 1 and "ImportError" in done.stderr, done.stderr
    assert "has loaded version" in done.stderr


def test_a_subprocess_is_no_fork(job: Run) -> None:
    job(
        1,
        """
        import subprocess
        comm = rr.init()
        assert subprocess.run([sys.executable, "-c", "pass"]).returncode == 0
        comm.barrier()
        """,
    )
