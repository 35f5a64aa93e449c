//! Processes as /proc shows them: their parents, groups and states, and the job they belong to.

use std::ffi::OsString;
use std::{env, fs, io};

/// The variable that every process of a job inherits. A job within a job appends its name to the
/// outer one's, with '/' between.
pub(crate) const JOB_VARIABLE: &str = "RINGRUN_JOB";

/// The value of [`JOB_VARIABLE`] for processes of the job with this name.
pub(crate) fn job_names(job: &str) -> OsString {
    let mut names = env::var_os(JOB_VARIABLE).unwrap_or_default();
    if !names.is_empty() {
        names.push("/");
    }
    names.push(job);
    names
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// The state's letter: 'Z' is a zombie, 'D' can't be interrupted, 'T' is stopped.
    pub(crate) state: char,
}

/// Fails unless /proc is there and shows the processes by the numbers that they have here.
pub(crate) fn check() -> io::Result<()> {
    let shown = fs::read_link("/proc/self");
    let own = std::process::id().to_string();
    match shown {
        Ok(shown) if shown.to_str() == Some(&own) => Ok(()),
        Ok(_) => Err(io::Error::other(ANOTHER_NAMESPACE)),
        Err(_) if fs::metadata("/proc/1").is_ok() => Err(io::Error::other(ANOTHER_NAMESPACE)),
        Err(cause) => Err(io::Error::new(
            cause.kind(),
            format!("{cause}: /proc is not mounted; mount it (mount -t proc proc /proc)"),
        )),
    }
}

const ANOTHER_NAMESPACE: &str = "/proc shows the processes of another PID namespace; mount the one \
    of this namespace (unshare --pid --fork --mount-proc)";

pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(process).collect()
}

pub(crate) fn process(pid: u32) -> Option<Process> {
    parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The threads of all processes of a user; those that /proc hides do not count.
pub(crate) fn threads_of(uid: u32) -> u64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let status = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("status")).ok();
    entries.flatten().filter_map(status).filter_map(|text| threads(&text, uid)).sum()
}

/// The threads of a process with such a /proc/PID/status, if this is its real user.
fn threads(status: &str, uid: u32) -> Option<u64> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let owner: u32 = field("Uid:")?.split_ascii_whitespace().next()?.parse().ok()?;
    if owner == uid { field("Threads:")?.trim().parse().ok() } else { None }
}

/// Reads /proc/PID/stat. The name in its second field may hold spaces and brackets, so fields are
/// counted from the last bracket on.
pub(crate) fn parse(pid: u32, stat: &[u8]) -> Option<Process> {
    let after = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, state })
}

pub(crate) fn has_handler(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 != 0)
}

/// True if the process was started by this job, or by a job within it.
pub(crate) fn belongs_to(pid: u32, job: &str) -> bool {
    belongs_to_any(pid, |name| name == job.as_bytes())
}

/// True if the process was started by a job of such a name, or by a job within one.
pub(crate) fn belongs_to_any(pid: u32, is_name: impl Fn(&[u8]) -> bool) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|line| {
        let value =
            line.strip_prefix(JOB_VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|jobs| jobs.split(|&byte| byte == b'/').any(&is_name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_and_spaces_are_skipped() {
        let parsed = parse(7, b"7 (a) b) S 3 4 5 6");
        assert_eq!(parsed, Some(Process { pid: 7, parent: 3, group: 4, state: 'S' }));
        assert_eq!(parse(7, b"7 (cut off"), None);
    }

    #[test]
    fn threads_count_for_their_user() {
        let status = "Name:\ta\nUid:\t7\t8\t8\t8\nThreads:\t3\n";
        assert_eq!((threads(status, 7), threads(status, 8)), (Some(3), None));
        assert_eq!((threads("Uid:\nThreads:\t3", 7), threads("\0", 7)), (None, None));
        let me = nix::unistd::getuid().as_raw();
        assert!(threads_of(me) > 0);
    }

    #[test]
    fn this_process_is_listed() {
        let me = std::process::id();
        assert!(processes().iter().any(|process| process.pid == me && process.state != 'Z'));
    }
}
