"""TensorFlow's operators: their results and gradients, and what goes wrong."""

import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Run, run_command

pytest.importorskip("tensorflow")

PROGRAMS = Path(__file__).parent / "programs"

HEAD = """\
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras, re
import tensorflow as tf
import ringreduce.tensorflow as rtf

comm = rtf.init()
rank, size = comm.rank, comm.size
call = tf.function(rtf.all_reduce)
FACTS = r"rank {} \\(.*step"

def raised(kind, work, *words):
    try:
        work()
    except kind as error:
        message = getattr(error, "message", str(error))
        assert all(word in message for word in words), message
        return error
    raise AssertionError(words)
"""


def launch(size: int, program: str) -> str:
    """What a program of ranks prints."""
    command = [sys.executable, "-m", "ringreduce.run", "-n", str(size), sys.executable]
    done = run_command([*command, str(PROGRAMS / program)], OMP_NUM_THREADS="1", TEST_LIMIT="120")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ends(job: Run, body: str, size: int = 2, expect: int | None = 0) -> str:
    """What ranks print that run `body`."""
    program = HEAD + textwrap.dedent(body)
    done = job(size, program, expect=expect, OMP_NUM_THREADS="1", TEST_LIMIT="120")
    return done.stdout + done.stderr


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_call_is_right(size: int) -> None:
    assert launch(size, "tensorflow_calls.py").count("all calls are right") == size


def test_ranks_are_the_workers_of_tensorflows_own_strategy() -> None:
    assert launch(2, "tensorflow_workers.py").count("the sum is right") == 2


def test_a_graph_makes_every_call_that_the_program_makes(job: Run) -> None:
    """Calls that are alike, of constants, or whose results nobody uses, are no less than others."""
    out = ends(
        job,
        """
        @tf.function
        def step(x):
            rtf.all_reduce(x * 2)
            alike = rtf.all_reduce(x) + rtf.all_reduce(x)
            return alike + rtf.all_reduce(tf.constant(1.0))

        def count():
            name = r'ringreduce_calls_total{collective="all_reduce".*} (\\d+)'
            found = re.search(name, comm.monitor().metrics())
            return int(found.group(1)) if found else 0

        step(tf.constant(1.0))
        before = count()
        for _ in range(3):
            step(tf.constant(1.0))
        assert count() == before + 12, (before, count())
        print("counted")
        """,
    )
    assert out.count("counted") == 2, out


def test_wrong_arguments_are_errors_that_name_them(job: Run) -> None:
    out = ends(
        job,
        """
        for name in ("all_reduce", "broadcast", "all_gather"):
            verb = getattr(rtf, name)
            slices, ragged = tf.IndexedSlices(tf.ones([1, 2]), [0]), tf.ragged.constant([[1]])
            for wrong in ("text", slices, ragged):
                raised(rr.ArgumentError, lambda: verb(wrong), f"{name}: tensor is of type")
        raised(Exception, lambda: call("text"), "all_reduce: tensor", "string")
        raised(rr.ArgumentError, lambda: rtf.all_reduce(1.0, "mean"), "op", "mean", "avg")
        raised(rr.ArgumentError, lambda: rtf.all_reduce(True), "op", "sum", "bool")
        error = raised(rr.ArgumentError, lambda: rtf.broadcast(1.0, size), "root", "0 to 1")
        assert (error.call, error.argument) == ("broadcast", "root")
        for dimensions in [1, 2 + rank], [1, 2 + rank, 3 - rank], [1, 2, 1][: 2 + rank]:
            gather = lambda: rtf.all_gather(tf.ones(dimensions))
            raised(rr.ArgumentError, gather, "tensor", f"rows of shape {dimensions[1:]}")
        wrong = tf.errors.InvalidArgumentError
        raised(wrong, lambda: call(tf.ones([2]), "mean"), "all_reduce: op", "mean", "avg")
        raised(wrong, lambda: tf.function(rtf.broadcast)(1.0, -1), "broadcast: root", "0 to 1")
        with tf.GradientTape() as tape:
            x = tf.Variable(1.0)
            y = rtf.all_reduce(x, "max")
        raised(rr.ArgumentError, lambda: tape.gradient(y, x), "op", "sum or avg")
        raised(rr.ArgumentError, lambda: rtf.init("a communicator"), "init: comm", "str")
        assert rtf.all_reduce(1.0).numpy() == size, "the ranks are in step"
        print("refused")
        """,
    )
    assert out.count("refused") == 2, out


def test_lengths_that_differ_and_a_closed_communicator(job: Run) -> None:
    """Eagerly these are the library's exceptions, and TensorFlow's with its text in a graph."""
    out = ends(
        job,
        """
        spare = comm.duplicate(), comm.duplicate()
        error = raised(rr.MismatchError, lambda: rtf.all_reduce(tf.ones([2 + rank])), "count")
        assert (error.rank, error.peer, error.call) == (rank, 1 - rank, "all_reduce")
        raised(rr.BrokenError, lambda: rtf.all_reduce(1.0), "failed before")
        rtf.init(spare[0])
        wrong = tf.errors.InvalidArgumentError
        error = raised(wrong, lambda: call(tf.ones([2 + rank])), "count", f"rank {1 - rank}")
        assert re.search(FACTS.format(rank), error.message), error.message
        assert isinstance(rtf.communicator().monitor().error(), rr.MismatchError)
        broken = tf.errors.FailedPreconditionError
        raised(broken, lambda: call(tf.ones([2])), "failed before")
        rtf.init(spare[1])
        assert call(tf.ones([2])).numpy()[0] == size
        spare[1].close()
        raised(rr.BrokenError, lambda: rtf.all_reduce(1.0), "closed")
        raised(broken, lambda: call(tf.ones([2])), "all_reduce: the communicator is closed")
        print("refused")
        """,
    )
    assert out.count("refused") == 2, out


FIT = """
class Trouble(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == 1 and batch == 2:
            {trouble}

signal.signal(signal.SIGTERM, signal.SIG_IGN)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(rtf.DistributedOptimizer("sgd"), "mse", jit_compile=False)
callbacks = [rtf.BroadcastVariables(), Trouble()]
fit = lambda: model.fit(np.ones((64, 3)), np.ones(64), 4, verbose=0, callbacks=callbacks)
"""


@pytest.mark.parametrize(
    "trouble",
    ["os.kill(os.getpid(), signal.SIGKILL)", "raise KeyError('mine')"],
    ids=["is killed", "has a callback that raises"],
)
def test_a_rank_that_ends_during_fit_is_named_at_the_others(job: Run, trouble: str) -> None:
    body = """
        if rank == 1:
            fit()
        error = raised(tf.errors.AbortedError, fit, "rank 1")
        assert re.search(FACTS.format(rank), error.message), error.message
        assert rtf.communicator().monitor().error().peer == 1
        print("named", flush=True)
        os._exit(0)
        """
    out = ends(job, FIT.format(trouble=trouble) + textwrap.dedent(body), expect=None)
    assert out.count("named") == 1, out
    assert ("mine" in out) == ("mine" in trouble), out


@pytest.mark.parametrize("call", ["all_reduce", "broadcast", "all_gather"])
def test_a_rank_without_memory_holds_nobody_up(job: Run, call: str) -> None:
    out = ends(
        job,
        f"""
        import pathlib, resource
        part = tf.ones([512 << 20], tf.uint8)
        rtf.all_reduce(1.0)
        if rank == 1:
            now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), -1))
        kind = (rr.AbortedError, tf.errors.ResourceExhaustedError)[rank]
        raised(kind, lambda: rtf.{call}(part), "{call}" if rank == 0 else "OOM")
        print("noticed", flush=True)
        # A rank that ends before the other one has looked would be a lost one.
        noticed = pathlib.Path("noticed")
        if rank == 0:
            noticed.touch()
        while not noticed.exists():
            time.sleep(0.01)
        os._exit(0)
        """,
    )
    assert out.count("noticed") == 2, out


@pytest.mark.parametrize("behind_another", [False, True])
def test_ctrl_c_ends_an_eager_call(job: Run, behind_another: bool) -> None:
    """In the library, or while a graph on another thread makes a call."""
    out = ends(
        job,
        f"""
        if rank == 1:
            comm.recv(bytearray(1), 0)
            os._exit(0)
        if {behind_another}:
            threading.Thread(target=lambda: call(tf.ones([2])), daemon=True).start()
            while comm.monitor().current_call() is None:
                time.sleep(0.001)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        raised(KeyboardInterrupt, lambda: rtf.all_reduce(1.0))
        print("interrupted", flush=True)
        os._exit(0)
        """,
        expect=None,
    )
    assert out.count("interrupted") == 1, out


@pytest.mark.parametrize("pending", ["call(tf.ones([2]))", "rtf.all_reduce(1.0)"])
def test_the_interpreter_ends_with_calls_pending(job: Run, pending: str) -> None:
    out = ends(
        job,
        f"""
        call(tf.ones([2]))
        if rank == 0:
            threading.Thread(target=lambda: {pending}, daemon=True).start()
            while comm.monitor().current_call() is None:
                time.sleep(0.001)
        print("the last line", flush=True)
        """,
        expect=None,
    )
    assert out.count("the last line") == 2 and "signal" not in out and "core dumped" not in out, out


def test_a_fork_may_not_make_calls(job: Run) -> None:
    out = ends(
        job,
        """
        rtf.all_reduce(1.0)
        pid = os.fork()
        if pid == 0:
            raised(rr.BrokenError, lambda: rtf.all_reduce(1.0), "is a fork")
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert rtf.all_reduce(1.0).numpy() == size
        print("in step", flush=True)
        """,
    )
    assert out.count("in step") == 2, out
