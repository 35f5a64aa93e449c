//! The same, with ranks that are processes: this program again, over shared memory and over TCP.

use std::process::{Child, Command, Stdio};

use ringreduce::{Communicator, Transport};

use crate::{SUM, exchange, many};

/// What tells a process which rank it is: rank, size, store and transport.
const SEAT: &str = "TOGETHER_SEAT";

/// Not a test of its own.
#[test]
#[ignore = "what the ranks of the other tests do"]
fn body() {
    let Ok(seat) = std::env::var(SEAT) else { return };
    let [rank, size, store, transport] = seat.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{seat}");
    };
    let (me, n) = (rank.parse().unwrap(), size.parse().unwrap());
    let forced = if transport == "tcp" { Transport::Tcp } else { Transport::Shm };
    let builder = Communicator::builder().rank(me).size(n).store(store);
    let mut comm = builder.transport(forced).build().unwrap();
    assert_eq!(comm.transports(), [transport]);
    many::the_same_bits(&mut comm, SUM);
    exchange(&mut comm, &|from, to| match (n + to - from) % n {
        0 => vec![10],
        1 => vec![500_000, 3, 500_000],
        _ => vec![5, 20_000],
    });
}

fn together(transport: &str) {
    let n = 4;
    let store = format!("unix:@together-{transport}-{}", std::process::id());
    let start = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::body", "--ignored", "--nocapture"]);
        command.env(SEAT, format!("{rank} {n} {store} {transport}"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..n).map(start).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let ended = child.wait_with_output().unwrap();
        let says = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(ended.status.success(), "rank {rank}: {}\n{}", says[0], says[1]);
    }
}

#[test]
fn over_shared_memory() {
    together("shm");
}

#[test]
fn over_tcp() {
    together("tcp");
}
