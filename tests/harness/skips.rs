//! What is said aloud where a machine lacks what a test needs: `.ci/summary` counts it.

use std::io::{Write, stderr};

const SKIP: &str = "SKIP ";

/// Says that the test `test`, or a part of it, is not made. Written past the test harness, which
/// hides what passing tests print; a test's name is its path, as the harness prints it.
pub fn skip(test: &str, why: &str) {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
    assert!(test.bytes().all(is_name), "{test}: the summary counts names of tests alone");
    // In one piece, or the harness's own lines come between.
    let _ = stderr().write_all(format!("{SKIP}{test}: {}\n", why.trim()).as_bytes());
}

/// Passes on what a process said, if it is that.
pub fn pass_on(line: &str) {
    if let Some(test_and_why) = line.strip_prefix(SKIP) {
        let _ = stderr().write_all(format!("{SKIP}{}\n", test_and_why.trim_end()).as_bytes());
    }
}
