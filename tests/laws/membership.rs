//! Membership among faults: the simulator's stories, a few of them written out, and the bytes of
//! messages. May touch: the public side of the room. Law: a seed that once failed is told again.

use std::collections::VecDeque;

use harness::share;
use ringreduce::recovery::membership::sim::{Tally, run};
use ringreduce::recovery::membership::{
    Cause, Evidence, Input, MESSAGE_BYTES, Member, Message, Outputs, Ranks, Settings, Testament,
    Verdict, decode, encode,
};
use ringreduce::sim::Random;

/// Seeds by which a mistake was found: in the protocol, or in the simulator itself.
const FAILED_ONCE: &[u64] = &[
    10, 145, 172, 341, 500, 696, 996, 1195, 2201, 3202, 3457, 7637, 12_936, 18_475, 22_699, 34_314,
    96_648, 130_630, 188_661, 262_017, 498_856, 750_795,
];

const SETTINGS: Settings = Settings { grace: 20, patience: 1000, settling: 1000, uniform: false };

fn tell(seeds: impl Iterator<Item = u64>) -> Tally {
    let mut tally = Tally::default();
    let told = seeds.map(|seed| run(seed).map(|story| tally.add(&story)));
    let broken: Vec<String> =
        told.filter_map(Result::err).take(5).map(|violation| violation.to_string()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    tally
}

#[test]
fn what_failed_once_holds_now() {
    tell(FAILED_ONCE.iter().copied());
}

#[test]
fn laws_hold_in_many_stories() {
    let stories = share::count(10_000, 100_000);
    let first = share::seed() * 100_000;
    let Tally {
        events,
        epochs,
        succeeded,
        failed,
        agreed,
        quorums_lost,
        evicted,
        timed_out,
        joined,
    } = tell(first..first + stories);
    println!("{events} events, {epochs} epochs, {succeeded} operations done and {failed} failed");
    // Each thing that can happen happens often, or the laws would hold of little.
    for count in [epochs, succeeded, failed, agreed] {
        assert!(count > stories / 2, "{count}");
    }
    for count in [quorums_lost, evicted, timed_out, joined] {
        assert!(count > stories / 20, "{count}");
    }
}

/// Members 0 to `size` of epoch 0.
fn members(size: u32) -> Vec<Member> {
    let all = Ranks::first(size).unwrap();
    (0..size).map(|rank| Member::new(rank, all, SETTINGS).unwrap()).collect()
}

/// Delivers all messages but those to or from `dead`, until there are no more; what they were told.
fn deliver(
    members: &mut [Member],
    dead: &[u32],
    first: Vec<(u32, Outputs)>,
) -> Vec<(u32, Verdict)> {
    let mut under_way = VecDeque::new();
    let (mut told, mut steps) = (Vec::new(), first);
    loop {
        for (from, outputs) in steps.drain(..) {
            told.extend(outputs.verdicts.into_iter().map(|verdict| (from, verdict)));
            under_way.extend(outputs.sends.into_iter().map(|(to, message)| (from, to, message)));
        }
        let Some((from, to, message)) = under_way.pop_front() else { return told };
        if dead.contains(&from) || dead.contains(&to) {
            continue;
        }
        let member = &mut members[to as usize];
        let outputs = member.step(0, Input::Message(from, &message));
        let replies = outputs.replies.iter().map(|&reply| (to, from, reply)).collect::<Vec<_>>();
        under_way.extend(replies);
        steps.push((to, outputs));
    }
}

fn change() -> Input<'static> {
    Input::Change { joiners: Ranks::NONE, deadline: None, evict_missing: false }
}

#[test]
fn survivors_of_a_death_name_it_and_go_on() {
    let mut all = members(3);
    let evidence = Input::Evidence(1, Evidence::Certain, Some(Testament::default()));
    let first = all[2].step(0, evidence);
    let told = deliver(&mut all, &[1], vec![(2, first)]);
    let cause = Cause { rank: 1, evidence: Evidence::Certain, sequence: 1 };
    assert_eq!(told, [(2, Verdict::Revoked(cause)), (0, Verdict::Revoked(cause))]);

    let calls = [0, 2].map(|rank| (rank, all[rank as usize].step(0, change()))).to_vec();
    let told = deliver(&mut all, &[1], calls);
    assert_eq!(told.len(), 2);
    for (rank, verdict) in told {
        let Verdict::Membership { epoch, members, cause: named, .. } = verdict else {
            panic!("{rank}: {verdict:?}");
        };
        assert_eq!((epoch, members), (1, [0, 2].into_iter().collect()));
        assert_eq!(named, Some(cause));
    }
}

#[test]
fn a_revocation_is_passed_on_once() {
    let mut all = members(4);
    let evidence = Input::Evidence(3, Evidence::Certain, Some(Testament::default()));
    let revoke = all[0].step(0, evidence).sends;
    assert_eq!(revoke.iter().map(|&(to, _)| to).collect::<Vec<_>>(), [1, 2]);
    let (_, message) = revoke[0];
    let passed_on = all[1].step(0, Input::Message(0, &message)).sends;
    assert_eq!(passed_on.iter().map(|&(to, _)| to).collect::<Vec<_>>(), [2]);
    assert_eq!(all[1].step(0, Input::Message(2, &message)), Outputs::default());
}

#[test]
fn of_two_halves_the_one_without_the_lowest_rank_gives_up() {
    for (half, others) in [([0, 1], [2, 3]), ([2, 3], [0, 1])] {
        let mut all = members(4);
        for rank in half {
            for other in others {
                let evidence = Input::Evidence(other, Evidence::Suspected, None);
                all[rank as usize].step(0, evidence);
            }
        }
        let calls = half.map(|rank| (rank, all[rank as usize].step(0, change()))).to_vec();
        let decided = deliver(&mut all, &others, calls);
        let gave_up = all[half[0] as usize].step(1000, Input::Tick).verdicts;
        if half.contains(&0) {
            assert_eq!((decided.len(), gave_up), (2, vec![]));
        } else {
            let live = half.into_iter().collect();
            assert_eq!((decided, gave_up), (vec![], vec![Verdict::QuorumLost { live }]));
        }
    }
}

#[test]
fn what_a_revocation_failed_stays_failed() {
    let mut one = members(2).swap_remove(0);
    one.step(0, Input::Begin(1));
    let told = one.step(0, Input::Revoke).verdicts;
    assert!(matches!(told[..], [Verdict::Revoked(_), Verdict::Failed(1)]), "{told:?}");
    assert_eq!(one.step(0, Input::Passed(1)), Outputs::default());
}

#[test]
fn the_surer_cause_is_the_better() {
    let cause = |rank, evidence, sequence| Cause { rank, evidence, sequence };
    let sure = cause(3, Evidence::Certain, 9);
    for other in [
        cause(0, Evidence::Strong, 1),
        cause(0, Evidence::Suspected, 1),
        cause(3, Evidence::Certain, 10),
        cause(4, Evidence::Certain, 9),
    ] {
        assert_eq!((sure.better(other), other.better(sure)), (sure, sure));
    }
}

/// A rank whose process died comes back as another one, which the death is not held against.
#[test]
fn a_dead_rank_comes_back() {
    let mut all = members(2);
    let joiners: Ranks = [2].into_iter().collect();
    for member in &mut all {
        member.step(0, Input::Evidence(2, Evidence::Certain, Some(Testament::default())));
    }
    all.push(Member::joining(2, SETTINGS).unwrap());
    let change = || Input::Change { joiners, deadline: None, evict_missing: false };
    let calls = [0, 1].map(|rank| (rank, all[rank as usize].step(0, change()))).to_vec();
    let told = deliver(&mut all, &[], calls);
    assert_eq!(told.len(), 3);
    for (_, verdict) in told {
        let Verdict::Membership { epoch, members, joined, .. } = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!((epoch, members, joined), (1, (0..3).collect(), joiners));
    }
}

/// Nobody suspects a rank that stopped in the middle, leader or not: the others find out.
#[test]
fn who_is_silent_is_left_behind() {
    for silent in [0, 2] {
        let mut all = members(3);
        let calls: Vec<_> =
            (0..3).map(|rank| (rank, all[rank as usize].step(0, change()))).collect();
        // All hear that all have called; from then on one is silent.
        let mut heard = Vec::new();
        for (from, outputs) in calls {
            for (to, message) in outputs.sends {
                heard.push((to, all[to as usize].step(0, Input::Message(from, &message))));
            }
        }
        let mut told = deliver(&mut all, &[silent], heard);
        for time in (0..5).map(|times| times * SETTINGS.patience) {
            let rest = (0..3).filter(|&rank| rank != silent);
            let rung =
                rest.map(|rank| (rank, all[rank as usize].step(time, Input::Tick))).collect();
            told.extend(deliver(&mut all, &[silent], rung));
        }
        let new: Ranks = (0..3).filter(|&rank| rank != silent).collect();
        let epochs = told.iter().filter_map(|&(_, verdict)| match verdict {
            Verdict::Membership { epoch, members, .. } => Some((epoch, members)),
            _ => None,
        });
        assert_eq!(epochs.collect::<Vec<_>>(), [(1, new), (1, new)], "{told:?}");
    }
}

#[test]
fn who_missed_an_epoch_is_told() {
    let mut all = members(3);
    for rank in [0, 1] {
        all[rank].step(0, Input::Evidence(2, Evidence::Suspected, None));
    }
    let calls = [0, 1].map(|rank| (rank, all[rank as usize].step(0, change()))).to_vec();
    deliver(&mut all, &[2], calls);
    // It was only paused, and knows nothing of it.
    let call = all[2].step(0, change());
    let told = deliver(&mut all, &[], vec![(2, call)]);
    assert_eq!(told, [(2, Verdict::Evicted { epoch: 1 })]);
    assert_eq!(all[2].step(1, Input::Revoke), Outputs::default());
}

#[test]
fn only_what_is_encoded_is_decoded() {
    let mut random = Random::new(1);
    let mut read = 0;
    for _ in 0..200_000 {
        // Mostly zeros, so that many are messages.
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = 1;
        bytes[1] = random.below(12) as u8;
        for _ in 0..random.below(6) {
            let end = if random.below(2) == 0 { 32 } else { MESSAGE_BYTES };
            bytes[random.below(end)] = random.below(256) as u8;
        }
        if let Some(message) = decode(&bytes) {
            assert_eq!(encode(&message), bytes);
            read += 1;
        }
    }
    assert!(read > 20_000, "{read}");
}

/// The most that a member keeps, as the characters of all its fields: 256 messages of later epochs,
/// of at most 4 KiB each.
const MOST_KEPT: usize = 256 * (4 << 10);

/// A message of `kind` whose fields make no sense.
fn nonsense(kind: u8, random: &mut Random) -> Option<Message> {
    let mut bytes = [0; MESSAGE_BYTES];
    (bytes[0], bytes[1], bytes[2]) = (1, kind, random.below(2) as u8);
    for _ in 0..random.below(12) {
        bytes[6 + random.below(60)] = [0, 1, 2, 7, 255][random.below(5)];
    }
    decode(&bytes)
}

/// Whatever a peer says, in whatever order: no step panics.
#[test]
fn nonsense_is_borne() {
    let mut random = Random::new(2);
    for _ in 0..2_000 {
        let mut all = members(3);
        all[0].step(0, Input::Begin(1));
        for time in 0..40 {
            let kind = random.below(11) as u8;
            let Some(message) = nonsense(kind, &mut random) else { continue };
            all[0].step(time, Input::Message(1 + random.below(2) as u32, &message));
            match random.below(6) {
                0 => _ = all[0].step(time, change()),
                1 => _ = all[0].step(time, Input::Agree { flags: 1, deadline: Some(time) }),
                2 => _ = all[0].step(10_000 * time, Input::Tick),
                _ => {}
            }
        }
    }
}

/// However many messages come, what a member keeps of them is bounded.
#[test]
fn what_is_kept_of_nonsense_stays_small() {
    let mut random = Random::new(3);
    for kind in 0..11 {
        let mut one = members(3).swap_remove(0);
        let mut heard = 0;
        for number in 0..20_000_u32 {
            let Some(message) = nonsense(kind, &mut random) else { continue };
            // Each of another epoch or agreement, most of which are far away.
            let [epoch, slot] = [[0, number], [number, 0], [number, number]][random.below(3)];
            one.step(0, Input::Message(1, &Message { epoch, slot, ..message }));
            heard += 1;
        }
        let kept = format!("{one:?}").len();
        println!("{kind}: {heard} messages, {kept} characters kept");
        assert!(kept <= MOST_KEPT, "of {heard} messages of kind {kind}: {kept} characters");
    }
}

/// What is done after a revocation comes too late to count: others may have agreed that it is not.
#[test]
fn what_a_revoked_member_has_is_not_counted() {
    let settings = Settings { uniform: true, ..SETTINGS };
    for (full_first, end) in [(false, Verdict::Failed(1)), (true, Verdict::Ok(1))] {
        let mut member = Member::new(0, Ranks::first(2).unwrap(), settings).unwrap();
        member.step(0, Input::Begin(1));
        if full_first {
            member.step(1, Input::Full(1));
        }
        member.step(2, Input::Revoke);
        member.step(3, Input::Full(1));
        let evidence = Input::Evidence(1, Evidence::Certain, Some(Testament::default()));
        let told = member.step(4, evidence).verdicts;
        assert!(told.contains(&end), "{told:?}");
    }
}
