//! The announcements of the members of a new membership: how far each has come, what it has
//! reserved, and where it listens. They go to the lowest member, which tells them to all: `n`
//! members send `2n` messages.
//! Law: no member waits for one that has given up: the earliest limit of all counts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::codec::{Decoder, Encoder, Malformed};
use crate::engine::membership_driver::{MembershipDriver, limit_among};
use crate::engine::recovery_frames::{self, ALL_MEMBERS, MEMBER};
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::recovery::membership::Ranks;
use crate::sync::Instant;

/// How long before its limit the lowest of up to 32 members tells the others which have not come.
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
    let mut collected = Collected::of(mine, &others);
    if lowest != mine.from {
        recovery_frames::send(peers.control_channels(), lowest, MEMBER, &mine.encode());
    }
    let telling = limit_among(members.len() as usize, TELLING);
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
            true => left <= telling.min(until.saturating_duration_since(began) / 4),
            false => left.is_zero(),
        };
        let missing = collected.given_up.take().or_else(|| {
            let is_over = driver.has_lost(&others) || is_late && !has_all;
            let silent = if lowest == mine.from { collected.missing() } else { vec![lowest] };
            is_over.then(|| driver.at_fault(&others, silent))
        });
        if lowest == mine.from && (has_all || missing.is_some()) {
            let bytes = collected.encode(left, missing.as_deref().unwrap_or_default());
            for rank in (&others - &driver.lost(&others)).iter() {
                recovery_frames::send(peers.control_channels(), rank as usize, ALL_MEMBERS, &bytes);
            }
        }
        if let Some(missing) = missing {
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
    /// The ranks because of which the lowest member has given up: this one too, if it was late.
    given_up: Option<Vec<usize>>,
}

impl<'a> Collected<'a> {
    fn of(mine: &'a MemberAnnouncement, others: &'a Ranks) -> Self {
        Self { mine, others, announced: BTreeMap::new(), given_up: None }
    }

    /// Adds the announcement of another member, unless it is of another membership; returns its
    /// limit.
    fn add(&mut self, from: usize, bytes: &[u8]) -> Option<Duration> {
        let member = MemberAnnouncement::decode(from, bytes).ok()?;
        let is_of_other = member.epoch == self.mine.epoch && self.others.contains(from as u32);
        let limit = is_of_other.then(|| Duration::from_millis(member.limit_ms.into()))?;
        self.announced.entry(from).or_insert(member);
        Some(limit)
    }

    /// Adds those that the lowest member knows, unless it has given up; returns its limit.
    fn add_all(&mut self, bytes: &[u8]) -> Option<Duration> {
        let mut fields = Decoder(bytes);
        let (epoch, limit) = (fields.u32().ok()?, fields.u32().ok()?);
        if epoch != self.mine.epoch {
            return None;
        }
        let mut missing = Vec::new();
        for _ in 0..fields.u32().ok()? {
            missing.push(fields.u32().ok()? as usize);
        }
        if !missing.is_empty() {
            self.given_up = Some(missing);
            return None;
        }
        for _ in 0..fields.u32().ok()? {
            let (from, length) = (fields.u32().ok()?, fields.u32().ok()?);
            self.add(from as usize, fields.raw(length as usize).ok()?);
        }
        Some(Duration::from_millis(limit.into()))
    }

    /// The message of the lowest member, which waits for `left` at most, or has given up because of
    /// these `missing` ranks.
    fn encode(&self, left: Duration, missing: &[usize]) -> Vec<u8> {
        let limit = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let to = Encoder::default().u32(self.mine.epoch).u32(limit).u32(missing.len() as u32);
        let to = missing.iter().fold(to, |to, &rank| to.u32(rank as u32));
        let all = || self.announced.values().chain([self.mine]).filter(|_| missing.is_empty());
        let to = to.u32(all().count() as u32);
        all().fold(to, |to, member| to.u32(member.from as u32).counted_bytes(&member.encode())).0
    }

    /// The other members that have not announced themselves.
    fn missing(&self) -> Vec<usize> {
        let others = self.others.iter().map(|rank| rank as usize);
        others.filter(|rank| !self.announced.contains_key(rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(from: usize, limit_ms: u32) -> MemberAnnouncement {
        let (epoch, joiners, calls, memory) = (2, 0, 7 + from as u64, 0);
        let address = format!("listener {from}");
        MemberAnnouncement { from, epoch, joiners, calls, limit_ms, memory, address }
    }

    #[test]
    fn each_member_learns_of_all_by_the_lowest() {
        let all = [1, 4, 6].map(|from| announced(from, 1000 * from as u32));
        let others =
            |own: usize| all.iter().map(|it| it.from as u32).filter(move |&it| it != own as u32);
        let [mine, rest @ ..] = &all;
        let of_lowest = others(1).collect();
        let mut lowest = Collected::of(mine, &of_lowest);
        assert_eq!(lowest.missing(), [4, 6]);
        for member in rest {
            let limit = lowest.add(member.from, &member.encode());
            assert_eq!(limit, Some(Duration::from_secs(member.from as u64)));
        }
        let message = lowest.encode(Duration::from_secs(3), &[]);
        for member in rest {
            let others = others(member.from).collect();
            let mut collected = Collected::of(member, &others);
            assert_eq!(collected.add_all(&message), Some(Duration::from_secs(3)));
            let known: Vec<_> = collected.announced.values().chain([member]).collect();
            assert!(all.iter().all(|it| known.contains(&it)) && known.len() == 3, "{known:?}");
        }
        // Announcements of another membership are left out.
        let late = MemberAnnouncement { epoch: 3, ..announced(4, 1) };
        assert_eq!(Collected::of(&late, &of_lowest).add_all(&message), None);
        assert_eq!(lowest.add(4, &late.encode()), None);
        assert_eq!(lowest.add(5, &announced(5, 1).encode()), None, "it is no member");
    }

    #[test]
    fn the_lowest_member_tells_because_of_whom_it_has_given_up() {
        let (mine, other) = (announced(0, 9), announced(1, 9));
        let (of_lowest, of_other) = ([1, 2].into_iter().collect(), [0, 2].into_iter().collect());
        let mut lowest = Collected::of(&mine, &of_lowest);
        lowest.add(1, &other.encode());
        let missing = lowest.missing();
        assert_eq!(missing, [2]);
        let mut told = Collected::of(&other, &of_other);
        assert_eq!(told.add_all(&lowest.encode(Duration::from_secs(3), &missing)), None);
        assert!(told.given_up == Some(missing) && told.announced.is_empty());
    }
}
