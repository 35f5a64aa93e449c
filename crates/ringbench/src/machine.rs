//! What machine this is and who sits where on it. May touch: /proc, nix's scheduler calls.

use std::fs;
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use ringreduce::{Communicator, ReduceOp};
use serde::Serialize;

use crate::device::Seated;

/// The machine that rank 0 runs on.
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

/// Bytes of a device's name that ranks tell each other.
const NAME: usize = 96;

/// Where one rank sits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) pid: u32,
    /// The CPU it was on when asked.
    pub(crate) cpu: usize,
    pub(crate) host: String,
    /// Where its buffers are, if not on the host.
    pub(crate) device: Option<Seated>,
}

impl Seat {
    /// Every rank's, known to every rank. All have a device, or none.
    pub(crate) fn gather(
        comm: &mut Communicator,
        device: Option<&Seated>,
    ) -> ringreduce::Result<Vec<Self>> {
        let mine = [sched_getcpu().unwrap_or(0), device.map_or(0, |device| device.index)];
        let mut all = vec![0; 2 * comm.size()];
        comm.all_gather(&mine.map(|number| number as u64), &mut all)?;
        let mut names = vec![0; NAME * comm.size()];
        if let Some(device) = device {
            let mut mine = [0; NAME];
            mine.iter_mut().zip(device.name.bytes()).for_each(|(to, from)| *to = from);
            comm.all_gather(&mine, &mut names)?;
        }
        let told = all.chunks_exact(2).zip(names.chunks_exact(NAME));
        let seats = comm.peers().iter().zip(told).map(|(peer, (numbers, name))| Self {
            rank: peer.rank,
            pid: peer.pid,
            cpu: numbers[0] as usize,
            host: peer.host.clone(),
            device: device.map(|_| Seated {
                index: numbers[1] as usize,
                name: String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(),
            }),
        });
        Ok(seats.collect())
    }
}

/// What the links between all ranks are, joined by "+"; "none" for a world of one.
pub(crate) fn transports(comm: &mut Communicator) -> ringreduce::Result<String> {
    const KINDS: [&str; 3] = ["shm", "tcp", "threads"];
    let mine = comm.transports();
    let mut used = KINDS.map(|kind| u8::from(mine.contains(&kind)));
    comm.all_reduce(&mut used, ReduceOp::Max)?;
    let used: Vec<_> = KINDS.into_iter().zip(used).filter(|&(_, n)| n > 0).collect();
    let names: Vec<_> = used.into_iter().map(|(kind, _)| kind).collect();
    Ok(if names.is_empty() { "none".to_owned() } else { names.join("+") })
}

/// The two CPUs to probe: those of rank 0 and of the first other rank on its host, if they sit
/// apart, else any two this process may use. None if there is only one.
pub(crate) fn pair(seats: &[Seat]) -> Option<[usize; 2]> {
    let first = seats.first()?;
    let mut others = seats.iter().filter(|seat| seat.host == first.host).map(|seat| seat.cpu);
    let other = others.find(|&cpu| cpu != first.cpu);
    let other = other.or_else(|| cpus().into_iter().find(|&cpu| cpu != first.cpu));
    other.map(|cpu| [first.cpu, cpu])
}

/// The CPUs that this process may use.
pub(crate) fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// Binds this thread to a CPU. Where that is not allowed the scheduler spreads two busy threads
/// just as well, so a refusal is no error.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(cpu: usize, host: &str) -> Seat {
        Seat { rank: 0, pid: 1, cpu, host: host.into(), device: None }
    }

    #[test]
    fn a_seat_survives_the_journey() {
        let mut comm = Communicator::local(1).unwrap();
        let device = Seated { index: 3, name: "a GPU".into() };
        let seats = Seat::gather(&mut comm[0], Some(&device)).unwrap();
        assert_eq!(seats[0].pid, std::process::id());
        assert_eq!(seats[0].device, Some(device));
        assert_eq!(seats[0].host, comm[0].host());
        assert!(cpus().contains(&seats[0].cpu), "{seats:?}");
    }

    #[test]
    fn the_pair_is_of_one_host() {
        assert_eq!(pair(&[seat(3, "a"), seat(3, "a"), seat(5, "a")]), Some([3, 5]));
        assert_ne!(pair(&[seat(7, "a"), seat(900, "b")]), Some([7, 900]));
        assert_eq!(pair(&[]), None);
    }
}
