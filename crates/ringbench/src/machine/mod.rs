//! The machine, and the CPU, host and device of each rank.

pub(crate) mod probe;
pub(crate) mod settings;

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use ringreduce::{Communicator, ReduceOp};
use serde::Serialize;
use tools::cpus;

use crate::device::DeviceInfo;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) host: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn look(host: &str) -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        // x86 says "model name", arm "CPU part" or nothing readable.
        let model = info.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(": ")).map(|(_, name)| name.to_owned());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            host: host.to_owned(),
            cpu: model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// Bytes of a device's name in an `all_gather`.
const DEVICE_NAME_BYTES: usize = 96;

/// The process, CPU, host and device of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RankInfo {
    pub(crate) rank: usize,
    pub(crate) pid: u32,
    /// The CPU on which the rank ran when asked.
    pub(crate) cpu: usize,
    pub(crate) host: String,
    /// The device of the rank's buffers, if they are not on the host.
    pub(crate) device: Option<DeviceInfo>,
}

impl RankInfo {
    /// The information on every rank, at every rank. All of them have a device, or none.
    pub(crate) fn gather(
        comm: &mut Communicator,
        device: Option<&DeviceInfo>,
    ) -> ringreduce::Result<Vec<Self>> {
        let mine = [sched_getcpu().unwrap_or(0), device.map_or(0, |device| device.index)];
        let mut all = vec![0; 2 * comm.size()];
        comm.all_gather(&mine.map(|number| number as u64), &mut all)?;
        let mut names = vec![0; DEVICE_NAME_BYTES * comm.size()];
        if let Some(device) = device {
            let mut mine = [0; DEVICE_NAME_BYTES];
            mine.iter_mut().zip(device.name.bytes()).for_each(|(to, from)| *to = from);
            comm.all_gather(&mine, &mut names)?;
        }
        let infos = all.chunks_exact(2).zip(names.chunks_exact(DEVICE_NAME_BYTES));
        let infos = comm.peers().iter().zip(infos).map(|(peer, (numbers, name))| Self {
            rank: peer.rank,
            pid: peer.pid,
            cpu: numbers[0] as usize,
            host: peer.host.clone(),
            device: device.map(|_| DeviceInfo {
                index: numbers[1] as usize,
                name: String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(),
            }),
        });
        Ok(infos.collect())
    }
}

/// The transports between all ranks, joined by "+"; "none" for a world of one.
pub(crate) fn transports(comm: &mut Communicator) -> ringreduce::Result<String> {
    const KINDS: [&str; 3] = ["shm", "tcp", "threads"];
    let mine = comm.transports();
    let mut used = KINDS.map(|kind| u8::from(mine.contains(&kind)));
    comm.all_reduce(&mut used, ReduceOp::Max)?;
    let used: Vec<_> = KINDS.into_iter().zip(used).filter(|&(_, n)| n > 0).collect();
    let names: Vec<_> = used.into_iter().map(|(kind, _)| kind).collect();
    Ok(if names.is_empty() { "none".to_owned() } else { names.join("+") })
}

/// The two CPUs to probe: those of rank 0 and of the first rank of its host on another CPU, or else
/// any other CPU of this process. None if there is only one.
pub(crate) fn probed_cpus(ranks: &[RankInfo]) -> Option<[usize; 2]> {
    let first = ranks.first()?;
    let mut others = ranks.iter().filter(|rank| rank.host == first.host).map(|rank| rank.cpu);
    let other = others.find(|&cpu| cpu != first.cpu);
    let other = other.or_else(|| cpus::allowed().ok()?.into_iter().find(|&cpu| cpu != first.cpu));
    other.map(|cpu| [first.cpu, cpu])
}

/// The CPUs on which ranks of this host run, at most one for each rank: those on which they were,
/// then others of this process.
pub(crate) fn cpus_of_ranks(ranks: &[RankInfo]) -> Vec<usize> {
    let others = cpus::allowed().unwrap_or_default();
    let mut found = Vec::new();
    for cpu in ranks.iter().map(|rank| rank.cpu).chain(others) {
        if found.len() < ranks.len() && !found.contains(&cpu) {
            found.push(cpu);
        }
    }
    found
}

/// Binds this thread to a CPU. A refusal is no error: the scheduler also spreads two busy threads.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// Runs `body` on a thread of each CPU, with a barrier of all. None if one failed.
pub(crate) fn on_each<T: Send>(
    cpus: &[usize],
    body: impl Fn(usize, &Barrier) -> T + Sync,
) -> Option<Vec<T>> {
    let (barrier, body) = (&Barrier::new(cpus.len()), &body);
    thread::scope(|scope| {
        let thread = |(core, &cpu)| {
            scope.spawn(move || {
                pin(cpu);
                body(core, barrier)
            })
        };
        let threads: Vec<_> = cpus.iter().enumerate().map(thread).collect();
        threads.into_iter().map(|thread| thread.join().ok()).collect()
    })
}

/// Seconds of the shortest of some passes, each of which all threads begin and end together.
pub(crate) fn best_pass(barrier: &Barrier, passes: usize, mut pass: impl FnMut()) -> f64 {
    let seconds = |_| {
        barrier.wait();
        let start = Instant::now();
        pass();
        barrier.wait();
        start.elapsed().as_secs_f64()
    };
    (0..passes).map(seconds).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(cpu: usize, host: &str) -> RankInfo {
        RankInfo { rank: 0, pid: 1, cpu, host: host.into(), device: None }
    }

    #[test]
    fn rank_information_arrives_whole() {
        let mut comm = Communicator::local(1).unwrap();
        let device = DeviceInfo { index: 3, name: "a GPU".into() };
        let ranks = RankInfo::gather(&mut comm[0], Some(&device)).unwrap();
        assert_eq!(ranks[0].pid, std::process::id());
        assert_eq!(ranks[0].device, Some(device));
        assert_eq!(ranks[0].host, comm[0].host());
        assert!(cpus::allowed().unwrap().contains(&ranks[0].cpu), "{ranks:?}");
    }

    #[test]
    fn probed_cpus_are_of_one_host() {
        assert_eq!(probed_cpus(&[rank(3, "a"), rank(3, "a"), rank(5, "a")]), Some([3, 5]));
        assert_ne!(probed_cpus(&[rank(7, "a"), rank(900, "b")]), Some([7, 900]));
        assert_eq!(probed_cpus(&[]), None);
    }
}
