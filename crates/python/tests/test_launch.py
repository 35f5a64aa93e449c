"""Under other launchers, and as the package's own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ringreduce as rr
from conftest import HEAD, Run, run_command
from ringreduce.run import command, ringrun

PROGRAM = """
comm = rr.init()
assert comm.all_reduce(np.ones(1))[0] == comm.size == 2
print(f"rank {comm.rank} of {comm.size}")
"""


def script(folder: Path) -> str:
    path = folder / "program.py"
    path.write_text(HEAD + PROGRAM)
    return str(path)


def test_commands_of_the_launcher_itself_are_passed_on() -> None:
    launcher = ringrun()
    assert os.access(launcher, os.X_OK)
    assert command(["status", "job"]) == [launcher, "status", "job"]
    assert command(["-n", "4", "x"]) == [launcher, "--python", sys.executable, "-n", "4", "x"]


SAYS_HOW = """
import sys
import __main__
package = __main__.__spec__ and __main__.__spec__.name
print(package, sys.executable, sys.argv[1:], sys.flags.dev_mode, flush=True)
"""


@pytest.mark.parametrize(
    ("words", "package", "arguments", "is_dev"),
    [
        ("-n 1 {script} x.py", None, ["x.py"], False),
        ("-n 1 -l -- {script} -n 3", None, ["-n", "3"], False),
        ("-n 1 {python} {script} -m x", None, ["-m", "x"], False),
        ("-n 1 {python} -u {script} x", None, ["x"], False),
        ("-n 1 {python} -X dev {script}", None, [], True),
        ("-n 1 {python} -m pkg cfg.py {script}", "pkg.__main__", ["cfg.py", "{script}"], False),
        ("-n 1 -m pkg.mod {script} -n", "pkg.mod", ["{script}", "-n"], False),
        ("-m -n 1 pkg cfg.py", "pkg.__main__", ["cfg.py"], False),
        ("--module --np 1 -- pkg.mod -m x", "pkg.mod", ["-m", "x"], False),
        ("-n 1 --wdir {folder} a\vname.py x", None, ["x"], False),
        ("-n 1 env A=1 {python} {script}", None, [], False),
        ("-n 1 sh -c exec\v'{python}'\v'{script}'\vx.py", None, ["x.py"], False),
    ],
)
def test_the_launcher_takes_any_command(
    tmp_path: Path, words: str, package: str | None, arguments: list[str], is_dev: bool
) -> None:
    """Scripts and modules are started by this Python, anything else as it is."""
    folder = tmp_path / "a folder"
    (folder / "pkg").mkdir(parents=True)
    for name in ["a name.py", "pkg/__init__.py", "pkg/__main__.py", "pkg/mod.py", "cfg.py"]:
        (folder / name).write_text("" if "init" in name else SAYS_HOW)
    names = {"script": str(folder / "a name.py"), "python": sys.executable, "folder": str(folder)}
    launch = [word.replace("\v", " ").format(**names) for word in words.split(" ")]
    done = run_command([sys.executable, "-m", "ringreduce.run", *launch], cwd=folder)
    assert done.returncode == 0, done.stderr
    expected = [argument.format(**names) for argument in arguments]
    assert done.stdout.removeprefix("[0] ") == f"{package} {sys.executable} {expected} {is_dev}\n"


def test_a_test_runner_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("def test_x():\n    pass\n")
    runner = [str(Path(sys.executable).with_name("pytest")), "-q", "test_x.py"]
    done = run_command([sys.executable, "-m", "ringreduce.run", "-n", "1", *runner], cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("-n 1 missing.py", 127, "program not found: missing.py"),
        ("-n 1 -m", 2, "no PROGRAM was given"),
        ("-n 1 -m --no-python pkg", 2, "cannot be used with"),
        ("-n 1 --no-python ./plain.py", 126, "cannot run ./plain.py"),
        ("missing.py", 2, "how many ranks?"),
    ],
)
def test_the_launcher_refuses(tmp_path: Path, words: str, status: int, says: str) -> None:
    (tmp_path / "plain.py").write_text("")
    launch = [sys.executable, "-m", "ringreduce.run", *words.split(" ")]
    done = run_command(launch, cwd=tmp_path)
    assert done.returncode == status and says in done.stderr, done.stderr


def test_the_launcher_reports_the_first_failure(job: Run) -> None:
    done = job(2, "comm = rr.init(); comm.barrier(); sys.exit(3 if comm.rank else 0)", expect=3)
    assert "rank 1" in done.stderr and "failed first" in done.stderr


@pytest.mark.parametrize(
    ("rank", "variables"),
    [
        ("RANK", {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}),
        ("OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}),
        ("SLURM_PROCID", {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}),
    ],
    ids=["torchrun", "Open MPI", "Slurm"],
)
def test_the_variables_of_other_launchers(
    tmp_path: Path, rank: str, variables: dict[str, str]
) -> None:
    """Their variables, as they set them for two ranks on this host."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20_000 + os.getpid() % 10_000),
        "TORCHELASTIC_RUN_ID": str(os.getpid()),
        "PMIX_NAMESPACE": f"prterun-{os.getpid()}@1",
        "OMPI_MCA_ess_base_jobid": str(os.getpid()),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    path = script(tmp_path)
    ranks = [
        subprocess.Popen(
            [sys.executable, path],
            env={**os.environ, **common, **variables, rank: str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said == ["rank 0 of 2\n", "rank 1 of 2\n"]


def test_under_mpirun(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    options = ["--allow-run-as-root", "--oversubscribe"] if _is_open_mpi(mpirun) else []
    done = run_command([mpirun, *options, "-n", "2", sys.executable, script(tmp_path)])
    assert done.returncode == 0, done.stderr
    # Hydra may mix the lines of the ranks where Python writes the end of a line apart.
    assert sorted(re.findall(r"rank \d of \d", done.stdout)) == ["rank 0 of 2", "rank 1 of 2"]
    assert re.sub(r"rank \d of \d|\n", "", done.stdout) == "", done.stdout


def _is_open_mpi(mpirun: str) -> bool:
    return "Open MPI" in run_command([mpirun, "--version"]).stdout


def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = shutil.which("torchrun")
    if torchrun is None:
        pytest.skip("torchrun is not installed")
    done = run_command([torchrun, "--nproc-per-node", "2", script(tmp_path)])
    assert done.returncode == 0, done.stderr


def test_ranks_meet_by_an_id_that_the_program_hands_on(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        HEAD
        + """
rank, at = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
comm = rr.init(rank=rank, size=2, unique_id=at)
print(comm.all_reduce(np.ones(1)).tolist())
"""
    )
    made = rr.unique_id().hex()
    first = subprocess.Popen([sys.executable, str(path), "1", made])
    # The process that made the id holds the place where ranks meet.
    with rr.init(rank=0, size=2, unique_id=bytes.fromhex(made)) as comm:
        assert comm.all_reduce(np.ones(1)) == 2
    assert first.wait(20) == 0
    with pytest.raises(rr.ArgumentError, match="unique_id") as raised:
        rr.init(rank=0, size=1, unique_id=b"short")
    assert raised.value.argument == "unique_id"


def test_an_id_alone_does_not_join_a_job_with_a_secret(tmp_path: Path) -> None:
    """Whoever reads the id on its way lacks the file."""
    secret, path = tmp_path / "secret", tmp_path / "program.py"
    secret.touch(0o600)
    secret.write_text("07" * 32)
    path.write_text(
        HEAD
        + """
rank, at = int(sys.argv[1]), bytes.fromhex(sys.argv[2]) if sys.argv[2:] else rr.unique_id()
print(at.hex(), flush=True)
comm = rr.init(rank=rank, size=2, unique_id=at)
print(comm.all_reduce(np.ones(1)).tolist())
"""
    )
    command = [sys.executable, str(path)]
    first = subprocess.Popen(
        [*command, "0"],
        env={**os.environ, "RINGREDUCE_SECRET_FILE": str(secret)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    made = first.stdout.readline().strip()
    stranger = run_command([*command, "1", made])
    assert stranger.returncode != 0 and "secret" in stranger.stderr, stranger.stderr
    member = run_command([*command, "1", made], RINGREDUCE_SECRET_FILE=str(secret))
    assert member.returncode == 0 and "[2.0]" in member.stdout, member.stderr
    assert first.communicate(timeout=20)[0] == "[2.0]\n" and first.returncode == 0


def test_an_id_goes_sealed() -> None:
    from ringreduce import _core

    made, key = rr.unique_id(), _core.UniqueIdKey()
    sealed = _core.seal_unique_id(made, key.public)
    assert made[26:58] not in sealed
    assert key.open(sealed) == made
    with pytest.raises(rr.ArgumentError, match="used"):
        key.open(sealed)
    with pytest.raises(rr.ArgumentError, match="no public key"):
        _core.seal_unique_id(made, b"short")
