//! A storm over hosts: ranks are killed and stopped, cables are pulled out, the network falls into
//! two parts, connections are destroyed, agents are killed and stopped, the launcher is killed, one
//! fault after the other on a network that loses packets, while all ranks check sums. Law: every
//! fault is survived, no rank is named that had none, and lost ranks come back; of a job without
//! its launcher nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

use ::harness::cluster::{Cluster, HostProcess, name, pid_on_host};
use ::harness::wan::Wan;
use ::harness::{share, skip};
use nix::sys::signal::Signal;
use ringreduce::{Communicator, Error, ReduceOp, Result};

use super::resume::destroy;
use super::{Running, cluster, draw_all_pairs, start_body_on};
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
/// TCP waits about as long as the cut was before it sends again. Two hosts that are cut in turns
/// would not meet meanwhile, so the next cut comes later.
const MEETING: Duration = Duration::from_secs(3);
/// One of a thousand frames is lost.
const LOSSY: Wan = Wan { delay: Duration::ZERO, loss: 0.001 };

/// The body of a rank, which names itself if it ends by an error.
pub(crate) fn storms() -> Result<()> {
    sum_in_storm().inspect_err(|error| println!("\nended {}: {error}", me()))
}

/// Sums until the end, without the lost ranks and with those that come back.
fn sum_in_storm() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    comm.set_timeout(TIMEOUT);
    let (mut round, mut reported) = (0_u64, None);
    loop {
        match rounds(&mut comm, &mut round, &mut reported) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_lost_rank() => {
                if let Error::PeerLost { peer, .. } | Error::Stalled { peer, .. } = &error {
                    println!("\nlost {} {} by {}: {error}", peer.host, peer.pid, me());
                }
                comm = comm.evict(GRACE)?;
                comm.set_timeout(TIMEOUT);
            }
            Err(other) => return Err(other),
        }
    }
}

/// The host and the pid of this rank, as peers name it.
fn me() -> String {
    let host = nix::unistd::gethostname().unwrap();
    format!("{} {}", host.display(), std::process::id())
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

/// The process of a rank: its host, and its pid there.
type Rank = (String, u32);

/// The ranks that had a fault.
#[derive(Debug, Default)]
struct Victims {
    all: BTreeSet<Rank>,
    /// Ranks that were stopped, or had no network, may take others for lost.
    silent: BTreeSet<Rank>,
}

impl Victims {
    fn add(&mut self, rank: Rank, is_silent: bool) {
        if is_silent {
            self.silent.insert(rank.clone());
        }
        self.all.insert(rank);
    }

    /// True unless this line says that a rank without a fault is lost, or has ended by an error.
    fn explains(&self, line: &str) -> bool {
        let is_in = |ranks: &BTreeSet<Rank>, text: &str| {
            let mut words = text.split([' ', ':']);
            let host = words.next().unwrap().to_owned();
            ranks.contains(&(host, words.next().unwrap().parse().unwrap()))
        };
        if let Some((lost, by)) = line.strip_prefix("lost ").and_then(|it| it.split_once(" by ")) {
            return is_in(&self.all, lost) || is_in(&self.silent, by);
        }
        line.strip_prefix("ended ").is_none_or(|ended| is_in(&self.all, ended))
    }
}

/// A job in the storm, and what its ranks have said.
struct Storm<'a> {
    cluster: &'a Cluster,
    running: Running<'a>,
    victims: Victims,
    /// The ranks that have reported a full membership, by its number.
    full: BTreeMap<u32, usize>,
    last: Option<u32>,
}

impl<'a> Storm<'a> {
    /// Starts a job with links between all pairs of ranks or few links, and waits for its ranks.
    fn start(cluster: &'a Cluster) -> Self {
        let all_pairs = draw_all_pairs();
        let options =
            format!("--elastic 1:8 --max-restarts 10000 -x RINGREDUCE_ALL_PAIRS={all_pairs}");
        let running = start_body_on(cluster, ON_HOSTS, &options, "storms");
        let (victims, full) = Default::default();
        let mut storm = Self { cluster, running, victims, full, last: None };
        storm.await_all();
        storm
    }

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
            let rank = (name(victim.host), pid_on_host(victim.pid));
            self.victims.add(rank, signal == Signal::SIGSTOP);
            send(victim.pid, signal);
        }
    }

    /// Makes a host lose all its ranks, by `fault`.
    fn lose_host(&mut self, host: usize, fault: impl FnOnce()) {
        for rank in self.ranks().into_iter().filter(|rank| rank.host == host) {
            self.victims.add((name(host), pid_on_host(rank.pid)), true);
        }
        fault();
        self.running.error_line(&format!("host {} was lost", name(host)));
    }

    /// Kills the launcher, without which the job ends.
    fn lose_launcher(self) {
        send(self.running.pid(), Signal::SIGKILL);
        self.finish(-9);
    }

    /// Waits until all ranks are members again.
    fn await_all(&mut self) {
        loop {
            let line = self.running.line();
            if !self.victims.explains(&line) {
                self.running.fail(&format!("{line}: {:?}", self.victims));
            }
            if let Some(epoch) = line.strip_prefix("full ") {
                let epoch = epoch.parse().unwrap();
                let count = self.full.entry(epoch).or_default();
                *count += 1;
                if *count == RANKS && self.last.is_none_or(|last| epoch > last) {
                    self.last = Some(epoch);
                    return;
                }
            }
        }
    }

    /// Ends the job.
    fn end(self) {
        for host in &self.cluster.hosts {
            std::fs::write(host.path(OVER), "").unwrap();
        }
        self.finish(0);
    }

    /// Waits for the end of the job, of which no rank without a fault has ended by an error.
    fn finish(self, code: i32) {
        let Self { running, victims, .. } = self;
        let ended = running.finish();
        let is_explained = ended.out.lines().all(|line| victims.explains(line));
        let said = [&ended.err, &ended.seen_err];
        let has_panicked = said.iter().any(|said| said.contains("panicked"));
        assert!(ended.code == code && is_explained && !has_panicked, "{ended:?}, {victims:?}");
    }
}

#[test]
fn ranks_of_four_hosts_survive_a_storm() {
    let test = "storm::ranks_of_four_hosts_survive_a_storm";
    let Some(mut cluster) = cluster(test, HOSTS) else { return };
    if let Err(why) = cluster.set_wan(LOSSY) {
        return skip(&format!("cluster::{test}"), &why);
    }
    let cluster = &cluster;
    let mut storm = Storm::start(cluster);
    for fault in 0..share::count(4, 300) {
        let kind = share::random_range(0..18);
        let host = share::random_range(0..HOSTS);
        // The first host is the launcher's.
        let other = share::random_range(1..HOSTS);
        println!("fault {fault} of kind {kind}");
        match kind {
            0..5 => storm.strike(1, Signal::SIGKILL),
            5..7 => storm.strike(2, Signal::SIGKILL),
            7..8 => storm.strike(1, Signal::SIGSTOP),
            8..10 => {
                // Connections that are destroyed cost no rank.
                println!("{} connections are destroyed", destroy(cluster, host));
                continue;
            }
            10..12 => {
                cluster.cut(host);
                thread::sleep(SHORT_CUT);
                cluster.mend(host);
                thread::sleep(MEETING);
                continue;
            }
            12..14 => {
                // Two of the four hosts from the other two: those of a part hear each other.
                cluster.part(&[0, other]);
                thread::sleep(SHORT_CUT);
                cluster.part(&[]);
                thread::sleep(MEETING);
                continue;
            }
            14..15 => {
                storm.lose_host(other, || cluster.cut(other));
                cluster.mend(other);
            }
            15..17 => {
                // The ranks of an agent that is stopped live on until its successor ends them.
                let signal = if kind == 15 { Signal::SIGKILL } else { Signal::SIGSTOP };
                let agent = storm.running.process(other, "ringrun", "--agent");
                storm.lose_host(other, || send(agent, signal));
            }
            _ => {
                storm.lose_launcher();
                storm = Storm::start(cluster);
                continue;
            }
        }
        storm.await_all();
    }
    storm.end();
}
