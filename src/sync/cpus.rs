//! The CPUs that ranks may use: each process knows its own set of them, and the ranks of a host
//! tell each other, because a rank that is bound to one CPU either has it to itself or shares it
//! with all others.

use std::fs::{metadata, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// The CPUs that a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsableCpus {
    /// How many there are: those of its affinity, or fewer by the quota of a control group.
    pub(crate) count: u32,
    /// A number that is equal for processes which share these CPUs.
    pub(crate) set: u32,
}

impl UsableCpus {
    /// Those of the calling thread.
    pub(crate) fn now() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let Ok(affinity) = sched_getaffinity(Pid::from_raw(0)) else {
            return Self { count, set: 0 };
        };
        let bound: Vec<usize> =
            (0..CpuSet::count()).filter(|&cpu| affinity.is_set(cpu).unwrap_or(false)).collect();
        let group = || limiting_group(&read_to_string("/proc/self/cgroup").unwrap_or_default());
        let numbers = match (count as usize) < bound.len() {
            true => vec![group()],
            false => bound.into_iter().map(|cpu| cpu as u64).collect(),
        };
        Self { count, set: digest(&numbers) }
    }

    /// The number of CPUs that ranks of one host share which may use these: each set counts once.
    pub(crate) fn shared_by(ranks: impl IntoIterator<Item = Self>) -> usize {
        let mut sets: Vec<Self> = Vec::new();
        for rank in ranks {
            if !sets.contains(&rank) {
                sets.push(rank);
            }
        }
        let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
        let online = online.and_then(|online| usize::try_from(online).ok()).unwrap_or(usize::MAX);
        let all = sets.iter().map(|set| set.count as usize).fold(0, usize::saturating_add);
        // Sets that differ may overlap, and the largest one may have CPUs of all.
        all.min(online.max(sets.iter().map(|set| set.count as usize).max().unwrap_or(1))).max(1)
    }
}

/// The mount point of control groups of version 2.
const ROOT: &str = "/sys/fs/cgroup";

/// The number of the control group that has the least quota of CPU time, among those of this
/// process by the text of `/proc/self/cgroup`; of its own group if none is found.
fn limiting_group(text: &str) -> u64 {
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let folders = Path::new(own).ancestors().map(|group| Path::new(ROOT).join(group));
    let quota = |folder: &Path| {
        let text = read_to_string(folder.join("cpu.max")).ok()?;
        let (time, period) = text.trim().split_once(' ')?;
        Some(time.parse::<u64>().ok()?.saturating_mul(1000) / period.parse::<u64>().ok()?.max(1))
    };
    let limiting = folders.filter_map(|folder| Some((quota(&folder)?, folder))).min();
    let folder = limiting.map_or_else(|| Path::new(ROOT).join(own), |(_, folder)| folder);
    // A container may see its own group as the root, with the number that the group has outside.
    metadata(folder).map_or_else(|_| digest(&[text.len() as u64]).into(), |folder| folder.ino())
}

/// Fowler, Noll and Vo's hash.
fn digest(numbers: &[u64]) -> u32 {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    bytes.fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_a_set_and_add_up_different_ones() {
        let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).unwrap().unwrap() as usize;
        let one = |set| UsableCpus { count: 1, set };
        assert_eq!(UsableCpus::shared_by([one(7); 8]), 1);
        assert_eq!(UsableCpus::shared_by((0..8).map(one)), online.min(8));
        let all = UsableCpus { count: online as u32, set: 1 };
        assert_eq!(UsableCpus::shared_by([all, all, one(3)]), online);
        assert_eq!(UsableCpus::shared_by([]), 1);
    }

    /// As `taskset` does.
    #[test]
    fn a_thread_that_is_bound_to_one_cpu_has_one_and_another_set() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let all = UsableCpus::now();
        let mut sets = Vec::new();
        for cpu in (0..CpuSet::count()).filter(|&cpu| before.is_set(cpu).unwrap()).take(2) {
            let mut one = CpuSet::new();
            one.set(cpu).unwrap();
            nix::sched::sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            let bound = UsableCpus::now();
            assert_eq!((bound.count, bound), (1, UsableCpus::now()));
            sets.push(bound.set);
        }
        nix::sched::sched_setaffinity(Pid::from_raw(0), &before).unwrap();
        assert_eq!(UsableCpus::now(), all);
        assert!(sets.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
