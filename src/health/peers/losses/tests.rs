//! Ranks of one process in the place of ranks on hosts: status entries within a host, and control
//! channels between hosts.

use super::*;
use crate::health::CAUSE_WAIT;
use crate::health::control_channel::ControlChannels;
use crate::health::local_detector::LocalDetector;
use socket2::{Domain, Socket, Type};
use std::time::Duration;

/// The ranks of a communicator with the key `key`, in call 1; `hosts` is the host of each.
fn world(hosts: &[usize], key: u64) -> Vec<Peers> {
    let (size, ranks) = (hosts.len(), 0..hosts.len());
    let memory = LocalDetector::private_memory(size).unwrap();
    let one = |me: usize| {
        let near = ranks.clone().filter(|&peer| hosts[peer] == hosts[me]);
        let local_detector = LocalDetector::of_threads((me, size), near, &memory).unwrap();
        local_detector.enter(1, 7);
        let control_channels = ControlChannels::new((me, size), key, Duration::from_secs(60));
        Peers { local_detector, control_channels, ..Peers::default() }
    };
    let mut all: Vec<_> = ranks.clone().map(one).collect();
    for (a, b) in ranks.clone().flat_map(|a| (0..a).map(move |b| (a, b))) {
        if hosts[a] != hosts[b] {
            let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
            all[a].control_channels.add((b, b), (one, None)).unwrap();
            all[b].control_channels.add((a, a), (other, None)).unwrap();
        }
    }
    all
}

/// The rank that rank `me` names for this cause.
fn named(me: usize, (by, fault): (usize, Fault)) -> usize {
    match fault {
        Fault::GaveUp(cause) if cause.culprit != me => cause.culprit,
        _ => by,
    }
}

/// Fails a rank by what it knows, as a call does; the rank that it names.
fn fail(me: usize, peers: &mut Peers) -> Option<usize> {
    let found = peers.cause(None).or_else(|| peers.cause_of_end(&[1], Duration::ZERO))?;
    let named = named(me, found);
    let cause = peers.with_finder(FailureCause::lost_as_seen_by(me, named));
    peers.report_failure(cause, false);
    Some(named)
}

fn orders(ranks: &[usize]) -> Vec<Vec<usize>> {
    let Some((first, rest)) = ranks.split_first() else { return vec![vec![]] };
    let insert = |order: Vec<usize>| {
        (0..=order.len()).map(move |at| [&order[..at], &[*first], &order[at..]].concat())
    };
    orders(rest).into_iter().flat_map(insert).collect()
}

/// How rank 1 tells others that it has lost rank 3.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// Its host hears of it with the others.
    ToAll,
    /// Its host has not heard of it, since it has not left the communicator yet.
    ToOtherHosts,
    /// As before; by the goodbye of a rank that leaves.
    ByGoodbye,
}

/// Ranks 0 and 1 are on one host, 2 and 3 on another, and 4 on a third one. The ranks notice in
/// this order that rank 1 has lost rank 3.
fn ends_are_named(order: &[usize], told: Told, key: u64) {
    let hosts = [0, 0, 1, 1, 2];
    let mut world = world(&hosts, key);
    let cause = FailureCause::lost_as_seen_by(1, 3);
    match told {
        Told::ToAll => world[1].report_failure(cause, true),
        Told::ToOtherHosts => world[1].control_channels.announce_failure(cause, true, None),
        Told::ByGoodbye => {
            let mut left = std::mem::take(&mut world[1].control_channels);
            left.set_goodbye_cause(cause);
        }
    }
    let mut waiting = order.to_vec();
    // A rank that has not been told anything yet waits for the next round.
    for _ in order {
        waiting.retain(|&me| {
            let Some(named) = fail(me, &mut world[me]) else { return true };
            let wanted: &[usize] = [&[3][..], &[1], &[1, 3]][hosts[me]];
            assert!(wanted.contains(&named), "{order:?}, {told:?}: rank {me} names {named}");
            false
        });
    }
    assert_eq!(waiting, [0; 0], "{order:?}, {told:?}: not told");
    if let Told::ToOtherHosts = told {
        world[1].control_channels.receive();
        let accuser = world[1].accuser().map(|(_, rank)| rank);
        assert_eq!(accuser, Some(3), "{order:?}: rank 1 is lost");
    }
}

#[test]
fn both_hosts_name_an_end_of_a_broken_connection_in_every_order_of_reports() {
    for (order, key) in orders(&[0, 2, 3, 4]).iter().zip(0x3579_0000..) {
        ends_are_named(order, Told::ToOtherHosts, key);
    }
    for (told, key) in [Told::ToAll, Told::ByGoodbye].into_iter().zip(0x3579_1000..) {
        ends_are_named(&[2, 4, 0, 3], told, key);
    }
}

/// Ranks 0 and 1 are on this host, and rank 2 on one that is cut off from rank 1.
#[test]
fn a_far_rank_that_gives_up_on_a_living_rank_of_this_host_is_the_cause() {
    let mut world = world(&[0, 0, 1], 0x1357_2468);
    world[2].control_channels.announce_failure(FailureCause::lost(1), true, None);
    for found in [world[0].cause(None), world[0].cause_of_end(&[1], Duration::ZERO)] {
        assert!(matches!(found, Some((2, Fault::Lost(_)))), "{found:?}");
    }
    // A third rank tells what rank 2 has seen.
    let cause = FailureCause::lost_as_seen_by(2, 1);
    let found = world[0].unless_alive((0, Fault::GaveUp(Box::new(cause))));
    assert!(matches!(found, (2, Fault::Lost(_))), "{found:?}");
    // A rank that has failed by itself is the cause.
    world[1].local_detector.fail(&FailureCause::lost(1), true);
    let found = world[0].cause(None);
    assert!(matches!(&found, Some((1, Fault::GaveUp(it))) if it.culprit == 1), "{found:?}");
}

/// Rank 1 tells what rank 2 has seen.
#[test]
fn a_rank_that_was_given_up_names_the_rank_that_did_so_first() {
    let world = world(&[0, 0, 1], 0x5713_4682);
    world[1].local_detector.fail(&FailureCause::lost_as_seen_by(2, 0), false);
    assert_eq!(world[0].accuser(), Some((true, 2)));
    assert_eq!(world[0].finder_of_loss(0), Some(2));
}

/// Rank 1 has closed its link to rank 0, and what it says arrives later than the cause of a failure
/// usually takes.
#[test]
fn the_cause_of_a_broken_link_may_come_late() {
    let mut world = world(&[0, 1, 2], 0x2468_1357);
    let mut other = world.remove(1);
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(3 * CAUSE_WAIT);
            other.report_failure(FailureCause::lost(2), true);
        });
        world[0].cause_of_broken_link(1, Duration::MAX, || false)
    });
    let Some((1, Fault::GaveUp(found))) = found else { panic!("{found:?}") };
    assert_eq!(found.culprit, 2);
}

/// A rank that has left its communicator without a cause says nothing more.
#[test]
fn nothing_is_awaited_of_a_rank_that_has_left() {
    let mut world = world(&[0, 1], 0x2468_1358);
    drop(world.remove(1));
    assert!(world[0].cause_of_broken_link(1, Duration::MAX, || false).is_none());
}
