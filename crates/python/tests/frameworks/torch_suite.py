"""Runs PyTorch's own tests of collectives and DDP, as its wheel has them, and notes each outcome.

python suite.py BACKEND WORLD_SIZE [--out FILE] [NAME...]

BACKEND is gloo, or ringreduce, which the tests then name where they name gloo.
FILE gets a line of JSON for each test: its name, and passed, failed, error or skipped.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

MODULE = "torch.testing._internal.distributed.distributed_test"


def load(backend: str) -> Any:
    """PyTorch's tests, which ask for the backend where they asked for gloo."""
    from torch.testing._internal import common_distributed as common

    for backends in common.DistTestCases.backend_feature.values():
        if "gloo" in backends:
            backends.add(backend)
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text()
    # The others are a test of gloo's own settings, and the lists of the backends in C++, whose
    # works are events of the profiler from start to end.
    name = re.compile(
        r'(?<!== )"gloo"|(?<=BACKEND == )"gloo"|(?<=backend=)dist\.Backend\.GLOO'
        r"|(?<=backend == )dist\.Backend\.GLOO"
    )
    tests = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = tests
    exec(compile(name.sub(f'"{backend}"', source), spec.origin, "exec"), tests.__dict__)
    return tests


class Outcomes(unittest.TextTestResult):
    """Writes a line for each test as it ends."""

    file: Any = None
    began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.began = time.monotonic()
        super().startTest(test)

    def note(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        seconds = round(time.monotonic() - self.began, 1)
        line = {"test": test.id().split(".")[-1], "outcome": outcome, "seconds": seconds}
        if why:
            lines = [it for it in why.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", it)]
            line["why"] = (lines or why.strip().splitlines())[-1][:300]
        print(json.dumps(line), file=self.file, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.note(test, "passed")
        super().addSuccess(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.note(test, "skipped", reason)
        super().addSkip(test, reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.note(test, "failed", str(err[1]))
        super().addFailure(test, err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.note(test, "error", str(err[1]))
        super().addError(test, err)


def main() -> None:
    """Runs the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=["gloo", "ringreduce"])
    parser.add_argument("world_size", type=int)
    parser.add_argument("--out", default="/dev/null")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    os.environ.update(
        BACKEND=asked.backend,
        WORLD_SIZE=str(asked.world_size),
        TEMP_DIR=folder.name,
        MASTER_ADDR="127.0.0.1",
        OMP_NUM_THREADS="1",
    )
    sys.argv[1:] = []
    os.makedirs(os.path.join(folder.name, "barrier"))
    Path(folder.name, "lockfile").touch()
    os.makedirs(os.path.join(folder.name, "init_dir"))
    if asked.backend == "ringreduce":
        importlib.import_module("ringreduce.torch")
    tests = load(asked.backend)

    class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # PyTorch's own file spawns, and each rank loads PyTorch again.
            self._start_processes(multiprocessing.get_context("fork").Process)

    # Ranks find the class by its name.
    globals()["Suite"] = Suite
    Suite.__qualname__ = "Suite"
    loader = unittest.TestLoader()
    names = asked.names or loader.getTestCaseNames(Suite)
    suite = unittest.TestSuite(Suite(name) for name in names)
    with open(asked.out, "w") as file:
        Outcomes.file = file
        done = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(suite)
    folder.cleanup()
    sys.exit(not done.wasSuccessful())


if __name__ == "__main__":
    main()
