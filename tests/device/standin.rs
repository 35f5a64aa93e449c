//! This program again, with the stand-in driver where the loader looks first.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long such a program may take; streams that wait for ever take longer.
const LIMIT: Duration = Duration::from_secs(300);

/// Where cargo has put the stand-in.
fn folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let mut folders = program.ancestors().skip(1);
    let found = folders.find(|folder| folder.join("libcuda.so").is_file());
    found.unwrap_or_else(|| panic!("no libcuda.so beside {}", program.display())).to_owned()
}

/// Runs the ignored test `body`, with these settings of the stand-in; it must end well.
pub(crate) fn on_standin(body: &str, settings: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", body, "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", folder()).envs(settings.iter().copied());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{body} {settings:?}: {status}");
}
