//! A process that has the stand-in driver where the loader looks first.

use std::path::Path;
use std::process::{Command, Stdio};

use cuda::harness::Library;

/// Seconds that such a program may take; streams that wait for ever take longer.
const LIMIT: &str = "400";

/// Does what `body` names, with these settings of the stand-in; it must end well.
pub(crate) fn on_standin(body: &str, settings: &[(&str, &str)]) {
    with_driver(body, Library::built().unwrap().folder(), settings);
}

/// The same, with the driver that is in `folder`, or the system's.
pub(crate) fn with_driver(body: &str, folder: &Path, settings: &[(&str, &str)]) {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", LIMIT]).arg(harness::program()).arg(body);
    command.env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
    let log = tempfile::NamedTempFile::new().unwrap();
    command.env("STANDIN_CUDA_LOG", log.path());
    let status = command.stdout(Stdio::null()).status().unwrap();
    let said = std::fs::read_to_string(log.path()).unwrap();
    let freed: Vec<_> = said.lines().filter(|line| line.contains("has it mapped")).collect();
    assert!(freed.is_empty(), "{body} {settings:?}: {freed:#?}");
    assert!(status.success(), "{body} {settings:?}: {status}");
}
