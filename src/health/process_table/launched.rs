//! What one communicator knows of its ranks by their launcher's roll. May touch: the roll.
//! Law: who is in no roll of this rank's launcher is not known to have ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Ended, KEY, Roll, SLOTS, TAKEN, WILL};
use crate::health::last_vote;
use crate::health::status_page::key_of;

/// The ranks of a communicator in the roll of this one's launcher.
#[derive(Debug, Default)]
pub(crate) struct Launched {
    roll: Option<Arc<Roll>>,
    key: u64,
    /// This rank's place, and the slot there that it leaves its will in.
    mine: Option<(usize, usize)>,
    /// Their places, as far as they are in it.
    ranks: Vec<Option<usize>>,
}

impl Launched {
    /// Those of rank `me` of a communicator that all know by `key`, whose ranks say that the roll
    /// has them by these numbers.
    pub(crate) fn new(roll: Option<&Arc<Roll>>, me: usize, key: u64, numbers: &[u64]) -> Self {
        let Some(roll) = roll else { return Self::default() };
        let ranks: Vec<_> = numbers.iter().map(|&number| roll.find(number)).collect();
        let is_free = |at: usize, slot: usize| {
            let taken = roll.slot(at, slot, TAKEN);
            taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let mine = ranks.get(me).copied().flatten().and_then(|at| {
            let slot = (0..SLOTS).find(|&slot| is_free(at, slot))?;
            // What is there is another communicator's.
            roll.slot(at, slot, KEY).store(0, Ordering::Release);
            roll.slot(at, slot, WILL).store(0, Ordering::Relaxed);
            roll.slot(at, slot, KEY).store(key_of(key, me), Ordering::Release);
            Some((at, slot))
        });
        Self { roll: Some(Arc::clone(roll)), key, mine, ranks }
    }

    /// How a rank's process ended, if its launcher has seen that.
    pub(crate) fn ended(&self, rank: usize) -> Option<Ended> {
        self.roll.as_ref()?.ended(self.ranks.get(rank).copied().flatten()?)
    }

    /// Leaves this to those who come after this rank, whenever it ends.
    pub(crate) fn leave_will(&self, bytes: &[u8; last_vote::WILL]) {
        if let (Some(roll), Some((at, slot))) = (&self.roll, self.mine) {
            last_vote::leave(|word| roll.slot(at, slot, WILL + word), bytes);
        }
    }

    /// Has a rank's process ended? Then what it left; none if that can't be known.
    pub(crate) fn will_of(&self, rank: usize) -> Option<Option<[u8; last_vote::WILL]>> {
        self.ended(rank)?;
        let (roll, at) = (self.roll.as_ref()?, self.ranks.get(rank).copied().flatten()?);
        let key = key_of(self.key, rank);
        let slot = (0..SLOTS).find(|&slot| roll.slot(at, slot, KEY).load(Ordering::Acquire) == key);
        Some(slot.map(|slot| last_vote::read(|word| roll.slot(at, slot, WILL + word))))
    }
}

impl Drop for Launched {
    /// What it left stays until another communicator needs the place.
    fn drop(&mut self) {
        if let (Some(roll), Some((at, slot))) = (&self.roll, self.mine) {
            roll.slot(at, slot, TAKEN).store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A roll of two, both started, and the numbers by which they know each other.
    fn two() -> (Arc<Roll>, [u64; 2]) {
        let (roll, fd) = Roll::create(2).unwrap();
        let numbers = [0, 1].map(|at| {
            assert_eq!(roll.place(), Some(at));
            roll.begins(at, if at == 0 { std::process::id().cast_signed() } else { i32::MAX });
            roll.entry(at, super::super::NUMBER).load(Ordering::Relaxed)
        });
        assert_eq!(roll.place(), None);
        (Arc::new(Roll::open(&fd).unwrap()), numbers)
    }

    #[test]
    fn who_has_ended_leaves_what_it_left_last() {
        let (roll, numbers) = two();
        assert_eq!(roll.own_number(), numbers[0]);
        let [one, other] = [0, 1].map(|me| Launched::new(Some(&roll), me, 7, &numbers));
        for byte in 1..=3 {
            other.leave_will(&[byte; last_vote::WILL]);
            assert_eq!(one.will_of(1), None, "it lives");
        }
        drop(other);
        roll.has_ended(1, Ended::Killed(9));
        assert_eq!(one.ended(1).unwrap().to_string(), "killed by SIGKILL");
        assert_eq!(one.will_of(1), Some(Some([3; last_vote::WILL])));
        assert_eq!(one.ended(0), None);
        // Of another communicator it has left nothing that is known.
        assert_eq!(Launched::new(Some(&roll), 0, 8, &numbers).will_of(1), Some(None));
    }

    #[test]
    fn who_has_voted_for_nothing_is_told_from_who_had_no_room_to_say() {
        let (roll, numbers) = two();
        let all: Vec<_> =
            (0..=SLOTS as u64).map(|key| Launched::new(Some(&roll), 1, key, &numbers)).collect();
        roll.has_ended(1, Ended::Exited(3));
        let seen = |key| Launched::new(Some(&roll), 0, key, &numbers).will_of(1);
        assert_eq!(seen(0), Some(Some([0; last_vote::WILL])));
        assert_eq!(seen(SLOTS as u64), Some(None));
        drop(all);
    }

    #[test]
    fn who_is_in_no_roll_or_only_has_its_number_is_not_known() {
        let (roll, [one, other]) = two();
        roll.has_ended(1, Ended::Exited(0));
        let stranger = Launched::new(Some(&roll), 0, 7, &[one, other ^ 1, 0]);
        assert_eq!((stranger.ended(1), stranger.ended(2)), (None, None));
        assert_eq!(stranger.ended(3), None);
        // A later process may have the number that one had which has ended.
        roll.has_ended(0, Ended::Exited(0));
        assert_eq!(roll.own_number(), 0);
    }
}
