"""The build backend: maturin, after cargo has built the launcher that goes into the wheel, and the
C compiler the operators of TensorFlow, which are built without TensorFlow."""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import maturin
from maturin import get_requires_for_build_wheel  # noqa: F401

HERE = Path(__file__).resolve().parent


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds ringrun, and then the wheel with it among its scripts.

    Of pip's `--config-settings`, `profile=NAME` is another of cargo's profiles than `release`, and
    `launcher=PATH` a ringrun that is built already.
    """
    settings = dict(config_settings or {})
    profile, launcher = str(settings.pop("profile", "release")), settings.pop("launcher", None)
    if profile != "release":
        settings["maturin.build-args"] = f"--profile {profile}"
    root = HERE.parent.parent
    if not (root / "crates/ringrun/Cargo.toml").is_file():
        raise RuntimeError("ringreduce's wheel is built in a clone of its repository")
    # The folder of other builds of this clone, whose work is not done twice.
    target = root / "target"
    os.environ.setdefault("CARGO_TARGET_DIR", str(target))
    if launcher is None:
        build = ["cargo", "build", "--profile", profile, "--bin", "ringrun"]
        subprocess.run([*build, "--target-dir", str(target)], cwd=root, check=True)
        launcher = target / ("debug" if profile == "dev" else profile) / "ringrun"
    scripts = HERE / "target/launcher/scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    shutil.copy2(str(launcher), scripts / "ringrun")
    build_operators(HERE / "target/launcher/platlib/ringreduce/tensorflow")
    return maturin.build_wheel(wheel_directory, settings, metadata_directory)


def build_operators(folder: Path) -> None:
    """Builds operators.so, which takes its symbols from the library that TensorFlow has loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    library = "libtensorflow_framework.so.2"
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"{compiler[0]} is missing, a C compiler, which builds TensorFlow's operators: "
            "install gcc or clang, or set CC"
        )
    compile_shared = [*compiler, "-std=c11", "-O2", "-shared", "-fPIC"]
    with tempfile.TemporaryDirectory() as scratch:
        # An empty library of that name has the loader look for symbols in the true one.
        stub = [f"-Wl,-soname,{library}", "-x", "c", os.devnull, "-o", f"{scratch}/{library}"]
        subprocess.run([*compile_shared, *stub], check=True)
        source = HERE / "python/ringreduce/tensorflow/operators.c"
        needed = ["-Wl,--no-as-needed", f"{scratch}/{library}"]
        output = ["-o", str(folder / "operators.so")]
        subprocess.run([*compile_shared, str(source), *needed, *output], check=True)
