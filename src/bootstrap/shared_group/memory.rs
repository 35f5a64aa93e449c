//! The memory of subgroups on a host: one rank of the host reserves it in the file of the host's
//! region, and tells the others where it is.
//! Law: the layout follows from the numbers of the members, here and in all.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::{LACKS_MEMORY, closed_region_error, missing};
use crate::bootstrap::Bootstrap;
use crate::bootstrap::split::SplitRequest;
use crate::config::Transport;
use crate::error::Result;
use crate::health::local_detector::LocalDetector;
use crate::memory::{FileRange, HostFile, HostRegion, page_size};
use crate::plan::{Distance, Slots, message_slots};
use crate::transport::{FifoMemory, WORDS_ALIGN, slots_len, words_len};

/// The offset that a rank tells which could not reserve memory.
pub(crate) const RESERVED_NONE: u64 = u64::MAX;

/// FIFOs from one rank to another: of calls, and of messages.
const FIFOS: usize = 2;

/// The layout of a subgroup's memory on one host, in bytes: first its region, in which the status
/// entries of its ranks there and then the words of all FIFOs are, then the slots of the FIFOs to
/// the next ranks of the ring, and of all others. So what a subgroup needs before its first call
/// lies together.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupMemory {
    /// Ranks of the subgroup on the host.
    ranks: usize,
    /// Bytes of the words of all FIFOs.
    pub(super) link_bytes: usize,
    /// Bytes of the status entries.
    pub(super) status_bytes: usize,
    /// The offset of the slots.
    slots: usize,
    /// Bytes of the slots from one rank to the next one of the ring, and to another rank.
    ring_bytes: usize,
    other_bytes: usize,
    len: usize,
}

impl GroupMemory {
    /// The layout for so many ranks of a subgroup of `size` ranks, of a job whose hosts are or are
    /// not a wide-area network apart.
    pub(super) fn of(ranks: usize, size: usize, is_wide_area: bool) -> Self {
        let pages = |bytes: usize| bytes.next_multiple_of(page_size());
        let needs_tcp = size > ranks;
        // Connections are shared where each pair of ranks has one.
        let Slots { ring, other } = Slots::of(Distance::of(needs_tcp, is_wide_area), size, true);
        let messages = message_slots(needs_tcp, size);
        let [ring_bytes, other_bytes] = [ring, other].map(|calls| slots_len(&[calls, messages]));
        let link_bytes = ranks * ranks * words_len(FIFOS);
        let status_bytes = LocalDetector::entry_bytes(ranks).get().next_multiple_of(WORDS_ALIGN);
        let slots = pages(HostRegion::len(ranks, link_bytes + status_bytes).get());
        let len = pages(slots + ranks * ring_bytes + ranks * ranks * other_bytes);
        Self { ranks, link_bytes, status_bytes, slots, ring_bytes, other_bytes, len }
    }

    /// The memory of the FIFOs from one rank to another, by their places on the host. `is_ring` if
    /// the ring leads from the one to the other.
    pub(super) fn pair(
        &self,
        file: &HostFile,
        (from, to): (usize, usize),
        is_ring: bool,
    ) -> FifoMemory {
        let number = from * self.ranks + to;
        let slots = match is_ring {
            true => from * self.ring_bytes,
            false => self.ranks * self.ring_bytes + number * self.other_bytes,
        };
        FifoMemory {
            region: Arc::clone(file.region()),
            words: HostFile::link_words_at(self.ranks)
                + self.status_bytes
                + number * words_len(FIFOS),
            slots: self.slots + slots,
        }
    }
}

/// Bytes to reserve for the subgroups of `ranks` ranks of a host, however they are split: for each
/// rank as much as the ranks of the group that needs most. `over_hosts` if other hosts may have
/// ranks of them.
fn reserved_len(ranks: usize, over_hosts: bool, is_wide_area: bool) -> NonZeroUsize {
    let of_rank =
        |size: usize, all: usize| GroupMemory::of(size, all, is_wide_area).len.div_ceil(size);
    // The slots of messages are the longest if just one rank is on another host.
    let of_both = |size| of_rank(size, size).max(of_rank(size, size + usize::from(over_hosts)));
    let most = (2..=ranks).map(of_both).max().unwrap_or(0);
    let len = (ranks * most).next_multiple_of(page_size());
    NonZeroUsize::MIN.saturating_add(len.saturating_sub(1))
}

impl Bootstrap {
    /// Bytes of the memory of a group of `size` ranks on a host with `ranks` of them.
    pub(in crate::bootstrap) fn group_len(&self, ranks: usize, size: usize) -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(GroupMemory::of(ranks, size, self.is_wide_area).len - 1)
    }

    /// Bytes to reserve for all subgroups of this rank's host, however they are split.
    pub(in crate::bootstrap) fn reserved_len(&self) -> NonZeroUsize {
        reserved_len(self.local_size(), !self.is_one_host(), self.is_wide_area)
    }

    /// True if the ranks of each host with several of them have a file with memory for subgroups.
    pub(in crate::bootstrap) fn has_group_memory(&self) -> bool {
        self.has_files() && self.shares_connections()
    }

    fn has_files(&self) -> bool {
        self.inherits_files || self.shares_regions()
    }

    /// True if all subgroups use this communicator's connections: each pair of ranks has one, and
    /// those of a host that link in memory have a file for it.
    pub(crate) fn shares_connections(&self) -> bool {
        let links_in_memory =
            self.config.transport != Transport::Tcp && self.hosts.iter().any(|host| host.len() > 1);
        self.config.connects_all_pairs() && (!links_in_memory || self.has_files())
    }

    /// The memory of the subgroup of this colour for its ranks on this rank's host, which the
    /// lowest rank of the host has reserved; `None` if it needs none.
    ///
    /// # Errors
    /// If that rank has reserved none.
    pub(in crate::bootstrap) fn group_memory(
        &self,
        requests: &[SplitRequest],
        color: u32,
    ) -> Result<Option<FileRange>> {
        if !self.has_group_memory() {
            return Ok(None);
        }
        let host = self.host_of(self.rank);
        if host.len() == 1 {
            return Ok(None);
        }
        // Of each group the ranks on this host, and all.
        let mut groups: BTreeMap<u32, [usize; 2]> = BTreeMap::new();
        for (rank, request) in requests.iter().enumerate() {
            if let Some(color) = request.color() {
                let [here, all] = groups.entry(color).or_default();
                *all += 1;
                *here += usize::from(host.contains(&rank));
            }
        }
        let memory = host.first().and_then(|&first| requests[first].memory);
        let mut start = memory.ok_or_else(|| missing(LACKS_MEMORY))?;
        for (other, [here, all]) in groups {
            let len = if here > 1 { self.group_len(here, all).get() as u64 } else { 0 };
            if other == color {
                return Ok((len > 0).then_some(FileRange { start, len }));
            }
            start = start.checked_add(len).ok_or_else(|| missing(LACKS_MEMORY))?;
        }
        Ok(None)
    }

    /// Reserves the memory of the group `members` on this rank's host, if several of them are there
    /// and this rank is the lowest: its offset in the file, else 0.
    ///
    /// # Errors
    /// As [`HostFile::reserve_on_use`].
    pub(crate) fn reserve_for_group(&self, name: &'static str, members: &[usize]) -> Result<u64> {
        let here = self.on_host_of(members, self.rank);
        if !self.has_group_memory() || here.len() < 2 || here.iter().min() != Some(&self.rank) {
            return Ok(0);
        }
        let len = self.group_len(here.len(), members.len());
        let resources = self.group_resources.get().ok_or_else(|| closed_region_error(name))?;
        Ok(resources.file()?.reserve_on_use(len)?.start)
    }

    /// The memory of the group `members` on this rank's host, which begins at this offset; 0 for
    /// none.
    pub(in crate::bootstrap) fn memory_at(
        &self,
        start: u64,
        members: &[usize],
    ) -> Option<FileRange> {
        let here = self.on_host_of(members, self.rank).len();
        let len = self.group_len(here, members.len()).get() as u64;
        (start > 0).then_some(FileRange { start, len })
    }

    /// The `members` that are on the host of `rank`.
    pub(crate) fn on_host_of(&self, members: &[usize], rank: usize) -> Vec<usize> {
        let host = self.host_of(rank);
        members.iter().copied().filter(|rank| host.contains(rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupMemory, reserved_len};

    /// The groups of a host's ranks lie one after the other in what one rank has reserved.
    #[test]
    fn all_ways_to_split_a_host_fit_into_the_reserved_memory() {
        const MOST: usize = 64;
        for (over_hosts, is_wide) in [(false, false), (true, false), (true, true)] {
            // A single rank needs no memory.
            let mut longest = vec![0; MOST + 1];
            for size in 2..=MOST {
                let with_group = |ranks: usize| {
                    let all = if over_hosts { ranks..=2 * MOST } else { ranks..=ranks };
                    let len =
                        all.map(|all| GroupMemory::of(ranks, all, is_wide).len).max().unwrap();
                    len + longest[size - ranks]
                };
                longest[size] = (2..=size).map(with_group).max().unwrap().max(longest[size - 1]);
                let reserved = reserved_len(size, over_hosts, is_wide).get();
                assert!(longest[size] <= reserved, "{size} ranks");
            }
        }
    }
}
