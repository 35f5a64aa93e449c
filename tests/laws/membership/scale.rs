//! Thousands of members on many hosts: what survivors decide after the loss of whole hosts, and how
//! many messages that takes.

use std::collections::VecDeque;

use ringreduce::recovery::membership::{
    Evidence, Input, LastVotes, Member, Message, Outputs, Ranks, Settings, Verdict,
};
use ringreduce::sim::Random;

/// The most messages of each member: four facts to its neighbours (the revocation and three
/// decisions), and the end of a leader; gaps in the ranks make half as many neighbours again. Then
/// what it says to its leaders, or they to it.
fn most_messages(ranks: u32, leader_ends: bool) -> usize {
    let (facts, leaders) = if leader_ends { (5, 2) } else { (4, 1) };
    (facts * 3 * (ranks.ilog2() + 1) / 2 + 20 * leaders) as usize
}

const SETTINGS: Settings =
    Settings { grace: 20, answer_timeout: 1_000, settling: 1_000, uniform: true };

struct World {
    all: Vec<Member>,
    /// Messages arrive in the order in which they were sent.
    under_way: VecDeque<(u32, u32, Message)>,
    dead: Ranks,
    verdicts: Vec<(u32, Verdict)>,
    messages: usize,
}

impl World {
    fn new(ranks: u32) -> Self {
        let members = Ranks::first(ranks).unwrap();
        let member = |rank| Member::new(rank, members.clone(), SETTINGS).unwrap();
        let all = (0..ranks).map(member).collect();
        let (under_way, dead, verdicts) = (VecDeque::new(), Ranks::NONE, Vec::new());
        Self { all, under_way, dead, verdicts, messages: 0 }
    }

    fn step(&mut self, rank: u32, time: u64, input: Input<'_>) {
        let Outputs { sends, verdicts, replies, .. } = self.all[rank as usize].step(time, input);
        assert!(replies.is_empty(), "all messages are for the current epoch");
        self.messages += sends.len();
        self.under_way.extend(sends.into_iter().map(|(to, message)| (rank, to, message)));
        self.verdicts.extend(verdicts.into_iter().map(|verdict| (rank, verdict)));
    }

    /// Delivers the messages that are under way, and those that follow from them; of the dead,
    /// those that left before.
    fn deliver(&mut self, time: u64) {
        while let Some((from, to, message)) = self.under_way.pop_front() {
            if !self.dead.contains(to) {
                self.step(to, time, Input::Message(from, &message));
            }
        }
    }

    fn live(&self) -> Ranks {
        &Ranks::first(self.all.len() as u32).unwrap() - &self.dead
    }

    /// The program of each survivor makes a call, in any order. The leader ends before the call
    /// number `leader_ends`, if that is given; some survivor learns of it.
    fn call(
        &mut self,
        time: u64,
        random: &mut Random,
        leader_ends: Option<usize>,
        input: impl Fn(u32) -> Input<'static>,
    ) {
        let mut callers: Vec<u32> = self.live().iter().collect();
        random.shuffle(&mut callers);
        for (number, &rank) in callers.iter().enumerate() {
            if leader_ends == Some(number) {
                let leader: Ranks = self.live().lowest().into_iter().collect();
                let knower = callers.iter().copied().find(|&rank| !leader.contains(rank));
                self.lose(&leader, Evidence::Certain, |rank| Some(rank) == knower);
            }
            if self.dead.contains(rank) {
                continue;
            }
            self.step(rank, time, input(rank));
            // Some messages arrive before the others call.
            for _ in 0..random.below(8) {
                let Some((from, to, message)) = self.under_way.pop_front() else { break };
                if !self.dead.contains(to) {
                    self.step(to, time, Input::Message(from, &message));
                }
            }
        }
        self.deliver(time);
    }

    /// Each survivor learns of these ends, or only those do whose number `knows` accepts.
    fn lose(&mut self, lost: &Ranks, evidence: Evidence, knows: impl Fn(u32) -> bool) {
        self.dead.extend(lost.iter());
        let votes = (evidence == Evidence::Certain).then(LastVotes::default);
        let ends: Vec<_> = lost.iter().map(|rank| (rank, evidence, votes.clone())).collect();
        for rank in self.live().iter().filter(|&rank| knows(rank)) {
            self.step(rank, 0, Input::Evidence(&ends));
        }
    }
}

/// The survivors of lost hosts agree on the members that are left, and on their links: all of them,
/// each in one decision, with messages in proportion to their number and its logarithm.
fn hosts_are_lost((ranks, per_host): (u32, u32), evidence: Evidence, leader_ends: bool, seed: u64) {
    let mut random = Random::new(seed);
    let mut world = World::new(ranks);
    let hosts = ranks / per_host;
    // The host of the leader is among them every other time.
    let first = if seed.is_multiple_of(2) { 0 } else { random.below(hosts as usize) as u32 };
    let second = random.below(hosts as usize) as u32;
    let of = |host: u32| host * per_host..(host + 1) * per_host;
    let lost: Ranks = of(first).chain(of(second)).collect();
    // Silence is noticed by each rank itself. The news of certain ends comes to some ranks.
    let knower = (0..ranks).rev().find(|&rank| !lost.contains(rank)).unwrap();
    world.lose(&lost, evidence, |rank| evidence == Evidence::Strong || rank == knower);
    world.deliver(1);
    if evidence == Evidence::Strong {
        for rank in world.live().iter() {
            world.step(rank, SETTINGS.grace, Input::Tick);
        }
        world.deliver(SETTINGS.grace);
    }
    let survivors = world.live();
    let ends = leader_ends.then(|| random.below(survivors.len() as usize));
    world.call(SETTINGS.grace + 1, &mut random, ends, |_| Input::Change {
        deadline: Some(100_000),
        evict_missing: false,
    });
    world.call(SETTINGS.grace + 2, &mut random, None, |_| Input::Close {
        epoch: 1,
        is_linked: true,
        deadline: Some(100_000),
        evict_missing: false,
    });
    let survivors = world.live();
    let decided = |wanted: fn(&Verdict) -> bool| {
        world.verdicts.iter().filter(|(_, it)| wanted(it)).map(|(rank, _)| *rank).collect()
    };
    let changed: Ranks = decided(|it| matches!(it, Verdict::Membership { epoch: 1, .. }));
    let closed: Ranks = decided(|it| matches!(it, Verdict::Closed { epoch: 1 }));
    assert!(changed == survivors && closed == survivors, "{ranks}, {evidence:?}, seed {seed}");
    for (rank, verdict) in &world.verdicts {
        match verdict {
            Verdict::Membership { members, .. } => assert_eq!(*members, survivors, "rank {rank}"),
            Verdict::Revoked(cause) => {
                assert!(world.dead.contains(cause.rank), "rank {rank}: {cause:?}");
            }
            Verdict::Closed { .. } => {}
            other => panic!("rank {rank}: {other:?}"),
        }
    }
    let each = world.messages / ranks as usize;
    println!("{ranks} ranks, {evidence:?}, seed {seed}: {each} messages of each");
    assert!(
        each <= most_messages(ranks, leader_ends),
        "{ranks}, {evidence:?}, seed {seed}: {each}"
    );
}

/// The survivors of a lost host agree on flags: all on the same ones.
fn flags_are_agreed((ranks, per_host): (u32, u32), evidence: Evidence, seed: u64) {
    let mut random = Random::new(seed);
    let mut world = World::new(ranks);
    let host = random.below((ranks / per_host) as usize) as u32;
    world.lose(&(host * per_host..(host + 1) * per_host).collect(), evidence, |_| true);
    world.deliver(1);
    for rank in world.live().iter() {
        world.step(rank, SETTINGS.grace, Input::Tick);
    }
    let survivors = world.live();
    // The flags of one rank count.
    let one = survivors.iter().nth(random.below(survivors.len() as usize));
    let flags = |rank: u32| if Some(rank) == one { u64::MAX << 1 } else { u64::MAX };
    world.call(SETTINGS.grace + 1, &mut random, None, |rank| Input::Agree {
        flags: flags(rank),
        deadline: Some(100_000),
    });
    let all = u64::MAX << 1;
    let agreed = |it: &Verdict| matches!(it, Verdict::Agreed { flags, .. } if *flags == all);
    let ones = world.verdicts.iter().filter(|(_, it)| agreed(it)).map(|(rank, _)| *rank);
    assert!(ones.collect::<Ranks>() == survivors, "{ranks}, {evidence:?}, seed {seed}");
    let each = world.messages / ranks as usize;
    println!("{ranks} ranks, {evidence:?}, seed {seed}: {each} messages of each to agree");
    assert!(each <= most_messages(ranks, false), "{ranks}, {evidence:?}, seed {seed}: {each}");
}

/// A host's ranks make no call and are evicted at the deadline. Each rank that evicts asks all.
fn a_host_is_evicted((ranks, per_host): (u32, u32), seed: u64) {
    const DEADLINE: u64 = 100;
    let mut random = Random::new(seed);
    let mut world = World::new(ranks);
    let host = random.below((ranks / per_host) as usize) as u32;
    world.dead = (host * per_host..(host + 1) * per_host).collect();
    let survivors = world.live();
    world.call(0, &mut random, None, |_| Input::Change {
        deadline: Some(DEADLINE),
        evict_missing: true,
    });
    for rank in survivors.iter() {
        world.step(rank, DEADLINE, Input::Tick);
    }
    world.deliver(DEADLINE);
    let goes_on =
        |it: &Verdict| matches!(it, Verdict::Membership { members, .. } if *members == survivors);
    let ones = world.verdicts.iter().filter(|(_, it)| goes_on(it)).map(|(rank, _)| *rank);
    assert!(ones.collect::<Ranks>() == survivors, "{ranks}, seed {seed}");
    let each = world.messages / ranks as usize;
    println!("{ranks} ranks, seed {seed}: {each} messages of each to evict");
    assert!(each <= 2 * ranks as usize + most_messages(ranks, true), "{ranks}, {seed}: {each}");
}

#[test]
fn survivors_of_lost_hosts_agree_with_few_messages() {
    for seed in 0..20 {
        for evidence in [Evidence::Strong, Evidence::Certain] {
            for leader_ends in [false, true] {
                hosts_are_lost((64, 8), evidence, leader_ends, seed);
                hosts_are_lost((300, 10), evidence, leader_ends, seed);
            }
            flags_are_agreed((64, 8), evidence, seed);
            flags_are_agreed((300, 10), evidence, seed);
        }
        a_host_is_evicted((64, 8), seed);
        a_host_is_evicted((300, 10), seed);
    }
}

#[test]
fn survivors_among_thousands_of_ranks_agree_with_few_messages() {
    hosts_are_lost((8_192, 64), Evidence::Strong, false, 0);
    hosts_are_lost((8_192, 1_024), Evidence::Certain, false, 1);
    hosts_are_lost((8_192, 64), Evidence::Certain, true, 2);
    flags_are_agreed((8_192, 64), Evidence::Certain, 3);
    flags_are_agreed((8_192, 1_024), Evidence::Strong, 4);
}
