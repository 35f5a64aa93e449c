//! The losses that the membership's state machine learns of: what this rank sees of the end of
//! others, and what it tells the leader, which may have no link to them.
//! Law: evidence of the state machine is what its own rank has seen; ends that other members know
//! for certain come by the machine's own messages. A report that a host is unreachable is no
//! evidence: it shortens the wait for a rank on a channel that has never connected.

use super::membership_driver::{MembershipDriver, decode_last_vote};
use super::recovery_frames::{self, UNREACHABLE};
use crate::health::Peers;
use crate::recovery::membership::{Evidence, Input, LastVotes, Ranks};

/// Notes the ranks whose hosts another rank has found unreachable, by its message: the words of
/// their set, which zeros may follow.
pub(super) fn note_unreachable(peers: &mut Peers, message: &[u8]) {
    let (words, _) = message.as_chunks();
    let words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    for rank in Ranks::of_words(&words).iter() {
        peers.control_channels().note_loss_elsewhere(rank as usize);
    }
}

/// A report of the ranks whose hosts are unreachable, and the leader that got it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LossReport {
    leader: u32,
    unreachable: Ranks,
}

impl MembershipDriver {
    /// Tells the machine of all deaths that are known by now.
    pub(crate) fn look_for_deaths(&mut self, peers: &mut Peers) {
        let ranks = 0..self.reported.len();
        let fresh: Vec<_> = ranks.filter_map(|rank| self.fresh_evidence(peers, rank)).collect();
        if !fresh.is_empty() {
            self.step(peers, None, Input::Evidence(&fresh));
        }
        self.report_unreachable(peers);
    }

    /// The evidence of the death of a rank, again whenever it has become stronger.
    fn fresh_evidence(
        &mut self,
        peers: &mut Peers,
        rank: usize,
    ) -> Option<(u32, Evidence, Option<LastVotes>)> {
        let (has_ended, goodbye) = peers.control_channels().end_of(rank);
        // A rank that said goodbye without any recovery message has never voted.
        let no_vote = (goodbye == Some(false)).then(LastVotes::default);
        let (evidence, vote) = match peers.last_vote_of(rank) {
            Some(vote) => (Evidence::Certain, vote.map(|vote| decode_last_vote(&vote)).or(no_vote)),
            None if goodbye.is_some() => (Evidence::Left, no_vote),
            None if has_ended => (Evidence::Strong, None),
            None => return None,
        };
        let report = Some((evidence, vote.is_some()));
        let is_fresh = self.reported[rank] < report;
        self.reported[rank] = self.reported[rank].max(report);
        if is_fresh && peers.control_channels().is_unreachable(rank) {
            self.unreachable.insert(rank as u32);
        }
        is_fresh.then_some((rank as u32, evidence, vote))
    }

    /// Reports to the leader whose hosts this rank has found unreachable.
    fn report_unreachable(&mut self, peers: &mut Peers) {
        let (me, leader) = (self.me.rank as u32, self.member.leader());
        let report = LossReport { leader, unreachable: self.unreachable.clone() };
        if leader == me || self.unreachable.is_empty() || report == self.last_report {
            return;
        }
        self.last_report = report;
        let words = self.unreachable.words().iter();
        let message: Vec<_> = words.flat_map(|word| word.to_le_bytes()).collect();
        recovery_frames::send(peers.control_channels(), leader as usize, UNREACHABLE, &message);
    }

    /// The ranks of `members` that have ended, as this rank has seen or was told.
    pub(crate) fn lost(&self, members: &Ranks) -> Ranks {
        let is_reported = |&rank: &u32| self.reported[rank as usize].is_some();
        members
            .iter()
            .filter(|rank| is_reported(rank) || self.member.gone().contains(*rank))
            .collect()
    }

    /// True if one of `members` is known to have ended.
    pub(crate) fn has_lost(&self, members: &Ranks) -> bool {
        !self.lost(members).is_empty()
    }

    /// The ranks to name where some of `missing` did not come: those that have ended, which may be
    /// the reason why the others did not come, or else all.
    pub(crate) fn at_fault(&self, members: &Ranks, missing: Vec<usize>) -> Vec<usize> {
        let lost: Vec<_> = self.lost(members).iter().map(|rank| rank as usize).collect();
        if lost.is_empty() { missing } else { lost }
    }
}
