//! Worlds of ranks that are processes: the test's own program again.

use std::process::{Child, Command, Stdio};

use ringreduce::{Communicator, Transport};

/// What tells a process which rank it is: rank, size, store and transport.
const SEAT: &str = "TEST_RANKS_SEAT";

/// The rank that this process was started as, if [`run`] did.
pub(crate) fn this_rank() -> Option<Communicator> {
    let seat = std::env::var(SEAT).ok()?;
    let [rank, size, store, transport] = seat.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{seat}");
    };
    let (rank, size) = (rank.parse().unwrap(), size.parse().unwrap());
    let forced = if transport == "tcp" { Transport::Tcp } else { Transport::Shm };
    let builder = Communicator::builder().rank(rank).size(size).store(store);
    let comm = builder.transport(forced).build().unwrap();
    assert!(size == 1 || comm.transports() == [transport]);
    Some(comm)
}

/// Starts `n` ranks, each of which runs the ignored test `body`; all must end well.
pub(crate) fn run(body: &str, n: usize, transport: &str) {
    let store = format!("unix:@{body}-{n}-{transport}-{}", std::process::id());
    let start = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", body, "--ignored", "--nocapture"]);
        command.env(SEAT, format!("{rank} {n} {store} {transport}"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..n).map(start).collect();
    let mut failed = String::new();
    for (rank, child) in ranks.into_iter().enumerate() {
        let ended = child.wait_with_output().unwrap();
        if !ended.status.success() {
            let says = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
            failed += &format!("rank {rank}: {}\n{}", says[0], says[1]);
        }
    }
    assert!(failed.is_empty(), "{failed}");
}
