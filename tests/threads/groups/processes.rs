//! Groups and many buffers among processes, over shared memory and over TCP.

use super::{SUM, many_buffers, message_programs};
use harness::processes::{run, this_rank};

const BODY: &str = "groups::processes::rank";

/// A process: one rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    many_buffers::the_same_bits(&mut comm, SUM);
    message_programs::follow_all(&mut comm);
}

#[test]
fn over_shared_memory() {
    run(BODY, 4, "shm");
}

#[test]
fn over_tcp() {
    run(BODY, 4, "tcp");
}
