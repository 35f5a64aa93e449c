//! Communicators made of one: the ranks tell each other by an all-gather which group they join and
//! where they listen, then connect as at the beginning. May touch: as `comm`.
//! Law: all ranks come to the same all-gather whatever they want and whatever fails before it.

use std::sync::Arc;

use super::in_process::Ready;
use super::subgroup::Doors;
use crate::api::options::Tag;
use crate::api::{CallOptions, Communicator, Origin, With};
use crate::error::{Error, Peer, Result};

/// Bytes of a card: kind, length of the address, two of nothing, colour, key, address.
const CARD: usize = 128;
const HEAD: usize = 16;
const NO_GROUP: u8 = 0;
const GROUP: u8 = 1;
const FAILED: u8 = 2;

/// What a rank tells all others.
#[derive(Debug)]
pub(crate) struct Card {
    kind: u8,
    color: u32,
    key: i64,
    address: String,
}

impl Card {
    pub(crate) fn encode(&self) -> [u8; CARD] {
        let mut out = [0; CARD];
        let head = [self.kind, self.address.len() as u8, 0, 0].into_iter();
        let numbers = self.color.to_le_bytes().into_iter().chain(self.key.to_le_bytes());
        let bytes = head.chain(numbers).chain(self.address.bytes());
        out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        out
    }

    pub(crate) fn decode(bytes: &[u8; CARD]) -> Self {
        let length = usize::from(bytes[1]).min(CARD - HEAD);
        Self {
            kind: bytes[0],
            color: u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])),
            key: i64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
            address: String::from_utf8_lossy(&bytes[HEAD..HEAD + length]).into_owned(),
        }
    }
}

/// The number of a group: no two of one communicator have the same.
pub(crate) fn number(job: u64, sequence: u64, color: u64) -> u64 {
    let words = [sequence, color];
    words.into_iter().fold(job, |digest, word| {
        (digest ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    })
}

/// What the others are told of one that can't listen for them.
pub(crate) fn no_doors(peer: &Peer) -> Error {
    let reason = "it could not listen for the others; its own error says why".into();
    Error::Handshake { peer: peer.to_string(), reason }
}

impl Communicator {
    /// Makes groups: all ranks that say the same `color` get a communicator of their own, in the
    /// order of their `key`s and, where these are equal, of their ranks here. A rank without a
    /// colour gets none. All ranks call this together; this communicator stays as it is.
    ///
    /// The new communicator has links and a sequence of calls of its own, so that both may be used
    /// at the same time from two threads, and the [`Self::timeout`] in force.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// // One communicator for each host, and one of the first ranks of all hosts.
    /// let (rank, first) = (comm.rank() as i64, comm.rank() - comm.local_rank());
    /// let host = comm.split(Some(first as u32), rank)?;
    /// let leaders = comm.split((comm.local_rank() == 0).then_some(0), rank)?;
    /// # assert!(host.is_some() && leaders.is_some());
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a peer is lost, makes another call or does not come before the timeout, or a group can't
    /// be connected; then the other groups may have been made, and this communicator can do no
    /// more.
    pub fn split(&mut self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let mut comm = self.tagged("split");
        let (cards, doors) = comm.exchange(color, key)?;
        color.map(|color| comm.join("split", color, &cards, doors)).transpose()
    }

    /// A communicator of the same ranks in the same order, for another thread or another part of
    /// the program. All ranks call this together.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut other = comm.duplicate()?;
    /// std::thread::spawn(move || other.barrier());
    /// comm.barrier()?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::split`].
    pub fn duplicate(&mut self) -> Result<Self> {
        let mut comm = self.tagged("duplicate");
        let (cards, doors) = comm.exchange(Some(0), 0)?;
        comm.join("duplicate", 0, &cards, doors)
    }

    /// For the calls that are part of `name`: tagged so, unless the caller tagged them otherwise,
    /// and made the usual way.
    fn tagged(&mut self, name: &'static str) -> With<'_> {
        let tag = self.settings.tag.clone().or(Some(Tag::Static(name)));
        let mut comm = self.with(CallOptions { tag, ..CallOptions::new() });
        comm.settings.required = None;
        comm
    }

    /// What everybody wants; and where this rank listens if it wants a group.
    fn exchange(&mut self, color: Option<u32>, key: i64) -> Result<(Vec<Card>, Doors)> {
        let doors = match (&self.seat.origin, color) {
            (Origin::Processes(meeting), Some(_)) => meeting.open_doors(self.size()),
            _ => Ok(Doors::default()),
        };
        let kind = match (&doors, color) {
            (Err(_), _) => FAILED,
            (Ok(_), Some(_)) => GROUP,
            (Ok(_), None) => NO_GROUP,
        };
        let address = doors.as_ref().map(Doors::address).unwrap_or_default();
        let mine = Card { kind, color: color.unwrap_or(0), key, address };
        let mut cards = vec![0; CARD * self.size()];
        self.all_gather(&mine.encode(), &mut cards)?;
        let doors = doors?;
        let cards: Vec<Card> = cards.as_chunks().0.iter().map(Card::decode).collect();
        match cards.iter().position(|card| card.kind == FAILED) {
            None => Ok((cards, doors)),
            Some(rank) => Err(no_doors(&self.peers()[rank])),
        }
    }

    /// The group of this colour, connected.
    fn join(
        &mut self,
        name: &'static str,
        color: u32,
        cards: &[Card],
        doors: Doors,
    ) -> Result<Self> {
        let wants = |rank: &usize| cards[*rank].kind == GROUP && cards[*rank].color == color;
        let mut members: Vec<usize> = (0..cards.len()).filter(wants).collect();
        members.sort_by_key(|&rank| cards[rank].key);
        let sequence = self.engine.as_ref().map_or(0, |engine| engine.sequence);
        self.make(name, &members, |seat, settings, abort| {
            let (timeout, recorder) = (settings.timeout, seat.flight.recorder());
            let group = match &seat.origin {
                Origin::Processes(meeting) => {
                    let address = |&rank: &usize| (rank, cards[rank].address.as_str());
                    let members: Vec<_> = members.iter().map(address).collect();
                    let job = number(meeting.job, sequence, color.into());
                    let meeting = meeting.branch((job, 0), &members, doors, timeout);
                    Self::open(meeting.heeding(abort), recorder)
                }
                Origin::Threads(threads) => {
                    let peers: Arc<[Peer]> = (0..)
                        .zip(&members)
                        .map(|(rank, &before)| Peer { rank, ..seat.peers[before].clone() })
                        .collect();
                    let me = members.iter().take_while(|&&rank| rank != seat.rank).count();
                    let job = number(threads.job, sequence, color.into());
                    Ready::new(threads.branch(job), me, peers)?.meet(timeout, abort, recorder)
                }
            }?;
            Ok(group.going_by(settings.preferences()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CARD, Card, GROUP, HEAD};

    #[test]
    fn cards_are_read_as_written() {
        let address = "x".repeat(CARD - HEAD);
        for (color, key) in [(0, 0), (u32::MAX, i64::MIN), (7, -1)] {
            let card = Card { kind: GROUP, color, key, address: address.clone() };
            let read = Card::decode(&card.encode());
            assert_eq!(format!("{card:?}"), format!("{read:?}"));
        }
        // Whatever a peer sends, it is only wrong.
        assert_eq!(Card::decode(&[0xFF; CARD]).address.chars().count(), CARD - HEAD);
    }
}
