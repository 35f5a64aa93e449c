"""TensorFlow with Keras, and LightGBM."""

import sys
from pathlib import Path

import pytest
from conftest import run_command

PROGRAMS = Path(__file__).parent / "programs"


def launch(size: int, program: str, *arguments: str) -> str:
    """What a program of ranks prints."""
    command = [sys.executable, "-m", "ringreduce.run", "-n", str(size), sys.executable]
    done = run_command([*command, str(PROGRAMS / program), *arguments], OMP_NUM_THREADS="1")
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
