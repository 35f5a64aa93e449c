//! This program again, with the stand-in driver where the loader looks first.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Seconds that such a program may take; streams that wait for ever take longer.
const LIMIT: &str = "120";

/// Where cargo has put the stand-in.
fn folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let mut folders = program.ancestors().skip(1);
    let found = folders.find(|folder| folder.join("libcuda.so").is_file());
    found.unwrap_or_else(|| panic!("no libcuda.so beside {}", program.display())).to_owned()
}

/// Runs the ignored test `body`, with these settings of the stand-in; it must end well.
pub(crate) fn on_standin(body: &str, settings: &[(&str, &str)]) {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", LIMIT]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", body, "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", folder()).envs(settings.iter().copied());
    let status = command.stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{body} {settings:?}: {status}");
}
