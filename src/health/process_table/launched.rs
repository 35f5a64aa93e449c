//! The ranks of one communicator in the process table of their launcher.
//! Law: a rank without an entry in this rank's table is never said to have ended.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::{Ended, KEY, ProcessTable, SLOTS, TAKEN, VOTE};
use crate::health::last_vote::{self, LAST_VOTE_BYTES};

/// The ranks of a communicator in the process table of this rank's launcher.
#[derive(Debug, Default)]
pub(crate) struct LaunchedRanks {
    table: Option<Arc<ProcessTable>>,
    key: u64,
    /// The entry of this rank, and the slot there for its last vote.
    mine: Option<(usize, usize)>,
    /// The process of each rank.
    ranks: Vec<LaunchedRank>,
    /// The number of the table's ends of other hosts that were looked at.
    seen: AtomicUsize,
}

/// The process of a rank.
#[derive(Debug)]
struct LaunchedRank {
    /// Its id; 0 without a launcher.
    id: u64,
    /// Its entry; for a process of another host, once that has ended.
    entry: OnceLock<usize>,
}

impl LaunchedRanks {
    /// The entries of the ranks of a communicator with the common key `key`, by the ids that the
    /// ranks have told each other. `voter` is the own rank, if it shall claim a slot for its last
    /// vote.
    pub(crate) fn new(
        table: Option<&Arc<ProcessTable>>,
        voter: Option<usize>,
        key: u64,
        ids: &[u64],
    ) -> Self {
        let Some(table) = table else { return Self::default() };
        let seen = AtomicUsize::new(table.far().len());
        let entries = table.by_id();
        let of = |&id: &u64| {
            let entry = entries.get(&id).filter(|_| id != 0);
            LaunchedRank { id, entry: entry.map_or_else(OnceLock::new, |&at| at.into()) }
        };
        let ranks: Vec<_> = ids.iter().map(of).collect();
        let is_free = |at: usize, slot: usize| {
            // Without memory for a slot the rank leaves no vote here.
            table.populate_slot(at, slot).is_ok() && {
                let taken = table.slot(at, slot, TAKEN);
                taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }
        };
        let mine = voter.and_then(|me| {
            let at = *ranks.get(me)?.entry.get()?;
            let slot = (0..SLOTS).find(|&slot| is_free(at, slot))?;
            // The slot still has the vote of an earlier communicator.
            table.slot(at, slot, KEY).store(0, Ordering::Release);
            table.slot(at, slot, VOTE).store(0, Ordering::Relaxed);
            table.slot(at, slot, KEY).store(slot_key(key, me), Ordering::Release);
            Some((at, slot))
        });
        Self { table: Some(Arc::clone(table)), key, mine, ranks, seen }
    }

    /// How the process of a rank ended, if a launcher has seen it end.
    pub(crate) fn ended(&self, rank: usize) -> Option<Ended> {
        let (table, at) = self.entry(rank)?;
        table.ended(at)
    }

    /// The table, and the entry of a rank in it.
    fn entry(&self, rank: usize) -> Option<(&ProcessTable, usize)> {
        let (table, of) = (self.table.as_ref()?, self.ranks.get(rank)?);
        let (far, seen) = (table.far(), self.seen.load(Ordering::Relaxed));
        if far.len() > seen {
            for at in far.clone().skip(seen) {
                let id = table.id(at);
                if let Some(rank) = self.ranks.iter().find(|rank| rank.id == id && id != 0) {
                    _ = rank.entry.set(at);
                }
            }
            self.seen.store(far.len(), Ordering::Relaxed);
        }
        Some((table, *of.entry.get()?))
    }

    /// Publishes the last vote of this rank, for survivors to read after its death.
    pub(crate) fn publish_last_vote(&self, vote: &[u8; LAST_VOTE_BYTES]) {
        if let (Some(table), Some((at, slot))) = (&self.table, self.mine) {
            last_vote::publish(|word| table.slot(at, slot, VOTE + word), vote);
        }
    }

    /// `Some` if the process of a rank has ended, with its last vote; no vote inside if the rank
    /// had no slot for one.
    pub(crate) fn last_vote_of(&self, rank: usize) -> Option<Option<[u8; LAST_VOTE_BYTES]>> {
        self.ended(rank)?;
        let (table, at) = self.entry(rank)?;
        let key = slot_key(self.key, rank);
        let slot =
            (0..SLOTS).find(|&slot| table.slot(at, slot, KEY).load(Ordering::Acquire) == key);
        Some(slot.map(|slot| last_vote::read(|word| table.slot(at, slot, VOTE + word))))
    }
}

impl Drop for LaunchedRanks {
    /// Releases the slot; its vote stays until another communicator claims the slot.
    fn drop(&mut self) {
        if let (Some(table), Some((at, slot))) = (&self.table, self.mine) {
            table.slot(at, slot, TAKEN).store(0, Ordering::Release);
        }
    }
}

/// The key of a rank's slot, for a communicator's own key; never 0.
fn slot_key(key: u64, rank: usize) -> u64 {
    let mixed = (key ^ (rank as u64).rotate_right(16)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of two started processes, and their ids.
    fn two() -> (Arc<ProcessTable>, [u64; 2]) {
        let (table, fd) = ProcessTable::create(2, 0).unwrap();
        let ids = [0, 1].map(|at| {
            assert_eq!(table.reserve(at), Some(at));
            table.set_pid(at, if at == 0 { std::process::id().cast_signed() } else { i32::MAX });
            table.id(at)
        });
        assert_eq!(table.reserve(2), None);
        (Arc::new(ProcessTable::open(&fd).unwrap()), ids)
    }

    #[test]
    fn a_rank_is_known_by_its_first_process_on_this_host() {
        let (table, _fd) = ProcessTable::create(3, 0).unwrap();
        let entries = [5, 6, 5].map(|rank| table.reserve(rank).unwrap());
        table.set_ended(entries[1], Ended::Exited(0));
        table.set_ended(entries[2], Ended::Exited(0));
        let well = [0, 1, 5, 6].map(|rank| table.has_exited_well(rank));
        assert_eq!(well, [false, false, false, true]);
    }

    #[test]
    fn the_last_vote_of_a_dead_rank_is_read() {
        let (table, ids) = two();
        assert_eq!(table.own_id(), ids[0]);
        let [one, other] = [0, 1].map(|me| LaunchedRanks::new(Some(&table), Some(me), 7, &ids));
        for byte in 1..=3 {
            other.publish_last_vote(&[byte; LAST_VOTE_BYTES]);
            assert_eq!(one.last_vote_of(1), None, "it lives");
        }
        drop(other);
        table.set_ended(1, Ended::Killed(9));
        assert_eq!(one.ended(1).unwrap().to_string(), "killed by SIGKILL");
        assert_eq!(one.last_vote_of(1), Some(Some([3; LAST_VOTE_BYTES])));
        assert_eq!(one.ended(0), None);
        // For another communicator the rank has no vote.
        assert_eq!(LaunchedRanks::new(Some(&table), None, 8, &ids).last_vote_of(1), Some(None));
    }

    #[test]
    fn a_rank_without_a_vote_differs_from_one_without_a_slot() {
        let (table, ids) = two();
        let all: Vec<_> = (0..=SLOTS as u64)
            .map(|key| LaunchedRanks::new(Some(&table), Some(1), key, &ids))
            .collect();
        table.set_ended(1, Ended::Exited(3));
        let seen = |key| LaunchedRanks::new(Some(&table), None, key, &ids).last_vote_of(1);
        assert_eq!(seen(0), Some(Some([0; LAST_VOTE_BYTES])));
        assert_eq!(seen(SLOTS as u64), Some(None));
        drop(all);
    }

    #[test]
    fn the_end_of_a_process_of_another_table_or_of_a_reused_pid_is_not_known() {
        let (table, [one, other]) = two();
        table.set_ended(1, Ended::Exited(0));
        let foreign = LaunchedRanks::new(Some(&table), None, 7, &[one, other ^ 1, 0]);
        assert_eq!((foreign.ended(1), foreign.ended(2)), (None, None));
        assert_eq!(foreign.ended(3), None);
        // A later process may have the pid of one that has ended.
        table.set_ended(0, Ended::Exited(0));
        assert_eq!(table.own_id(), 0);
    }
}
