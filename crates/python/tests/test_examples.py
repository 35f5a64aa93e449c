"""The examples, run as their users would."""

import sys
from pathlib import Path

import pytest
from conftest import run_command

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, size: int) -> list[str]:
    """The lines that an example prints, sorted."""
    command = [sys.executable, "-m", "ringreduce.run", "-n", str(size), str(EXAMPLES / name)]
    done = run_command(command)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_all_reduce() -> None:
    lines = [f"rank {rank} of 4: [6.0, 4.0, 40.0]" for rank in range(4)]
    assert run("all_reduce.py", 4) == lines
    alone = run_command([sys.executable, str(EXAMPLES / "all_reduce.py")])
    assert alone.stdout == "rank 0 of 1: [0.0, 1.0, 10.0]\n"


def test_overlap() -> None:
    means = [[0.5] * 3, [0.5] * 5]
    assert run("overlap.py", 2) == [f"rank {rank}: {means}" for rank in range(2)]


def test_objects() -> None:
    ranks = [f"rank {rank}: [0, 1, 2]" for rank in range(3)]
    assert run("objects.py", 3) == [*ranks, "{'rate': 0.1} [1, 2]"]


def test_jax_callback() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    assert run("jax_callback.py", 2) == [f"rank {rank}: [4.0, 4.0]" for rank in range(2)]
