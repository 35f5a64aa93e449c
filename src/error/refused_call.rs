//! System calls that old kernels do not have and that sandboxes refuse.

use std::io;

/// Error numbers of Linux for a call that the kernel does not have, and for refused ones.
const REFUSALS: [i32; 3] = [ENOSYS, EPERM, EACCES];
const ENOSYS: i32 = 38;
const EPERM: i32 = 1;
const EACCES: i32 = 13;

/// Adds the name of the system call and what to do to an answer by which the kernel refuses it.
pub fn name_refused_call(call: &str, answer: impl Into<io::Error>) -> io::Error {
    let answer = answer.into();
    if answer.raw_os_error().is_none_or(|number| !REFUSALS.contains(&number)) {
        return answer;
    }
    let hint = format!(
        "{answer}: the system call {call} is refused by a sandbox (seccomp), which must permit it, \
         or unknown to an old kernel"
    );
    io::Error::new(answer.kind(), hint)
}
