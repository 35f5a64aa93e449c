//! Reads /proc: which processes there are, whose children they are, and which belong to a job.

use std::fs;

/// The variable that every process of a job inherits; nested jobs are joined by '/'.
pub(crate) const JOB: &str = "RINGRUN_JOB";

/// A process as /proc/PID/stat shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// Its parent.
    pub(crate) parent: u32,
    /// Its process group.
    pub(crate) group: u32,
    /// One letter; 'Z' has ended and only waits to be reaped, 'D' can't be interrupted.
    pub(crate) state: char,
}

/// Every process that this one may see.
pub(crate) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(one).collect()
}

/// One process, if it exists.
pub(crate) fn one(pid: u32) -> Option<Process> {
    parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in the second field may hold spaces and brackets, so count from the last bracket.
pub(crate) fn parse(pid: u32, stat: &[u8]) -> Option<Process> {
    let after = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, state })
}

/// Whether a process has a handler for this signal.
pub(crate) fn catches(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 != 0)
}

/// Whether the process was started with this job (or one that it was nested in) around it.
pub(crate) fn belongs(pid: u32, job: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|line| {
        let value = line.strip_prefix(JOB.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|jobs| jobs.split(|&byte| byte == b'/').any(|one| one == job.as_bytes()))
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
    fn this_process_is_there() {
        let me = std::process::id();
        assert!(all().iter().any(|process| process.pid == me && process.state != 'Z'));
    }
}
