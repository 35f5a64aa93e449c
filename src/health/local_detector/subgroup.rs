//! The local detector of a subgroup, which looks at the pages that its parent has mapped. Its
//! entries are in the memory of the subgroup.
//! Law: a subgroup begins without an exchange of its own, so a rank that failed in the parent's
//! call which made it counts as failed here.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{LocalDetector, LocalPeer};
use crate::error::Result;
use crate::error::cause::FailureCause;
use crate::health::control_message::Failure;
use crate::health::process_page::{ProcessPage, own_page};
use crate::health::status_entry::StatusEntry;
use crate::memory::mapping::Region;

/// The ranks of a communicator on this host, as one of them maps the others, for its subgroups.
#[derive(Debug)]
pub(crate) struct HostPages(Arc<BTreeMap<usize, LocalPeer>>);

impl HostPages {
    /// Tells of each of these ranks, by its place among them, whether its process has ended. The
    /// answer keeps the pages alone, since their own memory must not live as long as a subgroup's.
    pub(crate) fn watch(
        &self,
        ranks: impl Iterator<Item = usize>,
    ) -> impl Fn(usize) -> bool + Send + Sync + 'static {
        let pages: Box<[_]> = ranks.map(|rank| Some(self.0.get(&rank)?.page.clone())).collect();
        move |place| pages[place].as_ref().is_some_and(ProcessPage::has_ended)
    }
}

/// The call of the parent that made a subgroup.
#[derive(Debug)]
pub(super) struct ParentCall {
    parent: Arc<HostPages>,
    /// The ranks that the subgroup's ranks have in the parent.
    members: Box<[usize]>,
    /// The number of the call.
    number: u64,
}

/// The memory of the entries of a subgroup: a region, and where they begin in it.
pub(crate) type EntryMemory<'a> = (&'a Arc<Region>, usize);

impl LocalDetector {
    /// Bytes of the entries of so many ranks.
    pub(crate) const fn entry_bytes(ranks: usize) -> NonZeroUsize {
        StatusEntry::BYTES.saturating_mul(NonZeroUsize::MIN.saturating_add(ranks.saturating_sub(1)))
    }

    /// The entry of a rank in memory for all of them.
    pub(super) fn entry_in((region, start): EntryMemory<'_>, rank: usize) -> StatusEntry {
        StatusEntry::at(Arc::clone(region), start + rank * StatusEntry::BYTES.get())
    }

    /// The peers, for subgroups.
    pub(crate) fn pages(&self) -> HostPages {
        HostPages(Arc::clone(&self.peers))
    }

    /// The detector of rank `me` of a subgroup: `members` are its ranks in the parent, whose pages
    /// these are, and `host` those of its ranks that have their entries in this memory, in order.
    /// `call` is the number of the parent's call that makes it, unless its members make it alone.
    ///
    /// # Errors
    /// If there is no memory for its entry.
    pub(crate) fn subgroup(
        parent: &Arc<HostPages>,
        (me, members, host): (usize, &[usize], &[usize]),
        memory: EntryMemory<'_>,
        call: Option<u64>,
    ) -> Result<Self> {
        let (size, own) = (members.len(), own_page()?);
        let mine = Self::entry_in(memory, host.partition_point(|&rank| rank < me));
        mine.open()?;
        let peer = |(place, &rank): (usize, &usize)| {
            let page = parent.0.get(members.get(rank)?)?.page.clone();
            Some((rank, LocalPeer { page, entry: Self::entry_in(memory, place) }))
        };
        let others = host.iter().enumerate().filter(|&(_, &rank)| rank != me);
        let peers = Arc::new(others.filter_map(peer).collect());
        let parent_call =
            |number| ParentCall { parent: Arc::clone(parent), members: members.into(), number };
        let parent_call = call.map(parent_call).map(Box::new);
        Ok(Self { mine: Some((mine, own)), me, size, peers, parent_call })
    }

    /// The failure of a rank in the parent's call that made this communicator, which the rank never
    /// had.
    pub(super) fn failure_before(&self, peer: usize) -> Option<Failure> {
        let ParentCall { parent, members, number } = &**self.parent_call.as_ref()?;
        let old = *members.get(peer)?;
        let progress = parent.0.get(&old)?.entry.progress();
        let failure = progress.failure()?;
        if progress.done.load(Ordering::Acquire) >= *number {
            return None;
        }
        let here = |rank| members.iter().position(|&member| member == rank);
        let cause = failure.cause.renumbered(here).unwrap_or(FailureCause::lost(peer));
        Some(Failure { cause, first_hand: false })
    }
}
