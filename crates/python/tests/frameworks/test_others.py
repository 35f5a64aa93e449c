"""Keras' training, and LightGBM."""

import sys
from pathlib import Path

import pytest
from conftest import Run, run_command

PROGRAMS = Path(__file__).parent / "programs"


def launch(size: int, program: str, *arguments: str) -> str:
    """What a program of ranks prints."""
    command = [sys.executable, "-m", "ringreduce.run", "-n", str(size), sys.executable]
    command += [str(PROGRAMS / program), *arguments]
    done = run_command(command, OMP_NUM_THREADS="1", TEST_LIMIT="150")
    if not arguments:
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("size", [2, 3])
def test_keras_trains_as_one_process_does(size: int) -> None:
    pytest.importorskip("tensorflow")
    out = launch(size, "tensorflow_training.py")
    assert out.count("Keras trains as one process does") == size


def test_three_ranks_train_lightgbms_model_of_one() -> None:
    pytest.importorskip("lightgbm")
    out = launch(3, "lightgbm_training.py")
    assert out.count("LightGBM's model is that of one process") == 3


def test_a_killed_rank_ends_lightgbms_training_with_its_name() -> None:
    pytest.importorskip("lightgbm")
    out = launch(3, "lightgbm_training.py", "killed")
    assert out.count("raises PeerLostError") == 2 and out.count("lost rank 2") == 2, out


NETWORK = """\
import lightgbm as lgb
import ringreduce.lightgbm

comm = rr.init()
rank, size = comm.rank, comm.size
rows = np.random.default_rng(0).random((300, 3))
data = lgb.Dataset(rows, rows[:, 0], free_raw_data=False).construct()
OPTIONS = {"tree_learner": "data", "num_machines": size, "num_threads": 1, "verbose": -1}
network = ringreduce.lightgbm.network

def train(**options):
    return lgb.train({**OPTIONS, **options.pop("parameters", {})}, data, 5, **options)

def refused(kind, work, *words):
    try:
        work()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)
"""


def test_lightgbms_network_refuses_what_makes_no_sense(job: Run) -> None:
    pytest.importorskip("lightgbm")
    done = job(
        2,
        NETWORK
        + """
def enter(comm):
    with network(comm):
        train()

refused(rr.ArgumentError, lambda: enter("a communicator"), "network: comm", "str")
with network(comm):
    refused(rr.ArgumentError, lambda: enter(comm), "network: comm", "second")
    train()
# A mistake of all ranks' leaves the communicator as it was.
def wrong():
    with network(comm):
        train(parameters={"objective": "nothing"})
refused(lgb.basic.LightGBMError, wrong, "nothing")
enter(comm)
comm.close()
refused(rr.BrokenError, lambda: enter(comm), "closed")
print("refused")
""",
        OMP_NUM_THREADS="1",
    )
    assert done.stdout.count("refused") == 2, done.stdout + done.stderr


def test_an_exception_in_a_callback_ends_lightgbms_training_everywhere(job: Run) -> None:
    pytest.importorskip("lightgbm")
    done = job(
        2,
        NETWORK
        + """
def raises(_):
    if rank == 1:
        raise KeyError("mine")

signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    with network(comm):
        train(callbacks=[raises])
except rr.Error as error:
    print("raised:", type(error).__name__, error, flush=True)
""",
        expect=None,
        OMP_NUM_THREADS="1",
    )
    out = done.stdout + done.stderr
    assert "KeyError: 'mine'" in out, out
    assert out.count("raised:") == 1 and "rank 1" in out, out
