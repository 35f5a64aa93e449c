//! The detector of a subgroup on one host, which looks at the pages that its parent has mapped. Its
//! entries are in the memory of the subgroup, so there is no limit to their number.
//! Law: a subgroup begins without an exchange of its own, so a rank that failed in the parent's
//! call which made it counts as failed here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{LocalDetector, LocalPeer};
use crate::error::Result;
use crate::error::cause::FailureCause;
use crate::health::control_message::Failure;
use crate::health::exit_futex;
use crate::health::status_page::{StatusPage, entry_key, own_status_page};
use crate::memory::mapping::Region;

/// The status pages and entries of a communicator's ranks on this host, for its subgroups.
#[derive(Debug)]
pub(crate) struct HostPages {
    /// The key of the communicator.
    key: u64,
    /// The page of each rank's process, and where the rank's entry is.
    pages: BTreeMap<usize, [StatusPage; 2]>,
}

impl HostPages {
    /// True if the process of a rank has ended.
    pub(crate) fn has_ended(&self, rank: usize) -> bool {
        let pages = self.pages.get(&rank);
        pages.is_some_and(|[page, _]| exit_futex::owner_died(page.exit_word()))
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
    /// Bytes of the entries of a subgroup of so many ranks.
    pub(crate) fn entry_bytes(ranks: usize) -> usize {
        StatusPage::bytes_of(ranks)
    }

    /// The pages of the peers, for subgroups.
    pub(crate) fn pages(&self) -> HostPages {
        let pages = self.peers.iter().map(|(&rank, peer)| {
            let LocalPeer { page, entries, .. } = peer;
            (rank, [page.clone(), entries.clone()])
        });
        HostPages { key: self.key, pages: pages.collect() }
    }

    /// The detector of rank `me` of a subgroup with this key: `members` are its ranks in the
    /// parent, whose pages these are, and `call` is the number of the parent's call that makes it,
    /// unless its members make it alone.
    ///
    /// # Errors
    /// If there is no memory for its entry.
    pub(crate) fn subgroup(
        parent: &Arc<HostPages>,
        (me, members): (usize, &[usize]),
        key: u64,
        (region, start): EntryMemory<'_>,
        call: Option<u64>,
    ) -> Result<Self> {
        let (size, own) = (members.len(), own_status_page()?);
        let entries = StatusPage::of_group(Arc::clone(region), start, size);
        entries.claim_of_rank(me, entry_key(key, me))?;
        let others = members.iter().enumerate().filter(|&(rank, _)| rank != me);
        let peer = |(rank, old): (usize, &usize)| {
            let [page, _] = parent.pages.get(old)?.clone();
            let (entries, entry) = (entries.clone(), AtomicUsize::new(rank));
            Some((rank, LocalPeer { page, entries, entry }))
        };
        let peers = others.filter_map(peer).collect();
        let parent_call =
            |number| ParentCall { parent: Arc::clone(parent), members: members.into(), number };
        let parent_call = call.map(parent_call).map(Box::new);
        Ok(Self { own: Some(own), mine: Some((entries, me)), me, key, size, peers, parent_call })
    }

    /// The failure of a rank in the parent's call that made this communicator, which the rank never
    /// had.
    pub(super) fn failure_before(&self, peer: usize) -> Option<Failure> {
        let ParentCall { parent, members, number } = &**self.parent_call.as_ref()?;
        let old = *members.get(peer)?;
        let [_, entries] = parent.pages.get(&old)?;
        let progress = entries.progress(entries.find(entry_key(parent.key, old))?);
        let failure = progress.failure()?;
        if progress.done.load(Ordering::Acquire) >= *number {
            return None;
        }
        let here = |rank| members.iter().position(|&member| member == rank);
        let cause = failure.cause.renumbered(here).unwrap_or(FailureCause::lost(peer));
        Some(Failure { cause, first_hand: false })
    }
}
