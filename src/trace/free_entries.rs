//! The free entries of the directory of communicators.
//! Law: the search for an entry takes as long among many communicators as among few, until all
//! entries were in use, and the record has memory for the most that each world of the process kept
//! at a time and a few more.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::layout::{FEW_COMMUNICATORS, RecordMemory};

/// Entries that are free before the first of them is used again: the calls of a dropped
/// communicator keep its name until so many others were made.
const RESTING: usize = FEW_COMMUNICATORS - 1;

/// Entries that are free, in the order in which they became so. Whether one is free says its word
/// `taken` alone, since the worlds that a process joins under a launcher have the memory in common.
#[derive(Debug)]
pub(super) struct FreeEntries(Mutex<VecDeque<usize>>);

impl FreeEntries {
    /// The free ones among the entries that were in use.
    pub(super) fn of(memory: &RecordMemory) -> Self {
        Self(Mutex::new(free_ones(memory).collect()))
    }

    /// Takes an entry. `None` if all are taken, or there is no memory for a further one.
    pub(super) fn take(&self, memory: &RecordMemory) -> Option<usize> {
        let mut free = self.entries();
        if free.len() < RESTING
            && let Some(at) = take_new(memory)
        {
            return Some(at);
        }
        let mut rested = std::iter::from_fn(|| free.pop_front());
        let found = rested.find(|&at| is_taken_now(memory, at)).or_else(|| take_new(memory));
        found.or_else(|| {
            // Another world of this process may have freed some.
            free.extend(free_ones(memory));
            std::iter::from_fn(|| free.pop_front()).find(|&at| is_taken_now(memory, at))
        })
    }

    /// Frees an entry that was taken.
    pub(super) fn give_back(&self, memory: &RecordMemory, at: usize) {
        let mut free = self.entries();
        memory.communicator(at).taken.store(0, Ordering::Release);
        free.push_back(at);
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The free ones among the entries that were in use.
fn free_ones(memory: &RecordMemory) -> impl Iterator<Item = usize> {
    let is_free = |at: &usize| memory.communicator(*at).taken.load(Ordering::Relaxed) == 0;
    (0..memory.used()).filter(is_free)
}

/// Takes the next entry that was never in use. Another world's recorder may take it meanwhile.
fn take_new(memory: &RecordMemory) -> Option<usize> {
    let has_memory = |at: &usize| memory.populate_communicator(*at).is_ok();
    let mut next = (memory.used()..memory.communicators()).take_while(has_memory);
    let at = next.find(|&at| is_taken_now(memory, at))?;
    memory.set_used(at);
    Some(at)
}

/// True if the entry was free, and is taken now.
fn is_taken_now(memory: &RecordMemory, at: usize) -> bool {
    let taken = &memory.communicator(at).taken;
    taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::sync::Arc;

    use super::super::layout::COMMUNICATORS;
    use super::super::reader::{Reader, Record};
    use super::super::recorder::{RecordWriter, Recorder};
    use super::super::{create, layout};
    use super::*;
    use crate::error::Peer;
    use crate::memory::mapping::Region;
    use crate::memory::page_size;

    fn recorder(shared: Option<Region>) -> Arc<Recorder> {
        Recorder::new(shared, (0, 2), None, None, false).unwrap()
    }

    /// The writer of a new communicator with this name.
    fn writer(recorder: &Arc<Recorder>, name: &str) -> RecordWriter {
        let peer = |rank| Peer { rank, host: "b".into(), pid: 7 };
        let made = recorder.communicator(7, 0, [peer(0), peer(1)].into(), Arc::default());
        made.set_name(name);
        made
    }

    fn call(writer: &RecordWriter, number: u64) {
        writer.enter(("send", false), None, number, 8);
        writer.leave(None);
    }

    /// The name that the last call shows.
    fn last_name(record: &Record) -> String {
        let at = record.ops.last().unwrap().communicator.unwrap();
        record.communicators[at].unwrap().name.to_string()
    }

    #[test]
    fn thousands_of_communicators_are_listed_by_name() {
        let recorder = recorder(None);
        let names: Vec<_> = (0..2_000).map(|number| format!("group {number}")).collect();
        let writers: Vec<_> = names.iter().map(|name| writer(&recorder, name)).collect();
        for at in [0, 62, 63, 255, 256, 1_000, 1_999] {
            call(&writers[at], layout::CALL - 1);
            let record = recorder.record().unwrap();
            let listed = record.communicators.iter().map(|it| it.unwrap().name.to_string());
            assert!(listed.eq(names.iter().cloned()));
            assert_eq!(last_name(&record), names[at]);
            let last = record.ops.last().unwrap();
            assert_eq!((last.sequence, last.is_message), (layout::CALL - 1, true));
        }
    }

    #[test]
    fn entries_of_dropped_communicators_are_used_again_after_some_others() {
        let recorder = recorder(None);
        let _kept: Vec<_> = (0..540).map(|_| writer(&recorder, "kept")).collect();
        let dropped = writer(&recorder, "dropped");
        call(&dropped, 1);
        drop(dropped);
        for round in 0..2_000 {
            let record = recorder.record().unwrap();
            assert!(record.communicators.len() <= 540 + RESTING);
            let expected = if round < RESTING { "dropped" } else { "other" };
            assert_eq!(last_name(&record), expected, "{round}");
            drop(writer(&recorder, "other"));
        }
        assert_eq!(recorder.record().unwrap().communicators.len(), 540 + RESTING);
    }

    #[test]
    fn without_a_free_entry_there_is_none_until_one_is_free() {
        for entries in [FEW_COMMUNICATORS, COMMUNICATORS] {
            let region = Region::anonymous_on_use(layout::bytes_with(entries)).unwrap();
            let memory = RecordMemory::new(region);
            let free = FreeEntries::of(&memory);
            assert!((0..entries).all(|at| free.take(&memory) == Some(at)));
            assert_eq!((free.take(&memory), memory.used()), (None, entries));
            free.give_back(&memory, 40);
            assert_eq!([free.take(&memory), free.take(&memory)], [Some(40), None]);
            // Another world of the process frees one.
            let other = FreeEntries::of(&memory);
            other.give_back(&memory, 50);
            assert_eq!([free.take(&memory), free.take(&memory)], [Some(50), None]);
        }
    }

    #[test]
    fn worlds_in_the_same_memory_share_its_entries() {
        let fd = create().unwrap();
        let open = || recorder(Some(Recorder::shared(fd.as_fd()).unwrap()));
        let first = open();
        drop((0..100).map(|_| writer(&first, "dropped")).collect::<Vec<_>>());
        // Both know the same entries to be free.
        let second = open();
        let _kept: Vec<_> =
            (0..200).map(|_| [&first, &second].map(|of| writer(of, "kept"))).collect();
        let record = first.record().unwrap();
        let open = record.communicators.iter().flatten().filter(|it| it.is_open);
        assert_eq!(open.filter(|it| it.name.to_string() == "kept").count(), 400);
        assert!(record.communicators.len() <= 400 + 2 * RESTING);
    }

    #[test]
    fn a_record_has_memory_for_the_entries_that_were_used() {
        let file = File::from(create().unwrap());
        let bytes = || file.metadata().unwrap().blocks() as usize * 512;
        let few = layout::bytes_with(FEW_COMMUNICATORS).get();
        let small = few.next_multiple_of(page_size());
        assert_eq!(bytes(), small);
        let reader = Reader::open(file.as_fd()).unwrap();
        let recorder = recorder(Some(Recorder::shared(file.as_fd()).unwrap()));
        let kept = writer(&recorder, "kept");
        for number in 1..=2_000 {
            drop(writer(&recorder, "dropped"));
            call(&kept, number);
        }
        assert_eq!(last_name(&reader.read().unwrap()), "kept");
        assert_eq!(bytes(), small);
        let _many: Vec<_> = (0..1_000).map(|_| writer(&recorder, "kept")).collect();
        assert_eq!(bytes(), (few + 999 * 64).next_multiple_of(page_size()));
        // A number of entries that is not true brings no memory for all of them.
        let before = bytes();
        file.write_all_at(&[0xff; 8], 48).unwrap();
        assert!(reader.read().unwrap().communicators.len() < 1_200);
        assert!(bytes() <= before + 2 * page_size());
    }
}
