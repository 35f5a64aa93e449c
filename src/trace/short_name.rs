//! The name of a communicator as its entry in a record has it.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use super::layout::CommunicatorEntry;
use crate::codec::printable;
use crate::error::communicator_name::shortened;

/// The words of a name in an entry.
pub(super) const NAME_WORDS: usize = 3;
const NAME_BYTES: usize = NAME_WORDS * size_of::<u64>();

/// The name of a communicator, of which a record has 24 bytes: ".." and the end of a longer one.
/// Empty if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortName([u8; NAME_BYTES]);

impl ShortName {
    /// As much of this name as a record has.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut bytes = [0; NAME_BYTES];
        let name = shortened(name, NAME_BYTES);
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Self(bytes)
    }

    /// True if the communicator has no name.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    pub(super) fn from_words(words: [u64; NAME_WORDS]) -> Self {
        let mut bytes = [0; NAME_BYTES];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        Self(bytes)
    }
}

/// Any bytes make a name that a terminal shows: a record is not trusted.
impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        f.write_str(&printable(&String::from_utf8_lossy(&self.0[..len])))
    }
}

impl CommunicatorEntry {
    /// Replaces the name. Readers take the entry for an unfinished one meanwhile.
    pub(super) fn set_name(&self, name: ShortName) {
        let key = self.key.swap(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in self.name.iter().zip(name.0.as_chunks().0) {
            to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        self.key.store(key, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use super::ShortName;
    use crate::error::Stall;
    use crate::{Communicator, ReduceOp};

    #[test]
    fn a_record_has_the_end_of_a_long_name() {
        assert_eq!(ShortName::of("experts/3").to_string(), "experts/3");
        let long = ShortName::of("tensor and expert parallel/31");
        assert_eq!(long.to_string(), "..and expert parallel/31");
        assert!(ShortName::default().is_empty() && !long.is_empty());
    }

    #[test]
    fn the_record_and_the_notices_of_waits_have_the_name() {
        let mut comm = Communicator::local(1).unwrap().remove(0);
        let mut part = comm.split(Some(5), 0).unwrap().unwrap();
        part.all_reduce(&mut [1], ReduceOp::Sum).unwrap();
        let names = |comm: &Communicator| {
            let members = comm.rank_info.record.recorder().record().unwrap().communicators;
            members.iter().flatten().map(|member| member.name.to_string()).collect::<Vec<_>>()
        };
        let notice = |comm: &Communicator| {
            let state = Stall::NeverEntered { entered: 0 };
            comm.rank_info.record.silence_notice(Duration::from_secs(5), 0, &state).unwrap()
        };
        assert_eq!(names(&comm), ["", ""]);
        assert!(notice(&part).starts_with("rank 0 has waited for 5s: rank 0 "));
        comm.set_name("data").unwrap();
        part.set_name("experts/5").unwrap();
        assert_eq!(names(&comm), ["data", "experts/5"]);
        let expected = "rank 0 of communicator \"experts/5\" has waited for 5s: rank 0 ";
        assert!(notice(&part).starts_with(expected), "{}", notice(&part));
        // The entry of a communicator that is gone keeps its name for its calls, and the next one
        // that takes the entry has none.
        drop(part);
        assert_eq!(names(&comm), ["data", "experts/5"]);
        comm.set_name("other").unwrap();
        assert_eq!(names(&comm), ["other", "experts/5"]);
    }

    #[test]
    fn any_bytes_are_a_name_that_a_terminal_shows() {
        assert_eq!(ShortName([0x1b; 24]).to_string(), "?".repeat(24));
        assert_eq!(ShortName([0xff; 24]).to_string(), "\u{fffd}".repeat(24));
    }
}
