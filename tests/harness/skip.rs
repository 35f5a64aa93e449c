//! Reports of tests that this machine cannot run: `.ci/summary` counts them.

use std::io::{Write, stderr};

const SKIP: &str = "SKIP ";
const OTHER_SHARE: &str = "OTHER SHARE ";

/// Reports that the test `test`, or a part of it, is skipped. The line bypasses the test harness,
/// which hides the output of tests that pass; `test` is the path that the harness prints.
pub fn skip(test: &str, why: &str) {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
    assert!(test.bytes().all(is_name), "{test}: the summary counts names of tests alone");
    // In one piece, or the harness's own lines come between.
    let _ = stderr().write_all(format!("{SKIP}{test}: {}\n", why.trim()).as_bytes());
}

/// Reports that a test is not among those that this run makes.
pub(crate) fn leave_to_other_shares(test: &str) {
    let _ = stderr().write_all(format!("{OTHER_SHARE}{test}\n").as_bytes());
}

/// True where the driver is that of the machine's own GPU, which has no settings of the stand-in:
/// `tests/gpu/run` sets the variable.
pub fn has_own_driver() -> bool {
    std::env::var_os("TEST_OWN_DRIVER").is_some()
}

/// Reports that a function of a test needs settings that only the stand-in for the driver has.
pub fn skip_without_standin(test: &str) {
    skip(test, "needs settings of the stand-in for the driver");
}

/// Passes a process's line on to this process's error output if the line reports a skip.
pub fn pass_on(line: &str) {
    if let Some(test_and_why) = line.strip_prefix(SKIP) {
        let _ = stderr().write_all(format!("{SKIP}{}\n", test_and_why.trim_end()).as_bytes());
    }
}
