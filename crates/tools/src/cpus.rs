//! The CPUs that this process may use.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// The numbers of the CPUs that this process may use, in order.
pub fn allowed() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect())
}
