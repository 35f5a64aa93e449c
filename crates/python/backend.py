"""The build backend: maturin, after cargo has built the launcher that goes into the wheel."""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import get_requires_for_build_wheel  # noqa: F401

HERE = Path(__file__).resolve().parent


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds ringrun, and then the wheel with it among its scripts."""
    root = HERE.parent.parent
    if not (root / "crates/ringrun/Cargo.toml").is_file():
        raise RuntimeError("ringreduce's wheel is built in a clone of its repository")
    # The folders of other builds of this clone, whose work is not done twice.
    os.environ.setdefault("CARGO_TARGET_DIR", str(root / "target/python/cargo"))
    manifest = root / "crates/ringrun/Cargo.toml"
    build = ["cargo", "build", "--release", "--bin", "ringrun", "--manifest-path", str(manifest)]
    subprocess.run([*build, "--target-dir", str(root / "target")], check=True)
    scripts = HERE / "target/launcher/scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    shutil.copy2(root / "target/release/ringrun", scripts / "ringrun")
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
