"""What the tests share: ranks as threads and as processes, and the report that CI counts."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringreduce as rr

ROOT = Path(__file__).resolve().parents[3]

#: Waits of all tests, in seconds: a rank that hangs is an error.
TIMEOUT = "20"

Body = Callable[[rr.Communicator], Any]

# A shell has its background jobs ignore Ctrl-C, which programs that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: The tests of frameworks, each of which loads one, that a run with TEST_SEED makes: one in so
#: many. TEST_SHARE=all makes all of them, as a run without a seed does.
SHARE = 8
_SEED = int(os.environ.get("TEST_SEED", "0"))
_IS_ALL = os.environ.get("TEST_SHARE") == "all" or "TEST_SEED" not in os.environ


def share(cases: list[Any], of: int, seed: int) -> list[Any]:
    """The cases that this run makes: one in so many, or all."""
    return cases if _IS_ALL else cases[seed % of :: of]


def share_of_names(names: list[str], of: int) -> list[str]:
    """A test's share of its cases, whichever seeds make the test itself."""
    return share(names, of, _SEED // SHARE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes the share."""
    of_frameworks = [item for item in items if item.path.parent.name == "frameworks"]
    made = share(of_frameworks, SHARE, _SEED)
    left = [item for item in of_frameworks if item not in made]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes away the settings of the one who runs the tests."""
    for name in list(os.environ):
        # Slurm's variables would place the ranks of ringrun on all hosts of an allocation.
        if name.startswith(("RINGREDUCE_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RINGREDUCE_TIMEOUT", TIMEOUT)


def on_threads(size: int, body: Body) -> list[Any]:
    """Runs `body` once for each rank, on a thread each. Raises the first exception."""
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def work(comm: rr.Communicator) -> None:
        try:
            results[comm.rank] = body(comm)
        except BaseException as failure:
            failures.append(failure)
            comm.monitor().abort()

    threads = [threading.Thread(target=work, args=(comm,)) for comm in rr.local(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Run]:
    """Runs a program as so many processes, by the launcher of the package."""

    def run(
        size: int, program: str, *arguments: str, expect: int | None = 0, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(program))
        command = [sys.executable, "-m", "ringreduce.run", "-n", str(size), str(script)]
        done = run_command([*command, *arguments], cwd=tmp_path, **environment)
        assert expect is None or done.returncode == expect, done.stdout + done.stderr
        return done

    yield run


HEAD = """\
import asyncio, os, signal, sys, threading, time
import numpy as np
import ringreduce as rr
"""


def run_command(
    command: list[str], cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end, which must come soon."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=float(environment.get("TEST_LIMIT", 60)),
        check=False,
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Reports as Rust's tests do, for .ci/summary: a skipped test counts as passed there, and its
    line on the error output takes it away."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    count = {kind: len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error")}
    skipped = reporter.stats.get("skipped", [])
    failed = count["failed"] + count["error"]
    for report in skipped:
        name = "".join(c if c.isalnum() else "_" for c in report.nodeid.rpartition("::")[2])
        reason = report.longrepr[2].removeprefix("Skipped: ")
        os.write(2, f"SKIP python::{name}: {reason}\n".encode())
    word = "FAILED" if failed else "ok"
    passed = count["passed"] + len(skipped)
    print(f"\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored;")
