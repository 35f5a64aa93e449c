//! Checks of resource limits: descriptors, processes, memory, address space and file size.

use std::path::Path;
use std::thread::available_parallelism;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::getuid;
use ringreduce::memory::{MemoryLeft, memory_left, own_groups};

use super::Check;
use crate::launch::descriptor_limit::{descriptors_of, most_ranks};
use crate::launch::procfs;
use crate::topo::sysfs::number;
use tools::sizes::human;

/// Ranks, their libraries and ringrun share this hard limit with their program, and nearly every
/// system allows as many.
const MIN_DESCRIPTORS: u64 = 1024;
/// Processes and threads that may be few for a job, and for each of its ranks: a rank is a process
/// with a thread or two of the library's and those of its program.
const MIN_PROCESSES: u64 = 64;
const MIN_PROCESSES_OF_RANK: u64 = 4;
/// Free memory for the library's slots and copies of some ranks, without any of their program.
const MIN_MEMORY: u64 = 64 << 20;
/// Address space for one program with its libraries and thread stacks.
const MIN_ADDRESS_SPACE: u64 = 1 << 30;

pub(super) fn checks(knows_groups: bool) -> Vec<Check> {
    let cpus = available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let soft = |resource| getrlimit(resource).ok().map(|(soft, _)| soft);
    vec![
        descriptors(getrlimit(Resource::RLIMIT_NOFILE).ok(), cpus),
        processes(&ProcessCounts::now(knows_groups), cpus),
        memory(memory_left()),
        address_space(soft(Resource::RLIMIT_AS)),
        file_size(soft(Resource::RLIMIT_FSIZE)),
    ]
}

fn limit(value: u64) -> String {
    if value == RLIM_INFINITY { "unlimited".into() } else { value.to_string() }
}

fn bytes(value: u64) -> String {
    usize::try_from(value).map_or_else(|_| value.to_string(), human)
}

/// The soft and hard limit of descriptors. Ranks and ringrun raise the soft one.
fn descriptors(limits: Option<(u64, u64)>, cpus: u64) -> Check {
    const NAME: &str = "open files";
    let Some((soft, hard)) = limits else {
        return Check::unknown(NAME, "the system does not tell the limit (getrlimit)");
    };
    let found = match soft < hard {
        true => format!("{}, which ranks raise; hard limit {}", limit(soft), limit(hard)),
        false => format!("{}, the hard limit", limit(hard)),
    };
    let ranks = most_ranks(hard);
    if hard >= MIN_DESCRIPTORS && ranks >= cpus {
        return Check::ok(NAME, &found);
    }
    let fits = format!("{found}: enough for ringrun with {ranks} ranks whose program opens little");
    let remedy = format!(
        "Raise the hard limit to {} or more, as root: `ulimit -Hn`, `nofile` in \
         /etc/security/limits.conf, LimitNOFILE of a service, or docker run --ulimit.",
        MIN_DESCRIPTORS.max(descriptors_of(cpus))
    );
    // Jobs of a rank for each CPU run, and programs may open files and connections of their own.
    let state = if ranks < cpus { Check::problem } else { Check::note };
    state(NAME, &fits, &remedy)
}

/// The limits of processes and threads, and how many there are.
struct ProcessCounts {
    /// RLIMIT_NPROC; `None` if the system does not tell it.
    limit: Option<u64>,
    /// Threads of all processes of this user; none of the superuser's count.
    used: Option<u64>,
    /// The processes that each control group of this process with a limit still allows; `None` if
    /// the groups are not known.
    groups: Option<Vec<u64>>,
}

impl ProcessCounts {
    fn now(knows_groups: bool) -> Self {
        let limit = getrlimit(Resource::RLIMIT_NPROC).ok().map(|(soft, _)| soft);
        let used = (!getuid().is_root()).then(|| procfs::threads_of(getuid().as_raw()));
        let groups = own_groups("pids");
        let groups = groups.iter().filter_map(|(_, folder)| left_in_group(folder)).collect();
        Self { limit, used, groups: knows_groups.then_some(groups) }
    }
}

/// The processes that may still start in a control group; `None` if it has no limit.
fn left_in_group(folder: &Path) -> Option<u64> {
    let value = |name| number::<u64>(&folder.join(name));
    Some(value("pids.max")?.saturating_sub(value("pids.current")?))
}

/// Jobs of a rank for each CPU run.
fn processes(counts: &ProcessCounts, cpus: u64) -> Check {
    const NAME: &str = "processes";
    let (Some(most), Some(groups)) = (counts.limit, &counts.groups) else {
        return Check::unknown(NAME, "the system does not tell the limits (/proc/self/cgroup)");
    };
    let of_user = counts.used.filter(|_| most != RLIM_INFINITY);
    let of_user = of_user.map(|used| most.saturating_sub(used));
    let of_group = groups.iter().min().copied();
    let Some(left) = of_user.into_iter().chain(of_group).min() else {
        return Check::ok(NAME, "no limit for this user");
    };
    let found = format!("{left} more processes and threads may start");
    if left >= MIN_PROCESSES.max(MIN_PROCESSES_OF_RANK * cpus) {
        return Check::ok(NAME, &found);
    }
    let remedy = match of_group {
        Some(group) if group == left => {
            "End processes of this control group, or raise its pids.max (docker run --pids-limit, \
             TasksMax of a service)."
        }
        _ => "End other processes of this user, or raise `ulimit -u` (`nproc` in limits.conf).",
    };
    Check::problem(NAME, &found, remedy)
}

fn memory(left: MemoryLeft) -> Check {
    const NAME: &str = "memory";
    let Some(machine) = left.machine else {
        return Check::unknown(NAME, "the system does not tell the free memory (/proc/meminfo)");
    };
    let free = format!("{} free on this machine, swap included", bytes(machine));
    // A group of version 1 without a limit has a number larger than any memory.
    let group = left.group.filter(|&group| group < 1 << 62);
    let found = match group {
        Some(group) => format!("{free}, {} left in the control group", bytes(group)),
        None => format!("{free}, no limit of a control group"),
    };
    if machine < MIN_MEMORY {
        let remedy = "End other programs: the next that needs memory may be killed.";
        return Check::problem(NAME, &found, remedy);
    }
    if group.is_some_and(|group| group < MIN_MEMORY) {
        let remedy = "Raise the memory limit of the control group (memory.max; docker run -m, \
            srun --mem), or end other programs of it.";
        return Check::problem(NAME, &found, remedy);
    }
    Check::ok(NAME, &found)
}

fn address_space(soft: Option<u64>) -> Check {
    const NAME: &str = "address space";
    match soft {
        None => Check::unknown(NAME, "the system does not tell the limit (getrlimit)"),
        Some(RLIM_INFINITY) => Check::ok(NAME, "unlimited"),
        Some(limit) => {
            let found = format!("{} for each rank", bytes(limit));
            let remedy = "Set `ulimit -v unlimited`; to limit memory, limit a control group.";
            if limit < MIN_ADDRESS_SPACE {
                return Check::problem(NAME, &found, remedy);
            }
            Check::note(NAME, &format!("{found}, too little for CUDA's driver"), remedy)
        }
    }
}

/// Shared memory is files without names, which this limit holds for.
fn file_size(soft: Option<u64>) -> Check {
    const NAME: &str = "file size";
    match soft {
        None => Check::unknown(NAME, "the system does not tell the limit (getrlimit)"),
        Some(RLIM_INFINITY) => Check::ok(NAME, "unlimited"),
        Some(limit) => {
            let found = format!("{}, which limits shared memory too", bytes(limit));
            let remedy = "Set `ulimit -f unlimited`.";
            if limit < MIN_MEMORY {
                return Check::problem(NAME, &found, remedy);
            }
            Check::note(NAME, &found, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State::{Note, Ok, Problem, Unknown};
    use super::*;

    #[test]
    fn descriptors_must_suffice_for_a_rank_on_each_cpu() {
        let state = |hard, cpus| descriptors(Some((64, hard)), cpus).state;
        assert_eq!(descriptors(None, 1).state, Unknown);
        assert_eq!([state(1024, 8), state(1023, 8), state(1024, 512)], [Ok, Note, Problem]);
        let remedy = descriptors(Some((64, 1024)), 512).remedy.unwrap();
        assert!(remedy.contains(&descriptors_of(512).to_string()), "{remedy}");
        assert_eq!(most_ranks(descriptors_of(512)), 512);
        assert_eq!(descriptors(Some((RLIM_INFINITY, RLIM_INFINITY)), 512).state, Ok);
        let few = descriptors(Some((64, 64)), 2);
        assert!(few.found.starts_with("64, the hard limit"), "{few:?}");
        let soft = descriptors(Some((64, 4096)), 2);
        assert_eq!((soft.state, &*soft.found), (Ok, "64, which ranks raise; hard limit 4096"));
        assert_eq!(descriptors(Some((0, 0)), 2).state, Problem);
    }

    #[test]
    fn processes_are_limited_by_the_user_and_by_groups() {
        let check = |limit, used, groups: &[u64]| {
            processes(&ProcessCounts { limit, used, groups: Some(groups.to_vec()) }, 2)
        };
        let without_groups = ProcessCounts { limit: Some(9999), used: Some(7), groups: None };
        assert_eq!(processes(&without_groups, 2).state, Unknown);
        assert_eq!(check(None, None, &[]).state, Unknown);
        assert_eq!(check(Some(RLIM_INFINITY), Some(7), &[]).state, Ok);
        assert_eq!(check(Some(100), Some(99), &[]).state, Problem);
        assert_eq!(check(Some(100), Some(101), &[]).state, Problem);
        assert_eq!(check(Some(100), None, &[]).state, Ok);
        let left = ProcessCounts { limit: Some(200), used: Some(100), groups: Some(vec![]) };
        assert_eq!([processes(&left, 25).state, processes(&left, 26).state], [Ok, Problem]);
        let full = check(Some(100_000), Some(7), &[9000, 3]);
        assert!(full.state == Problem && full.remedy.unwrap().contains("pids.max"));
    }

    #[test]
    fn a_group_without_numbers_has_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        assert_eq!(left_in_group(folder.path()), None);
        write("pids.max", "max\n").unwrap();
        write("pids.current", "7\n").unwrap();
        assert_eq!(left_in_group(folder.path()), None);
        write("pids.max", "5\n").unwrap();
        assert_eq!(left_in_group(folder.path()), Some(0));
        write("pids.max", "\u{0}-1\n").unwrap();
        assert_eq!(left_in_group(folder.path()), None);
    }

    #[test]
    fn memory_is_that_of_the_machine_and_of_its_groups() {
        let check = |machine, group| memory(MemoryLeft { machine, group });
        assert_eq!(check(None, Some(1 << 40)).state, Unknown);
        let unlimited = check(Some(1 << 40), Some(u64::MAX >> 1));
        assert!(unlimited.state == Ok && unlimited.found.contains("no limit"), "{unlimited:?}");
        assert_eq!(check(Some(1 << 40), Some(1 << 20)).state, Problem);
        assert_eq!(check(Some(1 << 20), None).state, Problem);
    }

    #[test]
    fn limits_of_bytes_are_problems_where_no_job_fits() {
        let states = |check: fn(Option<u64>) -> Check| {
            [None, Some(RLIM_INFINITY), Some(1 << 40), Some(1 << 20)].map(|it| check(it).state)
        };
        assert_eq!(states(address_space), [Unknown, Ok, Note, Problem]);
        assert_eq!(states(file_size), [Unknown, Ok, Note, Problem]);
    }
}
