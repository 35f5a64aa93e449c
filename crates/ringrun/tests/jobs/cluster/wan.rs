//! Bad networks: with a delay, with lost packets, and with cables that are pulled out and plugged
//! in again. Every collective has the right result there, by ringbench's own checks, and no rank is
//! lost or suspected.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::harness::cluster::Cluster;
use ::harness::wan::Wan;
use ::harness::{share, skip};
use nix::sys::signal::Signal;
use ringreduce::{Collective, Communicator, DataType, ReduceOp, Result};

use super::lost_hosts::lose_agent;
use super::{cluster, said_nothing, start, start_body};
use crate::harness::{Ended, ringbench};

const COLLECTIVES: [&str; 12] = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "scan",
    "exscan",
    "send_recv",
    "barrier",
];
/// A job takes much of the time of the whole test.
const JOB: Duration = Duration::from_secs(120);
/// The peer timeout is 5 seconds, and TCP waits longer and longer before it sends again.
const LONGEST_CUT_MS: u64 = 1500;
/// After a cut the system asks for a host's hardware address once a second, and a host that does
/// not answer three times has no route: one question must find all cables plugged in.
const SHORTEST_PAUSE_MS: u64 = 1500;

/// The rate of all cables, what is between them, and whether they are pulled out.
struct Network {
    rate: &'static str,
    wan: Wan,
    is_cut: bool,
}

const fn wan(delay_ms: u64, loss: f64) -> Wan {
    Wan { delay: Duration::from_millis(delay_ms), loss }
}

/// Round trips of 20, 40 and 2 ms.
const NETWORKS: [Network; 3] = [
    Network { rate: "1gbit", wan: wan(10, 0.0), is_cut: false },
    Network { rate: "100mbit", wan: wan(20, 0.001), is_cut: false },
    Network { rate: "200mbit", wan: wan(1, 0.0), is_cut: true },
];

/// Pulls out the cable of a random host now and then, until the end of the job.
fn cut_now_and_then(cluster: &Cluster, is_over: &AtomicBool) {
    let pause = |ms: u64| thread::sleep(Duration::from_millis(ms));
    while !is_over.load(Ordering::Relaxed) {
        let host = share::random_range(0..cluster.hosts.len());
        cluster.cut(host);
        pause(share::random_range(50..LONGEST_CUT_MS));
        cluster.mend(host);
        pause(share::random_range(SHORTEST_PAUSE_MS..2 * SHORTEST_PAUSE_MS));
    }
}

fn measure(cluster: &Cluster, collective: &str, network: &Network) {
    let program = ringbench();
    let words = "-b 8 -e 1M -f 32 -n 2 -w 0 -c 4";
    let words: Vec<_> = [&program[..], collective].into_iter().chain(words.split(' ')).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let running = start(cluster, "h0:2,h1:1,h2:1", &words, Stdio::null());
        if network.is_cut {
            scope.spawn(|| cut_now_and_then(cluster, &is_over));
        }
        let ended = running.finish_within(JOB);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(ended.code, 0, "{collective}: {ended:?}");
        // Where packets are lost or cables are out, connections break too, and say so.
        let may_break = network.is_cut || network.wan.loss > 0.0;
        let is_resumed = |line: &str| may_break && line.contains(" broke, and goes on after ");
        let said = ended.err.lines().filter(|line| !is_resumed(line)).collect::<Vec<_>>();
        said_nothing(&Ended { err: said.join("\n"), ..ended });
    });
}

/// The body of a rank that says into how many rounds it cuts a call, and sums by such calls in its
/// communicator and in a subgroup over both hosts.
pub(crate) fn cuts() -> Result<()> {
    const LEN: usize = 4 << 20;
    let mut comm = Communicator::from_env()?;
    let rounds = comm.explain(Collective::AllReduce, LEN, DataType::F32)?.rounds;
    println!("\nrounds {} {rounds}", comm.rank());
    let mut buf = vec![1_f32; LEN];
    comm.all_reduce(&mut buf, ReduceOp::Sum)?;
    assert!(buf.iter().all(|&sum| sum == 4.0), "a wrong sum");
    if let Some(mut half) = comm.split(Some(comm.rank() as u32 % 2), 0)? {
        half.all_reduce(&mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&sum| sum == 8.0), "a wrong sum of a subgroup");
    }
    Ok(())
}

/// The rounds of the call of [`cuts`], by rank.
fn rounds(cluster: &Cluster) -> Vec<u32> {
    let mut running = start_body(cluster, "", "cuts");
    let mut all = vec![0; 4];
    for _ in 0..4 {
        let [rank, rounds] = running.numbers("rounds ");
        all[rank as usize] = rounds;
    }
    let ended = running.finish_within(JOB);
    assert_eq!(ended.code, 0, "{ended:?}");
    all
}

/// All ranks, also those of subgroups and those that join, cut calls alike: long rounds only where
/// each takes much time to cross the network.
#[test]
fn rounds_are_long_where_hosts_are_far_apart() {
    let test = "wan::rounds_are_long_where_hosts_are_far_apart";
    let Some(mut cluster) = cluster(test, 2) else { return };
    cluster.set_rate("1gbit");
    let near = rounds(&cluster);
    if let Err(why) = cluster.set_wan(wan(10, 0.0)) {
        return skip(&format!("cluster::{test}"), &why);
    }
    let far = rounds(&cluster);
    assert!(near.iter().all(|&it| it == near[0]) && far.iter().all(|&it| it == far[0]));
    assert!(far[0] == 1 && near[0] > 1, "{far:?} {near:?}");
    lose_agent(&cluster, Signal::SIGKILL);
}

#[test]
fn collectives_are_right_on_bad_networks() {
    let test = "wan::collectives_are_right_on_bad_networks";
    for network in share::of(&[0, 1, 2], 3).map(|number: usize| &NETWORKS[number]) {
        let Some(mut cluster) = cluster(test, 3) else { return };
        cluster.set_rate(network.rate);
        if let Err(why) = cluster.set_wan(network.wan) {
            return skip(&format!("cluster::{test}"), &why);
        }
        let until = Instant::now() + share::count(Duration::ZERO, Duration::from_secs(20 * 60));
        let first = share::random_range(0..COLLECTIVES.len());
        let all = COLLECTIVES.iter().cycle().skip(first);
        for (number, collective) in all.enumerate() {
            if number >= share::count(2, COLLECTIVES.len()) && Instant::now() >= until {
                break;
            }
            measure(&cluster, collective, network);
        }
    }
}
