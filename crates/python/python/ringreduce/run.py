"""`python -m ringreduce.run -n 4 script.py`: ringrun, which starts scripts by this Python."""

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
    """The launcher's command, where this Python starts scripts and modules. A job's command line
    begins with an option, such as `-n`, and that of a subcommand with its name."""
    if not arguments or not arguments[0].startswith("-"):
        return [ringrun(), *arguments]
    if not sys.executable:
        raise SystemExit("ringreduce.run: this Python does not know its own path: start it by path")
    return [ringrun(), "--python", sys.executable, *arguments]


def main() -> None:
    """Becomes the launcher."""
    words = command(sys.argv[1:])
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
