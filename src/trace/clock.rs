//! The times in records: nanoseconds of the host's monotonic clock. May touch: nix.

use nix::time::{ClockId, clock_gettime};

/// To the kernel's tick of 1 to 4 ms. A look costs a fraction of one at the exact time, which would
/// show in the smallest calls.
pub(super) fn coarse() -> u64 {
    of(ClockId::CLOCK_MONOTONIC_COARSE)
}

/// As exact as there is.
pub(super) fn precise() -> u64 {
    of(ClockId::CLOCK_MONOTONIC)
}

fn of(clock: ClockId) -> u64 {
    let Ok(time) = clock_gettime(clock) else { return 0 };
    time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned()
}
