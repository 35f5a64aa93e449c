//! A storm over hosts: ranks are killed and stopped, cables are pulled out and connections are
//! destroyed, one fault after the other, while all ranks check sums. Law: every fault is survived,
//! no rank is named that had none, and lost ranks come back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use ::harness::cluster::{Cluster, HostProcess, name, pid_on_host};
use ::harness::share;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, Error, ReduceOp, Result};

use super::resume::destroy;
use super::{Running, cluster, start_body_on};
use crate::harness::send;

const HOSTS: usize = 4;
const RANKS: usize = 8;
const ON_HOSTS: &str = "h0:2,h1:2,h2:2,h3:2";
/// The file on each host that ends the job.
const OVER: &str = "/run/over";
/// The longest wait of a rank for a peer that does not come; more than the peer timeout.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Within this, members agree and connect.
const DEADLINE: Duration = Duration::from_secs(20);
/// After this, those that have come go on without the others.
const GRACE: Duration = Duration::from_secs(12);
/// A cable that comes back after this costs no rank: the peer timeout is 5 seconds.
const SHORT_CUT: Duration = Duration::from_millis(1500);

/// The body of a rank: sums until the end, without the lost ranks and with those that come back.
pub(crate) fn storms() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    comm.set_timeout(TIMEOUT);
    let (mut round, mut reported) = (0_u64, None);
    loop {
        match rounds(&mut comm, &mut round, &mut reported) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_lost_rank() => {
                if let Error::PeerLost { peer, .. } | Error::Stalled { peer, .. } = &error {
                    println!("\nlost {} {}: {error}", peer.host, peer.pid);
                }
                comm = comm.evict(GRACE)?;
                comm.set_timeout(TIMEOUT);
            }
            Err(other) => return Err(other),
        }
    }
}

/// Rounds with one membership, or several that only grow; ends well at the end of the job.
fn rounds(comm: &mut Communicator, round: &mut u64, reported: &mut Option<u32>) -> Result<()> {
    loop {
        // All go on from the furthest round.
        let mut furthest = [*round];
        comm.all_reduce(&mut furthest, ReduceOp::Max)?;
        *round = furthest[0];
        for _ in 0..20 {
            let is_over = comm.rank() == 0 && Path::new(OVER).exists();
            let mut sum = [*round; 3_000];
            sum[0] = u64::from(is_over);
            comm.all_reduce(&mut sum, ReduceOp::Sum)?;
            let right = *round * comm.size() as u64;
            assert!(sum[1..].iter().all(|&it| it == right), "a wrong sum");
            if sum[0] > 0 {
                return Ok(());
            }
            *round += 1;
        }
        if comm.size() == RANKS && reported.replace(comm.epoch()) != Some(comm.epoch()) {
            println!("\nfull {}", comm.epoch());
        }
        let mut queued = [0_u64];
        if comm.rank() == 0 {
            queued = [comm.queued_joiners()? as u64];
        }
        comm.broadcast(&mut queued, 0)?;
        if queued[0] > 0
            && let Some(larger) = comm.grow(DEADLINE)?
        {
            *comm = larger;
            comm.set_timeout(TIMEOUT);
        }
    }
}

/// A storm, and what its ranks have said.
struct Storm<'a> {
    cluster: &'a Cluster,
    running: Running<'a>,
    /// The host and pid of each rank that had a fault.
    victims: BTreeSet<(String, u32)>,
    /// The ranks that have reported a full membership, by its number.
    full: BTreeMap<u32, usize>,
    last: Option<u32>,
    /// The lines that name a rank without a fault.
    wrong: Vec<String>,
}

impl Storm<'_> {
    fn ranks(&self) -> Vec<HostProcess> {
        let mut all = self.cluster.processes();
        all.retain(|it| it.command.contains("ranks::bodies::body") && !it.command.contains("-H"));
        all.retain(|it| it.program().is_some_and(|path| !path.ends_with("ringrun")));
        all
    }

    /// Signals `count` ranks.
    fn strike(&mut self, count: usize, signal: Signal) {
        for _ in 0..count {
            let mut ranks = self.ranks();
            let victim = ranks.swap_remove(share::random_range(0..ranks.len() as u64) as usize);
            self.victims.insert((name(victim.host), pid_on_host(victim.pid)));
            send(victim.pid, signal);
        }
    }

    /// Waits until all ranks are members again.
    fn await_all(&mut self) {
        loop {
            let line = self.running.line();
            if let Some(lost) = line.strip_prefix("lost ") {
                let mut words = lost.split([' ', ':']);
                let host = words.next().unwrap().to_owned();
                let victim = (host, words.next().unwrap().parse().unwrap());
                if !self.victims.contains(&victim) {
                    self.wrong.push(line.clone());
                }
            }
            if let Some(epoch) = line.strip_prefix("full ") {
                let epoch = epoch.parse().unwrap();
                let count = self.full.entry(epoch).or_default();
                *count += 1;
                if *count == RANKS && self.last.is_none_or(|last| epoch > last) {
                    self.last = Some(epoch);
                    assert!(self.wrong.is_empty(), "{:#?}: {:?}", self.wrong, self.victims);
                    return;
                }
            }
        }
    }
}

#[test]
fn ranks_of_four_hosts_survive_a_storm() {
    let test = "storm::ranks_of_four_hosts_survive_a_storm";
    let Some(cluster) = cluster(test, HOSTS) else { return };
    let options = "--elastic 1:8 --max-restarts 10000";
    let running = start_body_on(&cluster, ON_HOSTS, options, "storms");
    let (victims, full) = (BTreeSet::new(), BTreeMap::new());
    let mut storm = Storm { cluster: &cluster, running, victims, full, last: None, wrong: vec![] };
    storm.await_all();
    for fault in 0..share::count(4, 300) {
        let kind = share::random_range(0..12);
        println!("fault {fault} of kind {kind}");
        match kind {
            0..5 => storm.strike(1, Signal::SIGKILL),
            5..7 => storm.strike(2, Signal::SIGKILL),
            7..8 => storm.strike(1, Signal::SIGSTOP),
            8..10 => {
                // Connections that are destroyed cost no rank either.
                destroy(&cluster, share::random_range(0..HOSTS as u64) as usize);
                continue;
            }
            _ => {
                let host = share::random_range(0..HOSTS as u64) as usize;
                cluster.cut(host);
                std::thread::sleep(SHORT_CUT);
                cluster.mend(host);
                continue;
            }
        }
        storm.await_all();
    }
    for host in &cluster.hosts {
        std::fs::write(host.path(OVER), "").unwrap();
    }
    let ended = storm.running.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(!ended.err.contains(" exited with status "), "{ended:?}");
}
