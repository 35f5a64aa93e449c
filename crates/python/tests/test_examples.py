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


def test_trainer() -> None:
    assert run("trainer.py", 2) == [f"rank {rank}: y = 3.00 x + 1.00" for rank in range(2)]


def images(folder: Path) -> None:
    """Files as those of Fashion-MNIST, with few images."""
    for name, count in (("train", 256), ("t10k", 64)):
        pixels, classes = bytes(range(256)) * (count * 784 // 256), bytes(range(10)) * count
        (folder / f"{name}-images-idx3-ubyte").write_bytes(bytes(16) + pixels)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(bytes(8) + classes[:count])


@pytest.mark.parametrize(("program", "package"), [("torch", "torch"), ("keras", "tensorflow")])
def test_lenet(program: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    images(tmp_path)
    script = str(EXAMPLES / f"{program}_lenet.py")
    launcher = [sys.executable, "-m", "ringreduce.run", "-n", "2"]
    done = run_command([*launcher, script, str(tmp_path), "--epochs", "1"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("epoch 0: loss "), done.stdout


def test_jax_callback() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    assert run("jax_callback.py", 2) == [f"rank {rank}: [4.0, 4.0]" for rank in range(2)]
