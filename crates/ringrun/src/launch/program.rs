//! Finds the program before anything is started, so that a wrong name is one error and not one for
//! each rank.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::failure::Failure;

/// The file that `name` means for ranks that start in `directory` with this PATH. The errors are
/// [`Failure::NotFound`] and [`Failure::NotExecutable`], as a shell tells them apart.
pub(crate) fn find(name: &OsStr, directory: &Path, path: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    if !directory.is_dir() {
        return Err(Failure::Host(format!("{}: no such directory", directory.display())));
    }
    if name.as_bytes().contains(&b'/') {
        let file = directory.join(name);
        return match inspect(&file) {
            Candidate::Executable => Ok(file),
            Candidate::NotExecutable(why) => {
                Err(Failure::NotExecutable(format!("cannot run {shown}: {why}")))
            }
            Candidate::Missing => Err(Failure::NotFound(format!(
                "program not found: {shown} (looked in {})",
                directory.display()
            ))),
        };
    }
    let mut refused = None;
    for folder in std::env::split_paths(path) {
        let file = directory.join(folder).join(name);
        match inspect(&file) {
            Candidate::Executable => return Ok(file),
            Candidate::NotExecutable(why) => refused = refused.or(Some((file, why))),
            Candidate::Missing => {}
        }
    }
    if let Some((file, why)) = refused {
        let file = file.display();
        return Err(Failure::NotExecutable(format!("cannot run {shown}: {file}: {why}")));
    }
    let here = match inspect(&directory.join(name)) {
        Candidate::Executable => {
            format!("\nThere is one in {}: say ./{shown}", directory.display())
        }
        Candidate::NotExecutable(why) => {
            format!("\nThere is one in {}, but {why}", directory.display())
        }
        Candidate::Missing => String::new(),
    };
    let path = path.to_string_lossy();
    Err(Failure::NotFound(format!("program not found: {shown} (PATH is {path}){here}")))
}

enum Candidate {
    Executable,
    NotExecutable(String),
    Missing,
}

fn inspect(file: &Path) -> Candidate {
    let Ok(metadata) = file.metadata() else { return Candidate::Missing };
    if metadata.is_dir() {
        return Candidate::NotExecutable("it is a directory".into());
    }
    match access(file, AccessFlags::X_OK) {
        Ok(()) => Candidate::Executable,
        Err(_) if file.extension().is_some_and(|extension| extension == "py") => {
            Candidate::NotExecutable(
                "it is not executable (a Python script? then say: ringrun ... python3 SCRIPT)"
                    .into(),
            )
        }
        Err(_) => Candidate::NotExecutable(
            "it is not executable (chmod +x would make it so; a Python script? then say: ringrun \
             ... python3 SCRIPT)"
                .into(),
        ),
    }
}
