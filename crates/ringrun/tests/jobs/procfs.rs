//! Processes as /proc shows them: environment, state, descriptors, sockets, shared memory.

use std::fs;

pub(crate) use ::harness::cluster::process_state as state;

/// The processes that have this line in their environment.
pub(crate) fn processes_with(line: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let ours = pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|one| one == line.as_bytes())
    });
    ours.filter(|&pid| !matches!(state(pid), None | Some('Z'))).collect()
}

/// The descriptors of this process.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The sockets of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sockets {
    /// Listening Unix and TCP sockets.
    pub(crate) listening: usize,
    /// TCP connections.
    pub(crate) tcp: usize,
    /// Connected Unix sockets.
    pub(crate) unix: usize,
}

pub(crate) fn sockets(pid: u32) -> Sockets {
    assert!(state(pid).is_some(), "process {pid} has ended");
    let mut found = Sockets::default();
    for kind in kinds_of_sockets(pid) {
        match kind {
            Kind::UnixListener | Kind::TcpListener => found.listening += 1,
            Kind::Tcp => found.tcp += 1,
            Kind::Unix => found.unix += 1,
        }
    }
    found
}

/// A socket of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    UnixListener,
    TcpListener,
    /// A TCP connection.
    Tcp,
    /// A connected Unix socket.
    Unix,
}

/// The sockets of a process, or none if it has ended.
pub(crate) fn kinds_of_sockets(pid: u32) -> Vec<Kind> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open: Vec<_> = open.flat_map(|entry| fs::read_link(entry.path())).collect();
    let mut found = Vec::new();
    for (file, state, inode) in [("tcp", 3, 9), ("tcp6", 3, 9), ("unix", 3, 6)] {
        // The process may be in a network namespace of its own.
        let text = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            if !open.contains(&format!("socket:[{}]", fields[inode]).into()) {
                continue;
            }
            match (file, fields[state]) {
                ("unix", "00010000") => found.push(Kind::UnixListener),
                ("unix", _) => found.push(Kind::Unix),
                (_, "0A") => found.push(Kind::TcpListener),
                (_, "01") => found.push(Kind::Tcp),
                _ => {}
            }
        }
    }
    found
}

/// The number of anonymous memory files that a process has mapped.
pub(crate) fn shared_pieces(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}
