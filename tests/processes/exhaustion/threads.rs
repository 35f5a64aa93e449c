//! Threads: the limit is of a user's processes, and root has none.

use super::{Trial, side_by_side};

#[test]
fn who_may_start_no_thread_says_so() {
    for (transport, what) in [
        ("shm", "start:threads"),
        ("tcp", "start:threads"),
        ("shm", "group:threads"),
        ("shm", "started:threads"),
    ] {
        let trial = Trial { transport, what, value: 1, who: Some(1), timeout: 6 };
        assert_eq!(side_by_side(&[trial], "RLIMIT_NPROC"), [false]);
    }
}
