//! Memory, and files as long as that.

use super::{Trial, side_by_side};

/// Bytes more than are mapped already.
#[test]
fn who_may_have_little_memory_says_so() {
    for (transport, what) in [
        ("shm", "start:memory"),
        ("tcp", "start:memory"),
        ("encrypted", "start:memory"),
        ("shm", "group:memory"),
        ("shm", "shared:memory"),
    ] {
        let trial =
            |mib: u64| Trial { transport, what, value: mib << 20, who: Some(2), timeout: 6 };
        let trials: Vec<_> = [1, 2, 3, 4, 6, 8, 12, 1 << 12].map(trial).into();
        let well = side_by_side(&trials, "RLIMIT_AS");
        assert!(!well[0] && well[7], "{transport} {what}: {well:?}");
    }
}

/// Shared memory is a file: the kernel would end who makes one that is too long by a signal.
#[test]
fn who_may_have_no_long_files_says_so() {
    let trial =
        |value| Trial { transport: "shm", what: "start:file", value, who: Some(1), timeout: 6 };
    let well = side_by_side(&[0, 1 << 16, 1 << 30].map(trial), "RLIMIT_FSIZE");
    assert_eq!(well, [false, false, true]);
}

#[test]
fn nothing_is_locked() {
    let trial = Trial { transport: "shm", what: "start:locked", value: 0, who: None, timeout: 60 };
    assert!(trial.is_told("RLIMIT_MEMLOCK"));
}
