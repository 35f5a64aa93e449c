"""The stubs: what type checkers accept, and that they say what there is."""

import subprocess
import sys
from pathlib import Path

import ringreduce as rr
from ringreduce import _core

HERE = Path(__file__).resolve().parent.parent

WRONG = [
    "comm.all_reduce('text')",
    "comm.all_reduce(array, op='mean')",
    "comm.broadcast(array, root='0')",
    "rr.init(colour=3)",
    "comm.nonblocking.all_reduce(array).wait().upper()",
    "comm.recv(array).sender",
]

RIGHT = """
result: np.ndarray = comm.all_reduce(array)
out: bytearray = comm.all_gather(array, bytearray(8))
handle: rr.Handle[np.ndarray] = comm.nonblocking.all_reduce(array)
same: np.ndarray = handle.wait(timeout=1.0)
rank: int = comm.recv(array).rank
names: list[str] = comm.all_gather_object("x")
"""


def check(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


def test_all_python_code_has_types_that_fit() -> None:
    folders = ("python/ringreduce", "tests", "examples", "benches")
    done = check("mypy", *folders)
    assert done.returncode == 0, done.stdout


def test_all_python_code_is_formatted_and_clean() -> None:
    for arguments in (["format", "--check"], ["check"]):
        done = check("ruff", *arguments, ".")
        assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_found(tmp_path: Path) -> None:
    head = "import numpy as np\nimport ringreduce as rr\ncomm = rr.init()\narray = np.ones(1)\n"
    program = tmp_path / "program.py"
    program.write_text(head + RIGHT + "\n".join(WRONG) + "\n")
    done = check("mypy", "--no-incremental", str(program))
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    first = len((head + RIGHT).splitlines()) + 1
    found = sorted({int(line.split(":")[1]) for line in lines})
    assert found == list(range(first, first + len(WRONG))), done.stdout


def test_the_stubs_say_what_there_is() -> None:
    done = check("mypy.stubtest", "ringreduce._core", "--concise", "--ignore-disjoint-bases")
    # Before Python 3.12 no class shows that it has buffers.
    odd = [line for line in done.stdout.splitlines() if "Memory.__buffer__" not in line]
    assert not odd, "\n".join(odd)


def test_what_is_public_has_a_description() -> None:
    for name in rr.__all__:
        assert getattr(rr, name).__doc__, name
    for kind in (_core.Communicator, _core.Nonblocking, _core.Handle, _core.Monitor):
        for name, member in vars(kind).items():
            assert name.startswith("_") or member.__doc__, f"{kind.__name__}.{name}"
