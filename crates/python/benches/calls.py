"""Times of blocking all_reduce calls on NumPy arrays by length, beside mpi4py's: a table.

python crates/python/benches/calls.py [--ranks N] [--mpirun PATH] [--mpi-python PATH]

mpi4py is run if its Python and mpirun are there. Each time is the best mean of several runs, of the
slowest rank.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = [8 << (2 * n) for n in range(11)] + [16 << 20]


def measure(call: Callable[[Any, Any], object], slowest: Callable[[float], float]) -> list[float]:
    """Microseconds of a call, by length."""
    times = []
    for size in SIZES:
        send, recv = np.ones(size // 8), np.zeros(size // 8)
        count = int(max(5, min(20_000, (64 << 20) / (size + 4096))))
        for _ in range(count // 5 + 2):
            call(send, recv)
        best = float("inf")
        for _ in range(7):
            began = time.perf_counter()
            for _ in range(count):
                call(send, recv)
            best = min(best, slowest((time.perf_counter() - began) / count))
        times.append(best * 1e6)
    return times


def by_ringreduce() -> tuple[int, list[float]]:
    """This rank and the times."""
    import ringreduce as rr

    comm = rr.init()
    slowest = lambda it: float(comm.all_reduce(np.array([it]), op="max")[0])  # noqa: E731
    return comm.rank, measure(comm.all_reduce, slowest)


def by_mpi4py() -> tuple[int, list[float]]:
    """This rank and the times."""
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

    comm = MPI.COMM_WORLD
    return comm.rank, measure(comm.Allreduce, lambda it: float(comm.allreduce(it, op=MPI.MAX)))


LIBRARIES = {"ringreduce": by_ringreduce, "mpi4py": by_mpi4py}


def run(command: list[str]) -> list[float] | None:
    """The times that rank 0 of a job prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode != 0 or not lines:
        print(f"{' '.join(command)}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    times: list[float] = json.loads(lines[0])
    return times


def main() -> None:
    """Runs both libraries and prints their times side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--mpi-python", default=sys.executable)
    parser.add_argument("--rank-of", choices=list(LIBRARIES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank, times = LIBRARIES[options.rank_of]()
        if rank == 0:
            print(json.dumps(times))
        return
    us = [__file__, "--rank-of", "ringreduce"]
    columns = {
        "ringreduce": run([sys.executable, "-m", "ringreduce.run", "-n", options.ranks, *us])
    }
    mpirun = shutil.which(options.mpirun)
    if mpirun:
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", options.ranks]
        them = [options.mpi_python, __file__, "--rank-of", "mpi4py"]
        columns["mpi4py"] = run([*command, *them])
    print(f"all_reduce of {options.ranks} ranks, us   " + "  ".join(f"{it:>10}" for it in columns))
    for at, size in enumerate(SIZES):
        cells = "  ".join(f"{it[at]:10.2f}" if it else f"{'-':>10}" for it in columns.values())
        print(f"{size:>12} bytes            {cells}")


if __name__ == "__main__":
    main()
