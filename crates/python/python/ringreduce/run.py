"""`python -m ringreduce.run -n 4 script.py`: ringrun, which starts this Python for a script."""

import os
import sys
from importlib.metadata import files
from pathlib import Path


def ringrun() -> str:
    """The path of the launcher that was installed with this package."""
    for file in files("ringreduce") or []:
        if file.name == "ringrun":
            return str(Path(file.locate()).resolve())
    raise SystemExit("ringreduce.run: ringrun is not installed: install the wheel of ringreduce")


def command(arguments: list[str]) -> list[str]:
    """The launcher's command. The first argument that is a Python file is started by Python."""
    scripts = (at for at, word in enumerate(arguments) if word.endswith(".py"))
    at = next((at for at in scripts if os.path.isfile(arguments[at])), None)
    if at is not None and not (at > 0 and _is_python(arguments[at - 1])):
        arguments = [*arguments[:at], sys.executable, *arguments[at:]]
    return [ringrun(), *arguments]


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")


def main() -> None:
    """Becomes the launcher."""
    words = command(sys.argv[1:])
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
