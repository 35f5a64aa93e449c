//! The ends of processes of other hosts. The launcher of a host tells those of the others how a
//! process ended, with its last votes, and they put it behind the processes of their own.
//! Law: an entry is whole before readers see it; bytes of another version are refused.

use std::sync::atomic::Ordering;

use super::{ENDED, FAR, ID, KEY, MAGIC, ProcessTable, SLOTS, VOTE, last_vote};
use crate::codec::{Decoder, Encoder, Malformed};
use crate::error::{Error, Result};
use crate::health::last_vote::LAST_VOTE_BYTES;

/// How a process of another host ended, with its last votes by the keys of their slots.
struct FarEnd {
    id: u64,
    how: u64,
    votes: Vec<(u64, [u8; LAST_VOTE_BYTES])>,
}

impl FarEnd {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Decoder(bytes);
        if fields.u64()? != MAGIC {
            return Err(Malformed::UnknownValue);
        }
        let (id, how) = (fields.u64()?, fields.u64()?);
        let mut votes = vec![];
        while !fields.0.is_empty() && votes.len() < SLOTS {
            let (key, bytes) = (fields.u64()?, fields.raw(LAST_VOTE_BYTES)?);
            let mut vote = [0; LAST_VOTE_BYTES];
            vote.copy_from_slice(bytes);
            votes.push((key, vote));
        }
        Ok(Self { id, how, votes })
    }
}

impl ProcessTable {
    /// How the process of this entry ended, with its last votes, for the tables of other hosts;
    /// `None` while it runs.
    #[must_use]
    pub fn end_of(&self, at: usize) -> Option<Vec<u8>> {
        let word = |word| self.process(at, word).load(Ordering::Acquire);
        self.ended(at)?;
        let mut end = Encoder::default().u64(MAGIC).u64(word(ID)).u64(word(ENDED));
        for slot in 0..SLOTS {
            let key = self.slot(at, slot, KEY).load(Ordering::Acquire);
            if key != 0 {
                let vote = last_vote::read(|word| self.slot(at, slot, VOTE + word));
                end = end.u64(key).raw(&vote);
            }
        }
        Some(end.0)
    }

    /// Puts the end of a process of another host, as of [`Self::end_of`], into this table. An end
    /// beyond the room of the table is left out: it then counts as likely, not as certain.
    ///
    /// # Errors
    /// [`Error::Handshake`] if the bytes are none of this version.
    pub fn record_far_end(&self, bytes: &[u8]) -> Result<()> {
        let end = FarEnd::decode(bytes).map_err(|broken| Error::Handshake {
            peer: "the launcher of another host".into(),
            reason: format!("its news of the end of a process: {broken}"),
        })?;
        let far = self.word(FAR).load(Ordering::Relaxed);
        let at = self.local().saturating_add(usize::try_from(far).unwrap_or(usize::MAX));
        if at >= self.capacity() {
            return Ok(());
        }
        self.process(at, ID).store(end.id, Ordering::Relaxed);
        for (slot, (key, vote)) in end.votes.iter().enumerate() {
            // Without memory for a slot there is no vote: the end itself is certain all the same.
            if self.populate_slot(at, slot).is_ok() {
                last_vote::publish(|word| self.slot(at, slot, VOTE + word), vote);
                self.slot(at, slot, KEY).store(*key, Ordering::Release);
            }
        }
        self.process(at, ENDED).store(end.how, Ordering::Release);
        self.word(FAR).store(far + 1, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Ended, LAYOUT, LaunchedRanks};
    use super::*;

    /// A table with a process of this host and room for `far` ends, and the id of the process.
    fn table(far: usize) -> (Arc<ProcessTable>, u64) {
        let (table, _) = ProcessTable::create(1, far).unwrap();
        assert_eq!((table.reserve(3), table.reserve(3)), (Some(0), None));
        let id = table.id(0);
        (Arc::new(table), id)
    }

    #[test]
    fn an_end_on_another_host_is_known_with_the_last_vote() {
        let ((here, own), (there, other)) = (table(2), table(0));
        let ids = [own, other];
        let of = |table, me| LaunchedRanks::new(Some(table), Some(me), 7, &ids);
        let (one, two) = (of(&here, 0), of(&there, 1));
        two.publish_last_vote(&[5; LAST_VOTE_BYTES]);
        assert_eq!((there.end_of(0), one.ended(1)), (None, None));
        there.set_ended(0, Ended::Killed(9));
        let end = there.end_of(0).unwrap();
        here.record_far_end(&end).unwrap();
        // Also for a communicator that begins after it.
        for one in [one, of(&here, 0)] {
            assert_eq!((one.ended(0), one.ended(1)), (None, Some(Ended::Killed(9))));
            assert_eq!(one.last_vote_of(1), Some(Some([5; LAST_VOTE_BYTES])));
        }
        assert_eq!(LaunchedRanks::new(Some(&here), None, 8, &ids).last_vote_of(1), Some(None));
        let without = there;
        without.record_far_end(&end).unwrap();
        assert_eq!(without.all().count(), 1, "there is no room");
    }

    #[test]
    fn other_bytes_are_refused() {
        let (table, _) = table(1);
        table.set_ended(0, Ended::Exited(4));
        let mut end = table.end_of(0).unwrap();
        for cut in 0..end.len() {
            assert!(table.record_far_end(&end[..cut]).is_err(), "{cut}");
        }
        end[0] ^= 1;
        assert!(table.record_far_end(&end).is_err());
        assert_eq!(table.word(FAR).load(Ordering::Relaxed), 0);
        assert_eq!(table.word(LAYOUT).load(Ordering::Relaxed), MAGIC);
    }
}
