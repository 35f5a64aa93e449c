//! Ranks that are threads of this process: where they meet is a table that they share.
//! May touch: link, plan. Law: the sender makes a link and leaves the other end for its receiver,
//! who waits for it with a deadline; no order of ranks can deadlock.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::setup::last_level_cache;
use super::share::{Board, can_share};
use super::{Communicator, Origin, Seat};
use crate::error::{Error, Peer, Result};
use crate::link::{Links, Rx, loopback};
use crate::plan::{Planner, Slots, least_chunk};
use crate::schedule::Ring;
use crate::sync::{Patience, cpus};

/// All groups that were made of one world of threads, by number.
type Groups = Arc<Mutex<HashMap<u64, Weak<Group>>>>;

/// What the ranks of one communicator share.
pub(super) struct Group {
    pub(super) job: u64,
    /// How many ranks share this host's CPUs, in this group or not.
    residents: usize,
    /// The largest of them that has links between all pairs.
    all_pairs: u32,
    groups: Groups,
    /// Ends of links that wait for their receivers, by sender and receiver.
    ends: Mutex<HashMap<(usize, usize), Box<dyn Rx>>>,
    came: Condvar,
    /// Where they find each other's registered memory.
    pub(super) board: Board,
}

impl Group {
    /// That of a new world.
    pub(super) fn new(residents: usize, all_pairs: u32) -> Arc<Self> {
        Arc::new(Self::of(0, residents, all_pairs, Groups::default()))
    }

    fn of(job: u64, residents: usize, all_pairs: u32, groups: Groups) -> Self {
        let (ends, came, board) = (Mutex::default(), Condvar::new(), Board::default());
        Self { job, residents, all_pairs, groups, ends, came, board }
    }

    /// One of some of these ranks: the same for all that name this number.
    pub(super) fn branch(&self, job: u64) -> Arc<Self> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&job).and_then(Weak::upgrade) {
            return group;
        }
        let group = Self::of(job, self.residents, self.all_pairs, Arc::clone(&self.groups));
        let group = Arc::new(group);
        groups.retain(|_, group| group.strong_count() > 0);
        groups.insert(job, Arc::downgrade(&group));
        group
    }

    fn leave(&self, from: usize, to: usize, end: Box<dyn Rx>) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert((from, to), end);
        self.came.notify_all();
    }

    fn find(&self, from: usize, to: usize, until: Instant) -> Option<Box<dyn Rx>> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(end) = ends.remove(&(from, to)) {
                return Some(end);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let woken = self.came.wait_timeout(ends, left);
            ends = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A rank whose own links are made.
pub(super) struct Ready {
    group: Arc<Group>,
    rank: usize,
    peers: Arc<[Peer]>,
    planner: Planner,
    links: Links,
}

impl Ready {
    /// Makes the links that `rank` of `peers` sends on.
    pub(super) fn new(group: Arc<Group>, rank: usize, peers: Arc<[Peer]>) -> Result<Self> {
        let ring = Ring::natural(peers.len() as u32).with_all_pairs(group.all_pairs);
        let least = least_chunk(false, group.residents.div_ceil(cpus()));
        let planner = Planner::new(ring, rank as u32, Slots::of(false, peers.len()), least);
        let mut links = Links::new(peers.len());
        for to in planner.peers() {
            let (tx, rx) = loopback::pair(planner.slots(rank as u32, to))?;
            links.add_tx(to as usize, tx);
            group.leave(rank, to as usize, rx);
        }
        Ok(Self { group, rank, peers, planner, links })
    }

    /// Finds those that it receives from.
    pub(super) fn meet(self, timeout: Duration) -> Result<Communicator> {
        let Self { group, rank, peers, planner, mut links } = self;
        let until = Instant::now() + timeout;
        for from in planner.peers().into_iter().map(|from| from as usize) {
            let end = group.find(from, rank, until).ok_or_else(|| Error::Handshake {
                peer: peers[from].to_string(),
                reason: format!("it did not come within {timeout:.1?}"),
            })?;
            links.add_rx(from, end);
        }
        let shares = can_share(peers.len());
        let seat = Seat {
            rank,
            local_rank: rank,
            local_size: peers.len(),
            peers,
            transports: links.transports(),
            shares,
            origin: Origin::Threads(Arc::clone(&group)),
        };
        let patience = Patience::for_ranks(group.residents);
        Ok(Communicator::new(
            seat,
            Engine::new(planner, links, patience, last_level_cache()),
            timeout,
        ))
    }
}
