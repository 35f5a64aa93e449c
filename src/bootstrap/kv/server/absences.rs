//! Ranks that left while ranks meet, and ranks that were refused.
//! Law: another process may take the place of a rank that has left, as long as not all have come.
//! If none does within the peer timeout, or the rank leaves later, the start of all others ends
//! with its name. A connection that proves nothing only adds a note for the user.

use std::time::Duration;

use super::ServerState;
use crate::bootstrap::auth::rejected::Rejection;
use crate::bootstrap::exchange::{LINKED_TABLE, TABLE_TAG, encode_error, failure_key};
use crate::bootstrap::kv::protocol::{Encoder, FrameKind};
use crate::bootstrap::rank_record::RankRecord;
use crate::error::{Error, warn};
use crate::sync::Instant;

/// The most ranks that one answer lists.
const MAX_LISTED: usize = 8_000;
/// The most absent ranks that are explained, to the user and in memory.
const MAX_ABSENCES: usize = 64;
/// The most explanations in one answer.
const MAX_NOTES: usize = 4;
/// The largest number of ranks that a client may ask about.
const MAX_ASKED: u32 = 1 << 17;

/// A rank that has left, or was refused, while others meet.
#[derive(Debug)]
pub(super) struct Absence {
    /// The rank with its process, as errors name it.
    peer: String,
    reason: String,
    since: Instant,
    /// When the start of the others ends if no process has taken the rank's place.
    fatal_at: Option<Instant>,
}

impl ServerState {
    /// Notes which ranks have closed their connections while ranks meet.
    pub(super) fn note_departures(&mut self, now: Instant) {
        let closed = self.clients.iter_mut().filter(|client| client.is_closed && !client.has_left);
        let departed: Vec<_> = closed
            .filter(|client| client.rendezvous > 0 && !client.is_joiner)
            .filter_map(|client| {
                let proved = client.authenticated_rank.map(|rank| rank as usize);
                let rank = client.claimed_rank.or(proved)?;
                Some((client.rendezvous, rank, client.claimed_rank.is_some(), proved.is_some()))
            })
            .collect();
        for (rendezvous, rank, is_owner, is_proved) in departed {
            self.note_departure((rendezvous, rank), is_owner, is_proved, now);
        }
    }

    /// `is_owner`: the record of this rank is of the departed process. `is_proved`: the rank came
    /// by a listener; the processes of a launcher are in the launcher's care.
    fn note_departure(
        &mut self,
        (rendezvous, rank): (u64, usize),
        is_owner: bool,
        is_proved: bool,
        now: Instant,
    ) {
        let key = (rendezvous, format!("record/{rank}"));
        let record = self.values.get(&key).map(|bytes| RankRecord::decode(bytes));
        // Another process has the rank's place, or a launcher's rank has left after the meeting.
        if record.is_some() && !is_owner || record.is_none() && !is_proved {
            return;
        }
        let peer = match record {
            Some(Ok(record)) => record.peer.peer().to_string(),
            _ => format!("rank {rank}"),
        };
        if let Some(table) = self.values.get(&(rendezvous, "record/table".into())) {
            if is_proved && table.first() == Some(&TABLE_TAG) {
                let reason = "its process ended, or its host was cut off, before all ranks were \
                              connected. Its own output says why";
                self.end_start(rendezvous, rank, peer, reason.into());
            }
            return;
        }
        if let Some(value) = self.values.remove(&key) {
            self.value_bytes -= key.1.len() + value.len();
        }
        self.departures += 1;
        let reason = "its process ended, or its host was cut off, while the ranks met".into();
        let fatal_at = is_proved.then(|| now + self.credentials.peer_timeout);
        self.note_absence((rendezvous, rank), Absence { peer, reason, since: now, fatal_at });
    }

    /// Notes a connection that claimed to be a rank and was refused. Its claim counts only where
    /// the system vouches for its user, or where the job has nothing to prove.
    pub(super) fn note_refusal(
        &mut self,
        claim: Option<(u32, String)>,
        reason: Rejection,
        is_unix: bool,
        now: Instant,
    ) {
        let Some((rank, from)) = claim.filter(|_| reason.is_misconfiguration()) else { return };
        let is_vouched_for = is_unix || !self.credentials.keys.has_secret();
        let absence = Absence {
            peer: format!("rank {rank} ({from})"),
            reason: format!("it was refused, because it {reason}"),
            since: now,
            fatal_at: is_vouched_for.then(|| now + self.credentials.peer_timeout),
        };
        if !self.values.contains_key(&(1, format!("record/{rank}"))) {
            self.note_absence((1, rank as usize), absence);
        }
    }

    fn note_absence(&mut self, rank: (u64, usize), absence: Absence) {
        if self.absences.len() >= MAX_ABSENCES && !self.absences.contains_key(&rank) {
            return;
        }
        if let Some(end) = absence.fatal_at {
            let wait = end.saturating_duration_since(absence.since);
            let Absence { peer, reason, .. } = &absence;
            warn(&format!(
                "{peer}: {reason}. The other ranks wait {wait:.0?} for a process in its place \
                 (RINGREDUCE_PEER_TIMEOUT)"
            ));
        }
        self.absences.insert(rank, absence);
    }

    /// When the next absence ends the start of the others.
    pub(super) fn next_fatal_absence(&self) -> Option<Instant> {
        self.absences.values().filter_map(|absence| absence.fatal_at).min()
    }

    /// Ends the start of the others for ranks whose place was not taken in time.
    pub(super) fn expire_absences(&mut self, now: Instant) {
        while let Some(&(rendezvous, rank)) = self
            .absences
            .iter()
            .find_map(|(rank, absence)| (absence.fatal_at? <= now).then_some(rank))
        {
            let Some(absence) = self.absences.remove(&(rendezvous, rank)) else { return };
            let waited = now.saturating_duration_since(absence.since);
            let reason = format!(
                "{}, and no process took its place within {waited:.0?} \
                 (RINGREDUCE_PEER_TIMEOUT). Its own output says why",
                absence.reason
            );
            self.end_start(rendezvous, rank, absence.peer, reason);
        }
    }

    /// Publishes a failure wherever ranks of this rendezvous may wait.
    fn end_start(&mut self, rendezvous: u64, rank: usize, peer: String, reason: String) {
        let leader = self.values.get(&(rendezvous, "record/0".into()));
        let job = leader.and_then(|bytes| RankRecord::decode(bytes).ok()).map(|record| record.job);
        let links = Encoder::default().u32(rank as u32).text(&reason);
        let error = encode_error(&Error::Handshake { peer, reason }, rank);
        for table in ["record/table", "tcp/table", LINKED_TABLE] {
            self.publish(rendezvous, table.into(), error.clone());
        }
        if let Some(job) = job {
            self.publish(rendezvous, failure_key(job), links.0);
        }
    }

    /// Answers which of the first ranks have no value under a topic, and why as far as it is known.
    pub(super) fn list_missing(&mut self, index: usize, id: u32, topic: &str, size: u32) {
        let rendezvous = self.clients[index].rendezvous;
        let is_missing =
            |rank: &u32| !self.values.contains_key(&(rendezvous, format!("{topic}/{rank}")));
        let missing: Vec<u32> = (0..size.min(MAX_ASKED)).filter(is_missing).collect();
        let listed = missing.len().min(MAX_LISTED);
        let mut answer = Encoder::default().u32(self.departures).u32(missing.len() as u32);
        answer = answer.u32(listed as u32);
        for &rank in &missing[..listed] {
            answer = answer.u32(rank);
        }
        let of_this = self.absences.iter().filter(|((number, rank), _)| {
            *number == rendezvous && missing.contains(&(*rank as u32))
        });
        let ago = |since: Instant| Duration::from_secs(since.elapsed().as_secs());
        let note = |absence: &Absence| {
            format!("{}, {:.0?} ago: {}. ", absence.peer, ago(absence.since), absence.reason)
        };
        let notes: String = of_this.take(MAX_NOTES).map(|(_, absence)| note(absence)).collect();
        self.clients[index].send(FrameKind::Value, id, "", &answer.text(&notes).0);
    }
}
