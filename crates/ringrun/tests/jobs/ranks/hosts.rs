//! Two hosts on one machine: network namespaces with a virtual cable. Ranks of one host share
//! memory, ranks of different hosts use TCP.

use std::process::Command;
use std::time::{Duration, Instant};

use ::harness::hosts::{Host, Hosts, add_cable, star};
use ::harness::skip;

use super::failure_report::Report;
use crate::harness::{
    AS_RANK, BODY, Ended, LONG, PATIENCE, PROMPT, Process, all_end, all_right, all_up, kill_all,
    myself, ringbench,
};
use crate::job::Job;
use crate::procfs;

/// Starts two ranks on each host; rank 0, on the left one, has the store.
pub(crate) fn start(job: &Job, hosts: &[Host; 2], change: impl Fn(&mut Command)) -> Vec<Process> {
    start_on(job, hosts, &[2, 2], change)
}

/// Starts a number of ranks on each host.
pub(crate) fn start_on(
    job: &Job,
    hosts: &[Host],
    ranks: &[usize],
    change: impl Fn(&mut Command),
) -> Vec<Process> {
    let size = ranks.iter().sum();
    let hosts_of_ranks =
        hosts.iter().zip(ranks).flat_map(|(host, &ranks)| (0..ranks).map(move |_| host));
    let rank = |(rank, host): (usize, &Host)| {
        let mut command = job.rank(&myself(), rank, size, "10.77.0.1:4000");
        command.args(AS_RANK);
        change(&mut command);
        Process::start(host.on(&command))
    };
    hosts_of_ranks.enumerate().map(rank).collect()
}

/// Ranks in full swing, which use this interface, if given.
fn in_full_swing(job: &Job, hosts: &[Host; 2], interface: Option<&str>) -> Vec<Process> {
    let mut ranks = start(job, hosts, |command| {
        command.env(BODY, "calls 100000 1000000000");
        interface.map(|interface| command.env("RINGREDUCE_IFNAME", interface));
    });
    all_up(&mut ranks);
    ranks
}

/// Runs a test if network namespaces are permitted.
pub(crate) fn with_hosts(test: &str, run: impl Fn(&Job, &[Host; 2])) {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => return skip(test, &why),
    };
    let job = Job::new();
    run(&job, &hosts.0);
    job.left_nothing();
}

#[test]
fn ranks_of_one_host_share_memory_and_hosts_use_tcp() {
    with_hosts("ranks_of_one_host_share_memory_and_hosts_use_tcp", |job, hosts| {
        for interface in [None, Some("eth"), Some("=eth0"), Some("10.77.0.0/16"), Some("^lo")] {
            let ranks = in_full_swing(job, hosts, interface);
            for rank in &ranks {
                // To each of the two ranks of the other host there is a control connection, and one
                // for each link that a call has used; ranks of one host map a region, and the pages
                // and status entries of both.
                let sockets = procfs::sockets(rank.pid());
                assert_eq!(sockets.listening, 1, "{interface:?}");
                assert!((2..=2 + 4).contains(&sockets.tcp), "{interface:?}: {sockets:?}");
                assert_eq!(procfs::shared_pieces(rank.pid()), 1 + 2 + 2 * 2, "{interface:?}");
            }
            kill_all(ranks);
        }
    });
}

#[test]
fn every_result_is_right() {
    if !::harness::share::makes_test(3) {
        return;
    }
    with_hosts("every_result_is_right", |job, hosts| {
        for interface in [None, Some("eth0")] {
            let rank = |rank: usize| {
                let mut command = job.rank(&ringbench(), rank, 4, "10.77.0.1:4000");
                command.args(["all_reduce", "-b", "1", "-e", "1M", "-f", "32", "-n", "2"]);
                command.args(["-c", "2", "-d", "all"]);
                interface.map(|interface| command.env("RINGREDUCE_IFNAME", interface));
                Process::start(hosts[rank / 2].on(&command))
            };
            let ended = all_end((0..4).map(rank).collect(), PATIENCE);
            assert!(ended.iter().all(|ended| ended.code == 0), "{ended:#?}");
            assert!(ended[0].out.contains("# Out of bounds values : 0 OK"), "{}", ended[0].out);
            let rows = ended[0].out.lines().filter(|line| !line.starts_with('#'));
            for row in rows.map(|row| row.split_whitespace().collect::<Vec<_>>()) {
                assert_eq!([row[8], row[12]], ["0", "0"], "{row:?}");
            }
        }
    });
}

/// The ranks of a host share a device, and one of them exchanges data with the other host.
#[test]
fn ranks_that_share_devices_are_islands() {
    if !::harness::share::makes_test(3) {
        return;
    }
    with_hosts("ranks_that_share_devices_are_islands", |job, hosts| {
        let lines = [
            "all_reduce -o avg",
            "broadcast -r 3",
            "reduce -o avg -r 3",
            "reduce_scatter -o max",
            "all_gather",
            "gather -r 3",
            "scatter -r 1",
        ];
        for line in lines {
            let hosts_of_ranks = [0, 0, 1, 1].into_iter().enumerate();
            let rank = |(rank, host): (usize, usize)| {
                let mut command = job.rank(&ringbench(), rank, 4, "10.77.0.1:4000");
                command.args(line.split(' ')).args(["--device", "cuda", "-e", "256K", "-f", "32"]);
                command.args(["-n", "2", "-w", "1"]).env("LD_LIBRARY_PATH", standin());
                Process::start(hosts[host].on(&command))
            };
            let ended = all_end(hosts_of_ranks.map(rank).collect(), PATIENCE);
            assert!(ended.iter().all(|ended| ended.code == 0), "{ended:#?}");
            let out = &ended[0].out;
            assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
            assert!(out.contains("calls go by islands"), "{out}");
        }
    });
}

/// The folder of the stand-in for the driver.
fn standin() -> std::path::PathBuf {
    cuda::harness::library_folder().unwrap()
}

#[test]
fn an_interface_that_is_not_there_is_an_error_that_lists_those_that_are() {
    let test = "an_interface_that_is_not_there_is_an_error_that_lists_those_that_are";
    with_hosts(test, |job, hosts| {
        let ranks = start(job, hosts, |command| {
            command.env(BODY, "calls 10 10").env("RINGREDUCE_IFNAME", "ib");
        });
        for ended in all_end(ranks, PROMPT) {
            assert_eq!(ended.code, 1, "{ended:?}");
            for part in ["RINGREDUCE_IFNAME", "\"ib\"", "eth0 10.77.0."] {
                assert!(ended.err.contains(part), "{part}: {ended:?}");
            }
        }
    });
}

/// The ports at which processes of a rank's host listen.
fn listening_ports(pid: u32) -> Vec<u16> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listeners = fields.filter(|fields| fields[3] == "0A");
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    let mut ports: Vec<_> = listeners.map(|fields| port(fields[1]).unwrap()).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn ranks_listen_at_the_ports_of_their_range() {
    with_hosts("ranks_listen_at_the_ports_of_their_range", |job, hosts| {
        let mut ranks = start(job, hosts, |command| {
            command.env(BODY, "calls 100000 1000000000");
            command.env("RINGREDUCE_PORT_RANGE", "4001-4009");
        });
        all_up(&mut ranks);
        // Once all have met, the store's port is closed.
        for rank in [&ranks[0], &ranks[3]] {
            assert_eq!(listening_ports(rank.pid()), [4001, 4002]);
        }
        kill_all(ranks);
        let ranks = start(job, hosts, |command| {
            command.env(BODY, "calls 10 10").env("RINGREDUCE_PORT_RANGE", "4001-4001");
        });
        let ended = all_end(ranks, PROMPT);
        assert!(ended.iter().all(|it| it.code == 1), "{ended:?}");
        let said = "all ports of RINGREDUCE_PORT_RANGE=4001-4001 are in use; give more";
        assert!(ended.iter().any(|it| it.err.contains(said)), "{ended:?}");
    });
}

/// Gives each host a network of its own that leads nowhere, and an address that the other has too.
fn add_dead_ends(hosts: &[Host; 2]) {
    for (host, number) in hosts.iter().zip(1..) {
        host.does("ip link add dead0 type veth peer dead1").unwrap();
        host.does("ip link add same0 type veth peer same1").unwrap();
        host.does(&format!("ip address add 10.99.0.{number}/24 dev dead0")).unwrap();
        host.does("ip address add 10.98.0.1/24 dev same0").unwrap();
        for link in ["dead0", "dead1", "same0", "same1"] {
            host.does(&format!("ip link set {link} up")).unwrap();
        }
    }
}

/// The first address of each rank gets no answer, and the second leads back to the own host.
#[test]
fn ranks_meet_at_the_address_that_leads_to_the_other_host() {
    with_hosts("ranks_meet_at_the_address_that_leads_to_the_other_host", |job, hosts| {
        add_dead_ends(hosts);
        // Ranks without links to all others connect again for groups.
        for (body, most) in [("calls 1000 10", "32"), ("over_hosts 3000", "2"), ("groups 5", "2")] {
            all_right(start(job, hosts, |command| {
                command.env(BODY, body).env("RINGREDUCE_IFNAME", "dead0,same0,eth0");
                command.env("RINGREDUCE_ALL_PAIRS", most);
            }));
        }
    });
}

/// Nothing comes in at the ports of ranks 0 and 1 at one address, from which they reach the others
/// all the same.
#[test]
fn ranks_meet_though_a_firewall_closes_the_address_that_connections_come_from() {
    let test = "ranks_meet_though_a_firewall_closes_the_address_that_connections_come_from";
    with_hosts(test, |job, hosts| {
        add_cable(&hosts[0], hosts);
        for line in [
            "ip rule add pref 100 lookup local",
            "ip rule add pref 50 iif eth0 ipproto tcp dport 20000-20009 blackhole",
            "ip rule del pref 0",
        ] {
            hosts[0].does(line).unwrap();
        }
        // Ranks without links to all others connect again for groups.
        for (body, most) in [("calls 1000 10", "32"), ("over_hosts 3000", "2"), ("groups 5", "2")] {
            all_right(start(job, hosts, |command| {
                command.env(BODY, body).env("RINGREDUCE_IFNAME", "eth0,eth1");
                command.env("RINGREDUCE_PORT_RANGE", "20000-20009");
                command.env("RINGREDUCE_ALL_PAIRS", most);
            }));
        }
    });
}

#[test]
fn addresses_that_lead_nowhere_are_named_in_the_error() {
    with_hosts("addresses_that_lead_nowhere_are_named_in_the_error", |job, hosts| {
        add_dead_ends(hosts);
        let ranks = start(job, hosts, |command| {
            command.env(BODY, "calls 10 10").env("RINGREDUCE_IFNAME", "dead0,same0");
            command.env("RINGREDUCE_TIMEOUT", "6");
        });
        let ended = all_end(ranks, PATIENCE);
        assert!(ended.iter().all(|it| it.code == 1), "{ended:#?}");
        let names = |it: &&Ended| it.err.contains("10.99.0.2:") && it.err.contains("dead0");
        assert!(ended[..2].iter().any(|it| names(&it)), "{ended:#?}");
    });
}

/// Each host's ranks measure their links, and all ranks get both kinds of speeds from rank 0.
#[test]
fn all_choose_the_same_across_hosts() {
    with_hosts("all_choose_the_same_across_hosts", |job, hosts| {
        let ranks = start(job, hosts, |command| {
            command.env(BODY, "explains").env("RINGREDUCE_CACHE", "off");
        });
        let ended = all_end(ranks, PATIENCE);
        let of = |rank: &Ended| rank.out.lines().filter(|line| !line.contains("rank ")).collect();
        let said: Vec<String> = ended.iter().map(of).collect();
        assert!(ended.iter().all(|rank| rank.code == 0), "{ended:#?}");
        assert!(said.iter().all(|text| *text == said[0]), "{ended:#?}");
        for part in ["hierarchical", "within hosts", "between hosts", "tcp", "shm"] {
            assert!(ended[0].out.contains(part), "{part}: {}", ended[0].out);
        }
    });
}

/// There are more ranks than have links between all pairs.
#[test]
fn rings_within_hosts_and_between_them_have_their_links() {
    with_hosts("rings_within_hosts_and_between_them_have_their_links", |job, hosts| {
        let ranks = start_on(job, hosts, &[9, 9], |command| {
            command.env(BODY, "calls 1000 3").env("RINGREDUCE_ALGO", "hierarchical");
            command.env("RINGREDUCE_CACHE", "off").env("RINGREDUCE_ALL_PAIRS", "2");
        });
        all_right(ranks);
    });
}

/// Three hosts with different numbers of ranks, with links between all pairs and without.
#[test]
fn hosts_may_have_any_number_of_ranks() {
    let hosts = match star(3) {
        Ok(hosts) => hosts,
        Err(why) => return skip("ranks::hosts::hosts_may_have_any_number_of_ranks", &why),
    };
    let job = Job::new();
    for (on, most) in [([3, 1, 2], "2"), ([1, 4, 2], "2"), ([1, 2, 4], "32")] {
        let ranks = start_on(&job, &hosts, &on, |command| {
            command.env(BODY, "over_hosts 3000").env("RINGREDUCE_ALL_PAIRS", most);
            command.env("RINGREDUCE_CACHE", "off");
        });
        all_right(ranks);
    }
    job.left_nothing();
}

#[test]
fn memory_alone_can_not_reach_another_host() {
    with_hosts("memory_alone_can_not_reach_another_host", |job, hosts| {
        let ranks = start(job, hosts, |command| {
            command.env(BODY, "calls 10 10").env("RINGREDUCE_TRANSPORT", "shm");
        });
        for ended in all_end(ranks, PROMPT) {
            assert_eq!(ended.code, 1, "{ended:?}");
            for part in ["rank 0 (host left", "rank 2 (host right", "use auto or tcp"] {
                assert!(ended.err.contains(part), "{part}: {ended:?}");
            }
        }
    });
}

/// The timeout of peers is shorter than that of calls, and holds for idle links too.
#[test]
fn an_unreachable_host_is_an_error_after_the_timeout_of_peers() {
    if !::harness::share::makes_test(3) {
        return;
    }
    let test = "an_unreachable_host_is_an_error_after_the_timeout_of_peers";
    // The last number is of idle ranks; the others wait for rank 3 and send nothing, in a
    // collective or for a message.
    let cases = [(5, "calls 100000 1000000000", 0), (4, "late 3", 1), (4, "mail", 2)];
    for (seconds, body, idle) in cases {
        with_hosts(test, |job, hosts| {
            let mut ranks = start(job, hosts, |command| {
                command.env(BODY, body);
                command.env("RINGREDUCE_PEER_TIMEOUT", seconds.to_string());
            });
            all_up(&mut ranks);
            let late = ranks.split_off(4 - idle);
            hosts[0].does("ip link set eth0 down").unwrap();
            let began = Instant::now();
            let reports: Vec<_> = all_end(ranks, LONG / 2).iter().map(Report::of).collect();
            let took = began.elapsed();
            eprintln!("{seconds} s, {body}: error after {took:.2?}");
            // The limit is half a second; the rest is for machines with few CPUs.
            assert!(took < Duration::from_secs(seconds + 6), "{took:.2?}");
            kill_all(late);
            let across = |report: &&Report| report.host != report.peer_host;
            let unreachable = |report: &&Report| report.what.contains("unreachable");
            assert!(reports.iter().filter(across).any(|it| unreachable(&it)), "{reports:#?}");
        });
    }
}
