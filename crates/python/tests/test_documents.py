"""The commands of the documents that are Python's: run, and compared with what is shown."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_command

FENCE = re.compile(r"(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: What examples need, by the beginnings of their names.
PACKAGES = {
    "torch": "torch",
    "keras": "tensorflow",
    "lightgbm": "lightgbm",
    "jax": "jax",
    "ray": "ray",
}


def commands() -> list[tuple[str, str | None]]:
    """Commands that begin with `python`, each with the output that is shown below it."""
    found: list[tuple[str, str | None]] = []
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]):
        last = False
        for note, language, body in FENCE.findall(page.read_text()):
            if language == "text" and note == "output" and last:
                found[-1] = (found[-1][0], body)
            words = body.strip()
            is_run = not note.startswith("test: not run")
            last = language == "sh" and words.startswith("python ") and is_run
            if last:
                found.append((words, None))
    return found


@pytest.mark.parametrize(("command", "shown"), commands(), ids=[it for it, _ in commands()])
def test_commands_print_what_is_shown(command: str, shown: str | None) -> None:
    _, *arguments = shlex.split(command)
    for example, package in PACKAGES.items():
        if f"examples/{example}_" in command:
            pytest.importorskip(package, reason=f"{package} is not installed")
    done: subprocess.CompletedProcess[str] = run_command([sys.executable, *arguments], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    if shown is not None:
        assert sorted(done.stdout.splitlines()) == sorted(shown.splitlines())


def test_there_are_commands() -> None:
    assert len(commands()) >= 2 and all(shown for _, shown in commands())
    install = "pip install ./crates/python"
    assert install in Path(ROOT / "docs/python.md").read_text().splitlines()
