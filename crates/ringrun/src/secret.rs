//! `ringrun secret`: makes the file with the secret of jobs on several hosts.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf, absolute};

use clap::Args;
use ringreduce::bootstrap::draw_secret;
use ringreduce::config::variables::SECRET_FILE;

use crate::cli::subcommands::print;
use crate::failure::Failure;
use crate::launch::message::say;

/// The file in the user's home directory, where the library's errors have it too.
pub(crate) const IN_HOME: &str = ".ringreduce-secret";
/// Bytes of a secret.
const LEN: usize = 32;

/// Make the file with the secret that jobs on several hosts need under other launchers.
///
/// Prints the variable that names the file, for `eval "$(ringrun secret)"`. The file is for its
/// owner alone, and one that is there is never overwritten.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The file; ~/.ringreduce-secret if left out
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    let file = options.file.clone().map_or_else(in_home, Ok)?;
    let name = file.display();
    let failed = |cause| Failure::system(format!("make the secret file {name}"))(cause);
    let file = absolute(&file).map_err(failed)?;
    make(&file).map_err(|cause| match cause.kind() {
        io::ErrorKind::AlreadyExists => failed(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!(
                "it is there, and ringrun overwrites no secret: use it ({}), or remove it first",
                setting(&file).to_string_lossy().trim_end()
            ),
        )),
        _ => failed(cause),
    })?;
    let (name, quoted) = (file.display(), quoted(&file));
    let quoted = quoted.to_string_lossy();
    say(&format!(
        "made {name}. Copy it to each host that has other disks:\n    \
         scp -p {quoted} HOST:{quoted}\nand set this variable for all ranks:"
    ));
    print(setting(&file).as_bytes(), "print the variable")
}

fn in_home() -> Result<PathBuf, Failure> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| Failure::usage("secret", "HOME is not set: name a FILE"))?;
    Ok(PathBuf::from(home).join(IN_HOME))
}

/// Writes a new secret to a file that is not there yet.
fn make(path: &Path) -> io::Result<()> {
    let drawn = File::from(draw_secret().map_err(io::Error::other)?);
    let mut secret = [0; LEN];
    drawn.read_exact_at(&mut secret, 0)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&secret).and_then(|()| file.sync_all()).inspect_err(|_| {
        // A part of a secret would be refused by every rank.
        let _ = remove_file(path);
    })
}

/// The line of a shell that names the file.
fn setting(file: &Path) -> OsString {
    let mut line = OsString::from(format!("export {SECRET_FILE}="));
    line.push(quoted(file));
    line.push("\n");
    line
}

/// The path as a shell reads it.
pub(crate) fn quoted(path: &Path) -> OsString {
    let mut word = OsString::from("'");
    for (at, part) in path.as_os_str().as_bytes().split(|&byte| byte == b'\'').enumerate() {
        word.push(if at > 0 { r"'\''" } else { "" });
        word.push(OsStr::from_bytes(part));
    }
    word.push("'");
    word
}
