//! Hosts that a job loses, with their agent or their network: the others go on, and the host's
//! ranks are let in again once an agent of it can be started, or a host has free slots.

use std::path::Path;
use std::time::Duration;

use ::harness::cluster::Cluster;
use ::harness::share;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, Error, ReduceOp, Result};

use super::deaths::now;
use super::{FOUR, PROMPT, Running, cluster, draw_all_pairs, start_body_on, start_script};
use crate::harness::{send, until};

/// Restarts enough for a machine that is too busy for its hosts to answer in time.
pub(super) const ELASTIC: &str = "--elastic 1:4 --max-restarts 100 -x RINGREDUCE_PEER_TIMEOUT=4";
/// Of a rank that has waited for long to be let in.
const WAITS_FOR_GROW: &str = "to be let in: the members do so where they call `grow`";
/// The file on the host of rank 0 that ends the job.
pub(super) const OVER: &str = "/run/over";
/// The file on a host whose ranks had no answer from the launcher.
const UNANSWERED: &str = "/run/unanswered";
/// The time in which up to 64 members agree and connect on two CPUs. More members have
/// proportionally more.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time after which survivors go on without ranks that do not answer.
const GRACE: Duration = Duration::from_secs(12);

/// The variable with the number of ranks of each of eight hosts.
const OF_EIGHT: &str = "TEST_RANKS_OF_EIGHT";
/// The number of ranks without the variable. Twice as many shrink in a second where nothing else
/// runs, but four such jobs at once on two CPUs do not connect in time.
const FEW: usize = 2;

/// The body of a rank that sums, without the lost ranks and with those that come back, until the
/// file [`OVER`] is there and no rank is missing. It says so once it has summed with all ranks.
pub(crate) fn outlasts(evicts: bool) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let all: usize = std::env::var("RINGREDUCE_SIZE").unwrap().parse().unwrap();
    let deadline = DEADLINE.max(DEADLINE * all as u32 / 64);
    let mut is_up = false;
    loop {
        match step(&mut comm, all, deadline) {
            Err(error) if error.is_lost_rank() => {
                let known = now();
                eprintln!("{known} ms: {error}");
                comm = if evicts { comm.evict(GRACE)? } else { comm.shrink(deadline)? };
                println!("\nshrunk {} {known} {}", comm.size(), now());
            }
            Ok(Step::Last) => return Ok(()),
            Ok(Step::Whole) => {
                if !std::mem::replace(&mut is_up, true) {
                    println!("\nup {}", launched_rank());
                }
            }
            other => {
                other?;
            }
        }
    }
}

/// The number of this rank in the job, which stays the same when it comes back.
fn launched_rank() -> usize {
    std::env::var("RINGREDUCE_RANK").unwrap().parse().unwrap()
}

/// A step of [`outlasts`]: ranks are missing, or all were there, the last time or once more.
enum Step {
    Smaller,
    Whole,
    Last,
}

/// Sums once, and lets in the ranks that have come.
fn step(comm: &mut Communicator, all: usize, deadline: Duration) -> Result<Step> {
    let size = comm.size();
    let mut sum = [1.0; 1000];
    sum[0] = f32::from(u8::from(comm.rank() == 0 && Path::new(OVER).exists()));
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert!(sum[1..].iter().all(|&it| it == size as f32), "a wrong sum");
    if size == all && sum[0] > 0.0 {
        return Ok(Step::Last);
    }
    // Also while all are there: whoever waits then takes the place of a rank that is still there.
    match comm.grow(deadline) {
        Ok(Some(larger)) => {
            assert!(size < all, "{} ranks of {all}: one is there twice", larger.size());
            *comm = larger;
        }
        // The launcher's host is cut off: who is there goes on, and asks again.
        Err(Error::Store { .. }) => std::fs::write(UNANSWERED, "").unwrap(),
        Ok(None) => {}
        Err(error) => return Err(error),
    }
    Ok(if size == all { Step::Whole } else { Step::Smaller })
}

/// A job of as many ranks on each host, of which one host is lost.
pub(super) struct Losing<'a> {
    running: Running<'a>,
    /// How many processes of each rank have summed with all others.
    pub(super) up: Vec<usize>,
}

impl<'a> Losing<'a> {
    /// Starts four ranks on two hosts.
    fn start(cluster: &'a Cluster, options: &str) -> Self {
        Self::start_on(cluster, FOUR, options, ("outlasts evicts", 4))
    }

    /// Starts the job, until all ranks have summed. A busy machine may lose a host by itself.
    pub(super) fn start_on(
        cluster: &'a Cluster,
        hosts: &str,
        options: &str,
        (body, ranks): (&str, usize),
    ) -> Self {
        let running = start_body_on(cluster, hosts, options, body);
        let mut losing = Self { running, up: vec![0; ranks] };
        losing.await_processes(|up| up.iter().all(|&count| count > 0));
        losing
    }

    fn await_processes(&mut self, are_there: impl Fn(&[usize]) -> bool) {
        while !are_there(&self.up) {
            let [rank] = self.running.numbers("up ");
            self.up[rank as usize] += 1;
        }
    }

    /// Waits until the lost ranks sum again, in new processes.
    pub(super) fn are_back(&mut self, lost: &[usize]) {
        let before = self.up.clone();
        self.await_processes(|up| lost.iter().all(|&rank| up[rank] > before[rank]));
    }

    /// Ends the job, of which this host is to come back.
    fn comes_back(mut self, host: usize) {
        let per_host = self.up.len() / self.running.cluster.hosts.len();
        let lost: Vec<_> = (host * per_host..(host + 1) * per_host).collect();
        self.are_back(&lost);
        self.end();
    }

    fn end(self) {
        self.end_by(0);
    }

    /// Ends a job whose rank 0 is on this host.
    pub(super) fn end_by(self, host: usize) {
        let over = self.running.cluster.hosts[host].path(OVER);
        std::fs::write(&over, "").unwrap();
        let ended = self.running.finish();
        assert_eq!(ended.code, 0, "{ended:?}");
        std::fs::remove_file(over).unwrap();
    }
}

fn agent(running: &Running<'_>) -> u32 {
    running.process(1, "ringrun", "--agent")
}

/// Sends this signal to the agent of the second of two hosts, whose ranks are lost and come back.
pub(super) fn lose_agent(cluster: &Cluster, signal: Signal) {
    let losing = Losing::start(cluster, ELASTIC);
    send(agent(&losing.running), signal);
    losing.comes_back(1);
}

/// An agent that was killed ends with its ranks; one that is stopped is silent for the lease, and
/// its successor ends it with its ranks.
#[test]
fn the_ranks_of_a_lost_agent_come_back() {
    let test = "lost_hosts::the_ranks_of_a_lost_agent_come_back";
    let Some(cluster) = cluster(test, 2) else { return };
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGSTOP] {
        lose_agent(&cluster, signal);
    }
}

/// The network of a host is down for longer than launcher and agent wait for each other.
#[test]
fn ranks_come_back_with_the_network_of_their_host() {
    let test = "lost_hosts::ranks_come_back_with_the_network_of_their_host";
    let Some(cluster) = cluster(test, 2) else { return };
    let mut losing = Losing::start(&cluster, ELASTIC);
    cluster.cut(1);
    let line = losing.running.error_line("host h1 was lost: no sign of life");
    assert!(line.contains("look there for") && !line.contains("start the job again"), "{line}");
    losing.running.error_line("host h1 can't be reached yet");
    cluster.mend(1);
    losing.comes_back(1);
}

/// The ranks of a host that is cut off go to one that had none so far. Once this one is lost too,
/// they go to the first one of the two that comes back. A host without ranks may be down when the
/// job begins.
#[test]
fn the_ranks_of_a_lost_host_go_to_free_slots() {
    let test = "lost_hosts::the_ranks_of_a_lost_host_go_to_free_slots";
    let Some(cluster) = cluster(test, 4) else { return };
    cluster.stop_sshd(3);
    let of_two = ("outlasts evicts", 4);
    let mut losing = Losing::start_on(&cluster, "h0:2,h1:2,h2:2,h3:2", ELASTIC, of_two);
    losing.running.error_line("the job begins without the free slots of host h3");
    cluster.cut(1);
    losing.running.error_line("started again once a host has a slot for it");
    losing.running.error_line("ranks 2-3 go to free slots of host h2");
    losing.are_back(&[2, 3]);
    cluster.stop_sshd(2);
    send(losing.running.process(2, "ringrun", "--agent"), Signal::SIGKILL);
    losing.running.error_line("host h2 can't be reached yet");
    cluster.mend(1);
    losing.running.error_line("ranks 2-3 go to free slots of host h1");
    losing.are_back(&[2, 3]);
    losing.end();
}

/// Hosts wait for a launcher that is out of reach for the peer timeout and 5 s, and a rank that
/// asks it who waits gives up after 10 s.
#[test]
fn ranks_go_on_while_the_launcher_is_out_of_reach() {
    let test = "lost_hosts::ranks_go_on_while_the_launcher_is_out_of_reach";
    let Some(cluster) = cluster(test, 3) else { return };
    let options = format!("{ELASTIC}0");
    let of_two = ("outlasts evicts", 4);
    let losing = Losing::start_on(&cluster, "h1:2,h2:2", &options, of_two);
    cluster.cut(0);
    let unanswered = cluster.hosts[1].path(UNANSWERED);
    until("a rank has no answer from the launcher", || unanswered.exists());
    cluster.mend(0);
    losing.end_by(1);
}

#[test]
fn the_ranks_of_a_lost_host_go_to_the_launchers_own() {
    let test = "lost_hosts::the_ranks_of_a_lost_host_go_to_the_launchers_own";
    let Some(cluster) = cluster(test, 2) else { return };
    let (options, body) = (format!("{ELASTIC} --map-by node"), ("outlasts evicts", 4));
    let mut losing = Losing::start_on(&cluster, "h0:4,h1:2", &options, body);
    cluster.stop_sshd(1);
    send(agent(&losing.running), Signal::SIGKILL);
    losing.running.error_line("ranks 1,3 go to free slots of host h0");
    losing.are_back(&[1, 3]);
    losing.end();
}

/// The ranks of a host go to two others. A stopped agent can't end those that it has started, which
/// run on until a new agent ends them: until then the others do not let in the new ones.
#[test]
fn the_ranks_of_a_stopped_agent_go_to_free_slots() {
    let test = "lost_hosts::the_ranks_of_a_stopped_agent_go_to_free_slots";
    let Some(cluster) = cluster(test, 4) else { return };
    let of_two = ("outlasts evicts", 4);
    let mut losing = Losing::start_on(&cluster, "h0:2,h1:2,h2:1,h3:1", ELASTIC, of_two);
    cluster.stop_sshd(1);
    send(agent(&losing.running), Signal::SIGSTOP);
    losing.running.error_line("rank 2 goes to free slots of host h2");
    losing.running.error_line("rank 3 goes to free slots of host h3");
    losing.running.error_line(WAITS_FOR_GROW);
    cluster.start_sshd(1);
    losing.running.error_line("host h1 is back");
    losing.are_back(&[2, 3]);
    losing.end();
}

/// A host without ranks tells that nothing is left there, as others do.
#[test]
fn free_slots_do_not_delay_the_end() {
    let test = "lost_hosts::free_slots_do_not_delay_the_end";
    let Some(cluster) = cluster(test, 3) else { return };
    let mut running =
        start_script(&cluster, "h0:1,h1:1,h2:1", "--elastic 1:2", "echo up; exec sleep 1000");
    running.await_lines("up", 2);
    running.signal(Signal::SIGINT);
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 130, "{ended:?}");
}

/// The ranks of eight hosts lose one with its network: all others name it, go on without it in one
/// step, and with it once it is back. Prints how soon.
#[test]
fn a_host_of_eight_is_lost_and_comes_back() {
    let test = "lost_hosts::a_host_of_eight_is_lost_and_comes_back";
    let Some(cluster) = cluster(test, 8) else { return };
    let of_eight = std::env::var(OF_EIGHT).map_or(FEW, |ranks| ranks.parse().unwrap());
    let hosts: Vec<_> = (0..8).map(|host| format!("h{host}:{of_eight}")).collect();
    let ranks = 8 * of_eight;
    // More than 64 ranks on two CPUs keep the system from answering for seconds.
    let seconds = 5.max(5 * ranks / 64);
    // All pairs of ranks have links, or a rank has few links, as in a larger world.
    let all_pairs = draw_all_pairs();
    let options = format!(
        "--elastic 1:{ranks} --max-restarts 10000 -x RINGREDUCE_PEER_TIMEOUT={seconds} \
         -x RINGREDUCE_ALL_PAIRS={all_pairs}"
    );
    let body = ("outlasts shrinks", ranks);
    let mut losing = Losing::start_on(&cluster, &hosts.join(","), &options, body);
    // The leader has no link to ranks of some hosts, if there are more than four ranks of each.
    let lost = share::random_range(1..8) as usize;
    cluster.cut(lost);
    let (cut, mut known, mut shrunk) = (now(), vec![], vec![]);
    while shrunk.len() < 7 * of_eight {
        let [size, at, after] = losing.running.numbers("shrunk ").map(i64::from);
        if size != 7 * of_eight as i64 {
            losing.running.fail("another number of ranks went on than all but the lost host's");
        }
        known.push(at - cut);
        shrunk.push(after - at);
    }
    let most = |times: Vec<i64>| times.into_iter().max().unwrap();
    println!(
        "host {lost}, all pairs of {all_pairs}: known {} ms after the cut, shrunk {} ms later",
        most(known),
        most(shrunk)
    );
    cluster.mend(lost);
    let mended = now();
    losing.comes_back(lost);
    println!("all ranks have summed, and the job has ended, {} ms after the mend", now() - mended);
}

/// The others go on, and the job ends with them.
#[test]
fn a_job_ends_well_without_a_host_that_never_comes_back() {
    let test = "lost_hosts::a_job_ends_well_without_a_host_that_never_comes_back";
    let Some(cluster) = cluster(test, 2) else { return };
    let script = "echo up; test $RINGREDUCE_RANK = 1 && exec sleep 1000; while ! test -e \
                  /run/end; do sleep 0.1; done";
    let mut running = start_script(&cluster, "h0:1,h1:1", "--elastic 1:2", script);
    running.await_lines("up", 2);
    cluster.stop_sshd(1);
    send(agent(&running), Signal::SIGKILL);
    running.error_line("host h1 was lost");
    running.error_line("host h1 can't be reached yet");
    std::fs::write(cluster.hosts[0].path("/run/end"), "").unwrap();
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("the job ends without rank 1"), "{ended:?}");
}

/// A job that does not go on without ranks ends with its first lost host.
#[test]
fn a_job_of_fixed_size_ends_with_a_lost_host() {
    let test = "lost_hosts::a_job_of_fixed_size_ends_with_a_lost_host";
    let Some(cluster) = cluster(test, 2) else { return };
    let Losing { running, .. } =
        Losing::start(&cluster, "--kill-after 1 -x RINGREDUCE_PEER_TIMEOUT=60");
    send(agent(&running), Signal::SIGKILL);
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("host h1 was lost") && !ended.err.contains("back"), "{ended:?}");
}
