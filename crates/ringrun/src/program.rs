//! Finds the program before anything is started, so that a wrong name is one clear error and not
//! one per rank.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::failure::Failure;

/// The file that `name` means for ranks that start in `directory` with this PATH.
///
/// # Errors
/// [`Failure::NotFound`] and [`Failure::NotExecutable`], as a shell would tell them apart.
pub(crate) fn find(name: &OsStr, directory: &Path, path: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let file = directory.join(name);
        return match judge(&file) {
            Found::Yes => Ok(file),
            Found::No(why) => Err(Failure::NotExecutable(format!("cannot run {shown}: {why}"))),
            Found::Nothing => Err(Failure::NotFound(format!(
                "program not found: {shown} (looked in {})",
                directory.display()
            ))),
        };
    }
    let mut refused = None;
    for folder in std::env::split_paths(path) {
        let file = directory.join(folder).join(name);
        match judge(&file) {
            Found::Yes => return Ok(file),
            Found::No(why) => refused = refused.or(Some((file, why))),
            Found::Nothing => {}
        }
    }
    if let Some((file, why)) = refused {
        let file = file.display();
        return Err(Failure::NotExecutable(format!("cannot run {shown}: {file}: {why}")));
    }
    let here = match judge(&directory.join(name)) {
        Found::Yes => format!("\nThere is one in {}: say ./{shown}", directory.display()),
        Found::No(why) => format!("\nThere is one in {}, but {why}", directory.display()),
        Found::Nothing => String::new(),
    };
    let path = path.to_string_lossy();
    Err(Failure::NotFound(format!("program not found: {shown} (PATH is {path}){here}")))
}

enum Found {
    Yes,
    No(String),
    Nothing,
}

fn judge(file: &Path) -> Found {
    let Ok(metadata) = file.metadata() else { return Found::Nothing };
    if metadata.is_dir() {
        return Found::No("it is a directory".into());
    }
    match access(file, AccessFlags::X_OK) {
        Ok(()) => Found::Yes,
        Err(_) if file.extension().is_some_and(|extension| extension == "py") => Found::No(
            "it is not executable (a Python script? then say: ringrun ... python3 SCRIPT)".into(),
        ),
        Err(_) => Found::No("it is not executable (chmod +x would make it so)".into()),
    }
}
