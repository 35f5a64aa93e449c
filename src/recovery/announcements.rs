//! The announcements of the members of a new membership to each other: how far each has come, what
//! it has reserved, and where it listens.
//! Law: no member waits for one that has given up: the earliest limit of all counts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::codec::{Decoder, Encoder, Malformed};
use crate::engine::membership_driver::MembershipDriver;
use crate::engine::recovery_frames;
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::recovery::membership::Ranks;
use crate::sync::Instant;

/// The kind of the recovery messages by which members announce themselves.
const MEMBER: u32 = 2;

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

/// Announces this member to the other members, and returns their announcements. Of all members'
/// limits the earliest becomes this one's, so that no member waits for one that has given up.
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
    let bytes = mine.encode();
    for rank in others.iter() {
        recovery_frames::send(peers.control_channels(), rank as usize, MEMBER, &bytes);
    }
    let (mut announced, mut seen) = (BTreeMap::new(), 0);
    loop {
        // A message is read once: where many ranks connect, there are as many messages.
        for message in driver.other_messages[seen..].iter().filter(|it| it.kind == MEMBER) {
            let member = MemberAnnouncement::decode(message.from, &message.bytes).ok();
            if let Some(member) = member
                && member.epoch == mine.epoch
                && others.contains(message.from as u32)
            {
                let limit = Duration::from_millis(member.limit_ms.into());
                *until = (message.arrived + limit).min(*until);
                announced.entry(message.from).or_insert(member);
            }
        }
        seen = driver.other_messages.len();
        let has_all = announced.len() == others.len() as usize;
        if has_all {
            // A member may have ended since, or its connection, over which the others go on.
            driver.look_for_deaths(peers);
        }
        if driver.has_lost(&others) || !has_all && Instant::now() > *until {
            let missing = others.iter().map(|rank| rank as usize);
            let missing = missing.filter(|rank| !announced.contains_key(rank)).collect();
            let missing = driver.at_fault(&others, missing);
            return Err(Error::NotAll { call, missing, after: began.elapsed() });
        }
        if has_all {
            return Ok(announced.into_values().collect());
        }
        driver.check_abort()?;
        driver.poll(peers);
    }
}
