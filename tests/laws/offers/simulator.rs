//! The simulator of offers, by which ranks that share a host's region find out whether all of them
//! have registered their buffers of a call. It walks all orders of the ranks' single reads and
//! writes.
//! Law: in each call all ranks decide as their memory says: directly if all have registered it, and
//! otherwise none of them; and no rank waits for ever.

use std::collections::HashSet;

/// One call: the ranks that have registered their buffers, and the rank, if any, that does not wait
/// for the others where the call is not direct.
#[derive(Clone, Debug)]
pub(crate) struct OfferedCall {
    /// By rank.
    pub(crate) registered: Vec<bool>,
    /// The root of a broadcast.
    pub(crate) root: Option<usize>,
}

/// Why a walk breaks the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferViolation {
    /// A rank decides otherwise than the memory of all ranks says.
    Decision {
        /// The rank.
        rank: usize,
        /// The index of the call.
        call: usize,
    },
    /// No rank can move.
    Deadlock,
}

/// Calls one after the other, and how ranks make them.
#[derive(Clone, Debug)]
pub(crate) struct Offers {
    calls: Vec<OfferedCall>,
    /// True if direct calls also hand blocks over, as calls that are not direct do.
    has_edges: bool,
    /// True if a rank takes a block of a peer for a call without an offer at once.
    looks_once: bool,
}

/// Where a rank is in its call. A number of a peer counts from the next rank on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Start,
    /// Reads the offer of a peer.
    Look(usize),
    /// The offer was of an earlier call: reads whether the peer has begun.
    LookForBlock(usize),
    /// The peer has begun: reads its offer once more.
    LookAgain(usize),
    Direct,
    Folded,
    Otherwise,
}

/// A rank: the index of its call, and the numbers of the latest calls of which it has published an
/// offer, a block, and the end of a direct call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Rank {
    call: usize,
    at: At,
    offered: usize,
    begun: usize,
    folded: usize,
}

impl Offers {
    /// The calls, as ranks make them.
    #[must_use]
    pub(crate) fn new(calls: Vec<OfferedCall>, has_edges: bool) -> Self {
        Self { calls, has_edges, looks_once: false }
    }

    /// Ranks that do not look again, to see that the walk notices.
    #[must_use]
    pub(crate) fn looking_once(self) -> Self {
        Self { looks_once: true, ..self }
    }

    /// Walks all orders, and returns the number of states.
    ///
    /// # Errors
    /// A violation.
    pub(crate) fn walk(&self) -> Result<usize, OfferViolation> {
        let size = self.calls.first().map_or(0, |call| call.registered.len());
        let rank = Rank { call: 0, at: At::Start, offered: 0, begun: 0, folded: 0 };
        let mut seen = HashSet::from([vec![rank; size]]);
        let mut open: Vec<_> = seen.iter().cloned().collect();
        while let Some(ranks) = open.pop() {
            let mut has_moved = ranks.iter().all(|rank| rank.call == self.calls.len());
            for me in 0..size {
                let Some(moved) = self.advance(&ranks, me)? else { continue };
                has_moved = true;
                let mut ranks = ranks.clone();
                ranks[me] = moved;
                if seen.insert(ranks.clone()) {
                    open.push(ranks);
                }
            }
            if !has_moved {
                return Err(OfferViolation::Deadlock);
            }
        }
        Ok(seen.len())
    }

    /// The next state of a rank; `None` if it waits or has made all calls.
    fn advance(&self, ranks: &[Rank], me: usize) -> Result<Option<Rank>, OfferViolation> {
        let rank = ranks[me];
        let Some(call) = self.calls.get(rank.call) else { return Ok(None) };
        // Calls are numbered from 1.
        let number = rank.call + 1;
        let all = |has: fn(&Rank) -> usize| ranks.iter().all(|rank| has(rank) >= number);
        let peer = |after: usize| &ranks[(me + after) % ranks.len()];
        let to = |at| Ok(Some(Rank { at, ..rank }));
        let ended = Rank { call: rank.call + 1, at: At::Start, ..rank };
        match rank.at {
            At::Start if call.registered[me] => {
                Ok(Some(Rank { offered: number, at: At::Look(1), ..rank }))
            }
            At::Start => self.decide(rank, me, false),
            At::Look(after) | At::LookAgain(after) if peer(after).offered == number => {
                if after + 1 < ranks.len() {
                    to(At::Look(after + 1))
                } else {
                    self.decide(rank, me, true)
                }
            }
            At::Look(after) => to(At::LookForBlock(after)),
            At::LookForBlock(after) => {
                let Rank { offered, begun, .. } = *peer(after);
                match begun >= number || offered > number {
                    true if self.looks_once => self.decide(rank, me, false),
                    true => to(At::LookAgain(after)),
                    false if offered == number => to(At::Look(after)),
                    false => Ok(None),
                }
            }
            At::LookAgain(_) => self.decide(rank, me, false),
            At::Direct if self.has_edges && !all(|rank| rank.begun) => Ok(None),
            At::Direct => Ok(Some(Rank { folded: number, at: At::Folded, ..rank })),
            At::Folded => Ok(all(|rank| rank.folded).then_some(ended)),
            At::Otherwise => {
                let has_root = |root: usize| root == me || ranks[root].begun >= number;
                Ok(call.root.map_or_else(|| all(|rank| rank.begun), has_root).then_some(ended))
            }
        }
    }

    fn decide(
        &self,
        rank: Rank,
        me: usize,
        is_direct: bool,
    ) -> Result<Option<Rank>, OfferViolation> {
        let call = rank.call;
        if is_direct != self.calls[call].registered.iter().all(|&is_registered| is_registered) {
            return Err(OfferViolation::Decision { rank: me, call });
        }
        let begun = if is_direct && !self.has_edges { rank.begun } else { call + 1 };
        let at = if is_direct { At::Direct } else { At::Otherwise };
        Ok(Some(Rank { begun, at, ..rank }))
    }
}
