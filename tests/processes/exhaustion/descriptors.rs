//! Descriptors.

use super::{Trial, side_by_side};

const LIMIT: &str = "RLIMIT_NOFILE";

fn sweep(transport: &'static str, who: Option<usize>, timeout: u32) {
    let trial = |value| Trial { transport, what: "start:descriptors", value, who, timeout };
    let trials: Vec<_> = (8..=64).map(trial).collect();
    let well = side_by_side(&trials, LIMIT);
    assert!(!well[0] && well[56], "{transport} {who:?}: {well:?}");
}

#[test]
fn who_may_have_few_descriptors_says_so() {
    for transport in ["shm", "tcp", "encrypted"] {
        sweep(transport, Some(1), 6);
    }
}

#[test]
fn who_may_have_few_descriptors_says_so_though_all_may() {
    sweep("shm", None, 6);
}

/// While a group is made, and while memory is shared.
#[test]
fn who_may_have_no_more_descriptors_says_so() {
    for (transport, what) in [
        ("shm", "group:more-descriptors"),
        ("tcp", "group:more-descriptors"),
        ("encrypted", "group:more-descriptors"),
        ("shm", "shared:more-descriptors"),
    ] {
        let trial = |value| Trial { transport, what, value, who: Some(2), timeout: 20 };
        let trials: Vec<_> = (0..24).map(trial).collect();
        let well = side_by_side(&trials, LIMIT);
        assert!(!well[0] && well[23], "{transport} {what}: {well:?}");
    }
}
