//! Control channels between two ranks of one process.

use super::*;
use crate::error::cause::{CallMismatch, FailureReason};
use crate::error::{Peer, Stall};
use crate::health::control_message::{FRAME_BYTES, RECOVERY_BYTES};
use std::net::{Shutdown, TcpListener, TcpStream};

/// The system ends a connection whose other end reads nothing for this long, as on a busy machine.
const UNREACHABLE: Duration = Duration::from_secs(60);
const KEY: u64 = 0x1234_5678_9ABC_DEF0;

/// Ranks 0 and 1 of three, with a channel to each other.
pub(crate) fn pair() -> [ControlChannels; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let mut both = [0, 1].map(|me| ControlChannels::new((me, 3), KEY, UNREACHABLE));
    let key = |byte| [byte; 32];
    let keys = [AeadKeys::new(&key(1), &key(2)), AeadKeys::new(&key(2), &key(1))];
    let [ones, others] = keys;
    both[0].add((1, 1), (one.into(), ones)).unwrap();
    both[1].add((0, 0), (other.into(), others)).unwrap();
    both
}

fn subgroup(parent: &Channels, me: usize, members: &[usize], key: u64) -> ControlChannels {
    let peer = |rank| Peer { rank, host: "there".into(), pid: 100 + rank as u32 };
    let names = ParentNames { peers: (0..3).map(peer).collect(), name: Arc::default() };
    ControlChannels::subgroup((parent, Some(&names)), (me, members), Some(7), key)
}

fn latest_call(controls: &ControlChannels, rank: usize) -> u64 {
    let connections = controls.channels.lock();
    controls.channels.channel(&connections, rank).map_or(0, |channel| channel.inbox.heartbeat.call)
}

/// Does what the kernel does to the sockets of a dead process.
fn cut(controls: &ControlChannels, rank: usize) {
    let connections = controls.channels.lock();
    let channel = controls.channels.channel(&connections, rank).unwrap();
    channel.connection.stream.shutdown(Shutdown::Both).unwrap();
}

fn lost(rank: usize) -> String {
    format!("{:?}", Fault::GaveUp(Box::new(FailureCause::lost(rank))))
}

/// The lost peer, once the channel has it.
fn wait_for_loss(controls: &ControlChannels) -> (usize, String) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some((rank, fault)) = controls.lost_peer(|_| false) {
            return (rank, format!("{fault:?}"));
        }
        assert!(Instant::now() < until, "no loss is reported");
        std::thread::yield_now();
    }
}

#[test]
fn the_first_cause_arrives_though_its_sender_leaves() {
    let [mut one, other] = pair();
    one.announce_failure(FailureCause::lost(2), true, None);
    one.announce_failure(FailureCause::lost(1), true, None);
    drop(one);
    assert_eq!(wait_for_loss(&other), (0, lost(2)));
}

/// A stopped process reads nothing, perhaps for days: heartbeats to it end, and messages do not.
#[test]
fn no_message_is_lost_on_a_peer_that_does_not_read() {
    let [mut one, other] = pair();
    for call in 1..=50_000 {
        one.send_heartbeats((call, 0), None, None);
    }
    let unsent = one.channels.lock().connection_mut(1).unwrap().unsent.len();
    assert!(unsent < 2000 * FRAME_BYTES, "{unsent} bytes");
    one.announce_failure(FailureCause::lost(2), true, None);
    // Unsent bytes go out whenever the sender looks at its channels.
    let until = Instant::now() + Duration::from_secs(20);
    while other.failures().is_empty() {
        assert!(one.lost_peer(|_| false).is_none() && Instant::now() < until);
        other.receive();
    }
    assert!((1..50_000).contains(&latest_call(&other, 0)));
    assert_eq!(wait_for_loss(&other), (0, lost(2)));
}

#[test]
fn an_end_without_goodbye_is_a_death_and_one_with_it_is_not() {
    let [one, other] = pair();
    // The kernel does this to the sockets of a dead process.
    cut(&one, 1);
    assert!(wait_for_loss(&other).1.contains("process"), "{other:?}");
    let [one, other] = pair();
    drop(one);
    while !other.end_of(0).0 {
        assert!(other.lost_peer(|_| false).is_none());
    }
    std::thread::sleep(LAST_MESSAGE_DELAY * 2);
    assert!(other.lost_peer(|_| false).is_none());
}

#[test]
fn a_reported_mismatch_counts_only_from_ranks_of_the_communicator() {
    for (culprit, is_known) in [(0, true), (2, true), (1, false), (3, false), (1 << 20, false)] {
        let [mut one, other] = pair();
        let difference =
            CallMismatch { with: 1, field: MismatchField::Captured, ours: 1, theirs: 0 };
        one.announce_failure(
            FailureCause { culprit, reason: FailureReason::Differs(difference) },
            true,
            None,
        );
        drop(one);
        while !other.end_of(0).0 {
            other.receive();
        }
        let found = other.mismatched_peer(Some(3), |_| None).map(|(rank, _)| rank);
        assert_eq!(found, is_known.then_some(culprit));
    }
}

#[test]
fn every_byte_of_a_frame_counts() {
    let bytes = (3, Box::new(std::array::from_fn(|at| at as u8)));
    let difference =
        CallMismatch { with: 3, field: MismatchField::Fingerprint, ours: 5, theirs: 6 };
    let mismatched = FailureCause { culprit: 2, reason: FailureReason::Differs(difference) };
    let failed = |cause, first_hand| ControlMessage::Failed {
        failure: Failure { cause, first_hand },
        call: 9,
    };
    let heartbeat = Heartbeat { call: 9, fingerprint: 8, waits_for: 6, stalled: 3 };
    for message in [
        failed(FailureCause::lost(7), true),
        failed(FailureCause::aborted(0), true),
        failed(
            FailureCause::stalled(4, Stall::Paused { entered: 8 }, Duration::from_secs(1)),
            true,
        ),
        failed(
            FailureCause::stalled(4, Stall::Silent { waited: 8 }, Duration::from_secs(1)),
            false,
        ),
        failed(
            FailureCause::stalled(4, Stall::NeverEntered { entered: 8 }, Duration::from_secs(1)),
            false,
        ),
        failed(mismatched, false),
        ControlMessage::Goodbye { cause: None, sent_recovery: false },
        ControlMessage::Goodbye { cause: Some(mismatched), sent_recovery: true },
        ControlMessage::Heartbeat(heartbeat),
        ControlMessage::Recovery(bytes),
        ControlMessage::Descriptor,
    ] {
        let frame = message.encode(KEY);
        assert_eq!(ControlMessage::decode(&frame), Ok((KEY, message.clone())));
        for at in 0..FRAME_BYTES {
            let mut other = frame;
            other[at] ^= 0x40;
            assert_ne!(ControlMessage::decode(&other), Ok((KEY, message.clone())), "byte {at}");
        }
    }
}

#[test]
fn a_process_seen_to_end_is_lost_though_its_channel_is_open_unless_it_said_goodbye() {
    let [one, other] = pair();
    let until = Instant::now() + Duration::from_secs(10);
    assert!(other.lost_peer(|rank| rank == 0).is_none(), "its last message may still arrive");
    while other.lost_peer(|_| false).is_none() {
        assert!(Instant::now() < until, "the loss is not reported");
    }
    drop(one);
    let [one, other] = pair();
    drop(one);
    assert!(other.lost_peer(|rank| rank == 0).is_none());
    std::thread::sleep(LAST_MESSAGE_DELAY * 2);
    assert!(other.lost_peer(|_| false).is_none(), "it said goodbye");
}

#[test]
fn a_rank_that_others_see_stalled_is_known_without_a_channel_to_it() {
    let [one, mut other] = pair();
    let until = Instant::now() + Duration::from_secs(10);
    // A report of the asking rank itself, and of a rank that does not exist, say nothing.
    for (stalled, known) in [(Some(0), None), (Some(9), None), (Some(2), Some(2)), (None, None)] {
        other.send_heartbeats((4 + stalled.unwrap_or(3) as u64, 0), None, stalled);
        while latest_call(&one, 1) != 4 + stalled.unwrap_or(3) as u64 {
            one.receive();
            assert!(Instant::now() < until, "no heartbeat comes");
        }
        assert_eq!(one.reported_stalled_peer(Duration::from_secs(60)), known, "{stalled:?}");
    }
}

/// The subgroups of both ranks over the connections of a pair.
fn subgroups(both: &[ControlChannels; 2], key: u64) -> [ControlChannels; 2] {
    [0, 1].map(|me| subgroup(&both[me].channels, me, &[0, 1], key))
}

/// Receives until `has` is true.
fn receives(controls: &ControlChannels, has: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !has() {
        controls.receive();
        assert!(Instant::now() < until, "nothing comes");
    }
}

#[test]
fn communicators_over_one_connection_have_their_own_messages() {
    let both = pair();
    let [one, mut other] = subgroups(&both, KEY + 1);
    other.send_heartbeats((7, 0), None, None);
    other.announce_failure(FailureCause::lost(1), true, None);
    // The parent's rank takes the messages from the socket.
    receives(&both[0], || !one.failures().is_empty());
    assert_eq!((latest_call(&one, 1), latest_call(&both[0], 1)), (7, 0));
    assert!(both[0].failures().is_empty() && other.failures().is_empty());
}

#[test]
fn a_goodbye_ends_one_communicator_and_a_death_all() {
    let [first, second] = pair();
    let [one, other] = [
        subgroup(&first.channels, 0, &[0, 1], KEY + 1),
        subgroup(&second.channels, 1, &[0, 1], KEY + 1),
    ];
    drop(second);
    receives(&first, || first.end_of(1).1.is_some());
    std::thread::sleep(LAST_MESSAGE_DELAY * 2);
    assert!(first.lost_peer(|_| false).is_none() && one.lost_peer(|_| false).is_none());
    assert_eq!((one.end_of(1), first.end_of(1)), ((false, None), (false, Some(false))));
    cut(&other, 0);
    assert_eq!(wait_for_loss(&one).0, 1);
    assert!(first.lost_peer(|_| false).is_none(), "it had said goodbye before");
}

#[test]
fn messages_that_come_before_a_communicator_wait_for_it() {
    let [first, second] = pair();
    let mut early = subgroup(&second.channels, 1, &[0, 1], KEY + 1);
    early.send_recovery(0, (3, Box::new([5; RECOVERY_BYTES])));
    subgroup(&second.channels, 1, &[0, 1], KEY + 2).send_heartbeats((9, 0), None, None);
    receives(&first, || has_all(&first));
    assert!(first.receive_recovery().is_empty(), "the message of another communicator");
    let late = subgroup(&first.channels, 0, &[0, 1], KEY + 1);
    let messages = late.receive_recovery();
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].1.0, 3);
    // A communicator that was made and dropped there has said goodbye already.
    assert_eq!(subgroup(&first.channels, 0, &[0, 1], KEY + 2).end_of(1), (false, Some(false)));
}

/// True if a goodbye has come for a communicator that this process has not made.
fn has_all(controls: &ControlChannels) -> bool {
    let mut connections = controls.channels.lock();
    connections.connection_mut(1).unwrap().has_goodbye(KEY + 2)
}

#[test]
fn a_peer_that_makes_up_communicators_is_cut_off() {
    let [first, second] = pair();
    for key in 2.. {
        let mut group = subgroup(&second.channels, 1, &[0, 1], KEY + key);
        group.send_heartbeats((1, 0), None, None);
        second.receive();
        first.receive();
        if first.end_of(1).0 {
            assert!(key > 1000, "{key}");
            break;
        }
        assert!(key < 10_000);
    }
    assert!(wait_for_loss(&first).1.contains("too many communicators"));
}

#[test]
fn nothing_is_left_of_communicators_that_both_have_dropped() {
    let both = pair();
    for key in 1..100 {
        let [one, other] = subgroups(&both, KEY + key);
        drop(one);
        receives(&both[1], || other.end_of(0).1.is_some());
        drop(other);
    }
    let inboxes = |at: usize| both[at].channels.lock().inboxes(1 - at);
    receives(&both[0], || inboxes(0) == 1);
    assert_eq!(inboxes(1), 1);
}

#[test]
fn descriptors_arrive_with_their_messages_in_order() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let (here, there) = UnixStream::pair().unwrap();
    let mut both = [0, 1].map(|me| ControlChannels::new((me, 2), KEY, UNREACHABLE));
    both[0].add((1, 1), (here.into(), None)).unwrap();
    both[1].add((0, 0), (there.into(), None)).unwrap();
    let group = subgroups(&both, KEY + 1);
    // More than the socket takes at once, so that some wait to be sent.
    let mut kept = Vec::new();
    for number in 0..50_u8 {
        (0..20).for_each(|call| both[0].send_heartbeats((call, 0), None, None));
        let (mut mine, theirs) = UnixStream::pair().unwrap();
        mine.write_all(&[number]).unwrap();
        kept.push(mine);
        let to = if number % 2 == 0 { &both[0] } else { &group[0] };
        assert!(to.send_descriptor(1, theirs.into()));
    }
    assert!(!both[0].send_descriptor(0, UnixStream::pair().unwrap().0.into()), "no channel");
    for number in 0..50_u8 {
        let at = if number % 2 == 0 { &both[1] } else { &group[1] };
        let until = Instant::now() + Duration::from_secs(10);
        let fd = loop {
            both[0].receive();
            if let Some(fd) = at.receive_descriptor(0) {
                break fd.unwrap();
            }
            assert!(Instant::now() < until, "descriptor {number} does not come");
        };
        let mut byte = [0];
        UnixStream::from(fd).read_exact(&mut byte).unwrap();
        assert_eq!(byte, [number]);
    }
}

#[test]
fn a_rank_that_waits_in_a_subgroup_says_so_in_its_parents_too() {
    let [one, other] = pair();
    let members = [1, 0];
    let group = subgroup(one.channels(), 1, &members, KEY + 1);
    let mut inner = subgroup(group.channels(), 0, &[1, 0], KEY + 2);
    inner.send_heartbeats((7, 3), None, Some(1));
    let limit = Duration::from_secs(60);
    let until = Instant::now() + limit;
    while !other.waits_elsewhere(0, limit) {
        assert!(Instant::now() < until, "no heartbeat came");
        std::thread::yield_now();
    }
    // Rank 1 of the inner group is rank 0 of the group, and rank 1 of the communicator that met.
    let connections = other.channels.lock();
    let heartbeat = other.channels.channel(&connections, 0).unwrap().inbox.heartbeat;
    assert_eq!((heartbeat.waits_for, heartbeat.fingerprint), (2, 0));
}

#[test]
fn a_subgroup_reports_the_failure_of_the_parents_call_that_made_it() {
    // Each case: what rank 1 says of its failure in the parent, whose call 7 made the subgroup.
    let stalled = FailureCause::stalled(2, Stall::Silent { waited: 3 }, Duration::from_secs(4));
    let cases = [
        (FailureCause::lost_as_seen_by(1, 2), Some(7), Some("lost rank 2 (host there, pid 102)")),
        (stalled, Some(7), Some("nothing from rank 2 (host there, pid 102) for 4.0s")),
        // Another call, a failure of its own, one of this rank, a rank that is not there.
        (FailureCause::lost_as_seen_by(1, 2), Some(8), None),
        (FailureCause::lost_as_seen_by(1, 2), None, None),
        (FailureCause::lost(1), Some(7), None),
        (FailureCause::lost_as_seen_by(1, 0), Some(7), None),
        (FailureCause::lost_as_seen_by(1, 9), Some(7), None),
        (FailureCause::aborted(2), Some(7), None),
    ];
    for (cause, call, expected) in cases {
        let [one, mut other] = pair();
        let group = subgroup(one.channels(), 0, &[0, 1], KEY + 1);
        assert!(group.channels().failure_in_parent(1).is_none());
        other.announce_failure(cause, true, call);
        receives(&one, || !one.failures().is_empty());
        let said = group.channels().failure_in_parent(1).map(|error| error.to_string());
        let expected =
            expected.map(|it| format!("rank 0 (host there) in all_gather #7, step 0: {it}"));
        let is_right = match (&said, &expected) {
            (Some(said), Some(expected)) => said.starts_with(expected),
            (said, expected) => said == expected,
        };
        assert!(is_right, "{said:?}");
    }
}

#[test]
fn a_subgroup_names_the_rank_for_which_a_member_waits_in_the_parents_call() {
    let long = Duration::from_secs(60);
    for (call, stalled, names) in
        [(7, Some(2), true), (7, None, false), (8, Some(2), false), (7, Some(1), false)]
    {
        let [one, mut other] = pair();
        let group = subgroup(one.channels(), 0, &[0, 1], KEY + 1);
        let alone = subgroup(one.channels(), 0, &[0], KEY + 2);
        assert!(group.channels().wait_in_parent(1, long).is_none());
        other.send_heartbeats((call, 5), None, stalled);
        receives(&one, || one.call_of(1) == Some(call));
        let said = group.channels().wait_in_parent(1, long).map(|error| error.to_string());
        assert_eq!(said.is_some(), names, "{said:?}");
        assert!(said.is_none_or(|said| said.contains("nothing from rank 2 (host there, pid 102)")));
        assert!(alone.channels().wait_in_parent(0, long).is_none());
    }
}
