//! The announcements of the members of a new membership: how far each has come, what it has
//! reserved, and where it listens. They go to the lowest member, which tells them to all: `n`
//! members send `2n` messages.
//! Law: no member waits for one that has given up: the earliest limit of all counts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::codec::{Decoder, Encoder, Malformed};
use crate::engine::membership_driver::MembershipDriver;
use crate::engine::recovery_frames::{self, ALL_MEMBERS, MEMBER};
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::recovery::membership::Ranks;
use crate::sync::Instant;

/// How long before its limit the lowest member tells the others which have not come.
const TELLING: Duration = Duration::from_millis(500);

/// The announcement of a member of the membership `epoch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberAnnouncement {
    /// The rank of the member, which the connection tells.
    pub(super) from: usize,
    pub(super) epoch: u32,
    /// The digest of the joiners that the member would admit; 0 for none.
    pub(super) joiners: u64,
    /// The sequence number of the last call that succeeded at the member.
    pub(super) calls: u64,
    /// How long the member will try to connect, in milliseconds.
    pub(super) limit_ms: u32,
    /// Where the member has reserved memory for those of its host; 0 if it need not.
    pub(super) memory: u64,
    /// The address of the listener; empty if the member does not listen.
    pub(super) address: String,
}

impl MemberAnnouncement {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let to = Encoder::default().u32(self.epoch).u64(self.joiners).u64(self.calls);
        to.u32(self.limit_ms).u64(self.memory).text(&self.address).0
    }

    pub(crate) fn decode(from: usize, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Decoder(bytes);
        Ok(Self {
            from,
            epoch: fields.u32()?,
            joiners: fields.u64()?,
            calls: fields.u64()?,
            limit_ms: fields.u32()?,
            memory: fields.u64()?,
            address: fields.text()?,
        })
    }
}

/// Tells the lowest member of this one, and returns the announcements of all others, which the
/// lowest member tells. Of all members' limits the earliest becomes this one's, so that no member
/// waits for one that has given up.
///
/// # Errors
/// [`Error::NotAll`] with the members that have ended, or have not announced themselves in time.
pub(super) fn exchange(
    driver: &mut MembershipDriver,
    peers: &mut Peers,
    call: &'static str,
    mine: &MemberAnnouncement,
    members: &Ranks,
    until: &mut Instant,
) -> Result<Vec<MemberAnnouncement>> {
    let (began, others) = (Instant::now(), members.without(mine.from as u32));
    let lowest = members.lowest().map_or(mine.from, |rank| rank as usize);
    let mut collected = Collected { mine, others: &others, announced: BTreeMap::new() };
    if lowest != mine.from {
        recovery_frames::send(peers.control_channels(), lowest, MEMBER, &mine.encode());
    }
    let mut seen = 0;
    loop {
        // A message is read once: where many ranks connect, there are as many messages.
        for message in &driver.other_messages[seen..] {
            let limit = match message.kind {
                MEMBER if lowest == mine.from => collected.add(message.from, &message.bytes),
                ALL_MEMBERS if lowest == message.from => collected.add_all(&message.bytes),
                _ => None,
            };
            if let Some(limit) = limit {
                *until = (message.arrived + limit).min(*until);
            }
        }
        seen = driver.other_messages.len();
        let has_all = collected.announced.len() == others.len() as usize;
        if has_all {
            // A member may have ended since, or its connection, over which the others go on.
            driver.look_for_deaths(peers);
        }
        // The others must hear of the end of the lowest member's wait before their own ends.
        let left = until.saturating_duration_since(Instant::now());
        let is_late = match lowest == mine.from {
            true => left <= TELLING.min(until.saturating_duration_since(began) / 4),
            false => left.is_zero(),
        };
        let is_over = driver.has_lost(&others) || !has_all && is_late;
        if lowest == mine.from && (has_all || is_over) {
            let bytes = collected.encode(left);
            for rank in others.iter() {
                recovery_frames::send(peers.control_channels(), rank as usize, ALL_MEMBERS, &bytes);
            }
        }
        let is_told = lowest != mine.from && !collected.announced.is_empty();
        if is_over || is_told && !has_all {
            let missing = match lowest == mine.from || is_told {
                true => collected.missing(),
                false => vec![lowest],
            };
            let missing = driver.at_fault(&others, missing);
            return Err(Error::NotAll { call, missing, after: began.elapsed() });
        }
        if has_all {
            return Ok(collected.announced.into_values().collect());
        }
        driver.check_abort()?;
        driver.poll(peers);
    }
}

/// The announcements of the other members, as far as they have come.
struct Collected<'a> {
    mine: &'a MemberAnnouncement,
    others: &'a Ranks,
    announced: BTreeMap<usize, MemberAnnouncement>,
}

impl Collected<'_> {
    /// Adds the announcement of another member, unless it is of another membership; returns its
    /// limit.
    fn add(&mut self, from: usize, bytes: &[u8]) -> Option<Duration> {
        let member = MemberAnnouncement::decode(from, bytes).ok()?;
        let is_of_other = member.epoch == self.mine.epoch && self.others.contains(from as u32);
        let limit = is_of_other.then(|| Duration::from_millis(member.limit_ms.into()))?;
        self.announced.entry(from).or_insert(member);
        Some(limit)
    }

    /// Adds those that the lowest member knows; returns its limit.
    fn add_all(&mut self, bytes: &[u8]) -> Option<Duration> {
        let mut fields = Decoder(bytes);
        let (epoch, limit, count) = (fields.u32().ok()?, fields.u32().ok()?, fields.u32().ok()?);
        if epoch != self.mine.epoch {
            return None;
        }
        for _ in 0..count {
            let (from, length) = (fields.u32().ok()?, fields.u32().ok()?);
            self.add(from as usize, fields.raw(length as usize).ok()?);
        }
        Some(Duration::from_millis(limit.into()))
    }

    /// The message of the lowest member, which waits for `left` at most.
    fn encode(&self, left: Duration) -> Vec<u8> {
        let limit = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let all = self.announced.values().chain([self.mine]);
        let to = Encoder::default().u32(self.mine.epoch).u32(limit);
        let to = to.u32(self.announced.len() as u32 + 1);
        all.fold(to, |to, member| to.u32(member.from as u32).counted_bytes(&member.encode())).0
    }

    /// The other members that have not announced themselves.
    fn missing(&self) -> Vec<usize> {
        let others = self.others.iter().map(|rank| rank as usize);
        others.filter(|rank| !self.announced.contains_key(rank)).collect()
    }
}
