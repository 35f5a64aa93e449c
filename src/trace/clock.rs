//! The time in records: nanoseconds of the host's monotonic clock, which all processes share.

use nix::time::{ClockId, clock_gettime};

/// The time to the kernel's tick of 1 to 4 ms. It costs a fraction of the precise time, which would
/// show in the latency of the smallest calls.
pub(super) fn coarse() -> u64 {
    of(ClockId::CLOCK_MONOTONIC_COARSE)
}

/// The time to the clock's full resolution.
pub(super) fn precise() -> u64 {
    of(ClockId::CLOCK_MONOTONIC)
}

fn of(clock: ClockId) -> u64 {
    let Ok(time) = clock_gettime(clock) else { return 0 };
    time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned()
}
