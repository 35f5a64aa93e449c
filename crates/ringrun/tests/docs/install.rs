//! The packages of a checkout that the documents tell people to add or to install. May touch: a
//! folder of its own, cargo.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Cargo adds the package at `path` to a new crate, without writing it.
pub(crate) fn can_be_added(path: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
    let package = "[package]\nname = \"yours\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n";
    let written = fs::write(folder.path().join("Cargo.toml"), package)
        .and_then(|()| fs::write(folder.path().join("lib.rs"), ""));
    written.map_err(|why| why.to_string())?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["add", "--dry-run", "--offline", "--path"]).arg(path).current_dir(folder.path());
    let output = cargo.output().map_err(|why| format!("cargo: {why}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| said.into_owned())
}

/// Cargo builds for minutes to install the package at `path`, so its manifest must do.
pub(crate) fn has_programs(path: &Path) -> Result<(), String> {
    let manifest = path.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|why| format!("{manifest:?}: {why}"))?;
    let has_program = text.lines().any(|line| line == "[[bin]]");
    has_program.then_some(()).ok_or_else(|| format!("{manifest:?} has no program"))
}
