//! Ranks that are threads of this process: where they meet is a table that they share.
//! May touch: link, plan, shared. Law: the sender makes a link and leaves the other end for its
//! receiver, who waits for it with a deadline; no order of ranks can deadlock.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::setup::last_level_cache;
use super::share_memory::{Board, can_share, has_lines};
use crate::api::{Communicator, Origin, Seat};
use crate::config::deadline_after;
use crate::engine::Engine;
use crate::error::{Error, Peer, Result};
use crate::health::Links;
use crate::health::local_detector::Lives;
use crate::health::process_table::Launched;
use crate::memory::Control;
use crate::memory::mapping::Region;
use crate::plan::{Planner, Slots, least_chunk};
use crate::schedule::Ring;
use crate::sync::{Patience, cpus};
use crate::trace::Recorder;
use crate::transport::{Rx, loopback};

/// How often a rank that waits for others looks for an abort.
const GLANCE: Duration = Duration::from_millis(10);

/// All groups that were made of one world of threads, by number.
type Groups = Arc<Mutex<HashMap<u64, Weak<Group>>>>;

/// What the ranks of one communicator share.
pub(crate) struct Group {
    pub(super) job: u64,
    /// No other group of this process has it.
    number: u64,
    /// How many ranks share this host's CPUs, in this group or not.
    residents: usize,
    /// The largest of them that has links between all pairs.
    all_pairs: u32,
    groups: Groups,
    left: Mutex<Left>,
    came: Condvar,
    /// Where they find each other's registered memory.
    pub(super) board: Board,
}

/// What ranks leave for others.
#[derive(Default)]
struct Left {
    /// Ends of links that wait for their receivers, by sender and receiver.
    ends: HashMap<(usize, usize), Box<dyn Rx>>,
    /// Lines and stages, by rank.
    lines: HashMap<usize, Arc<Region>>,
}

impl Group {
    /// That of a new world.
    pub(super) fn new(residents: usize, all_pairs: u32) -> Arc<Self> {
        Arc::new(Self::of(0, residents, all_pairs, Groups::default()))
    }

    fn of(job: u64, residents: usize, all_pairs: u32, groups: Groups) -> Self {
        static GROUPS: AtomicU64 = AtomicU64::new(1);
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let (left, came, board) = (Mutex::default(), Condvar::new(), Board::default());
        Self { job, number, residents, all_pairs, groups, left, came, board }
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

    fn leave<T>(&self, thing: impl FnOnce(&mut Left) -> T) {
        thing(&mut self.left.lock().unwrap_or_else(PoisonError::into_inner));
        self.came.notify_all();
    }

    /// What `from` leaves.
    fn find<T>(
        &self,
        from: &Peer,
        timeout: Duration,
        (until, abort): (Instant, &AtomicBool),
        thing: impl Fn(&mut Left) -> Option<T>,
    ) -> Result<T> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = thing(&mut left) {
                return Ok(found);
            }
            let time = until.checked_duration_since(Instant::now());
            let Some(time) = time.filter(|_| !abort.load(Ordering::Relaxed)) else {
                let reason = format!("it did not come within {timeout:.1?}");
                return Err(Error::Handshake { peer: from.to_string(), reason });
            };
            let woken = self.came.wait_timeout(left, time.min(GLANCE));
            left = woken.unwrap_or_else(PoisonError::into_inner).0;
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
            group.leave(|left| left.ends.insert((rank, to as usize), rx));
        }
        if has_lines(&planner) {
            let len = Control::footprint();
            let region = Region::open(Region::create(len)?.as_fd(), len, "this process")?;
            group.leave(|left| left.lines.insert(rank, Arc::new(region)));
        }
        Ok(Self { group, rank, peers, planner, links })
    }

    /// Finds those that it receives from, unless the flag is raised, which then is its own.
    pub(super) fn meet(
        self,
        timeout: Duration,
        abort: &Arc<AtomicBool>,
        recorder: &Arc<Recorder>,
    ) -> Result<Communicator> {
        let Self { group, rank, peers, planner, mut links } = self;
        let until = (deadline_after(timeout), &**abort);
        for from in planner.peers().into_iter().map(|from| from as usize) {
            let end = |left: &mut Left| left.ends.remove(&(from, rank));
            links.add_rx(from, group.find(&peers[from], timeout, until, end)?);
        }
        if peers.len() > 1 {
            let (mut lives, _) = Lives::new(rank, peers.len(), group.number)?;
            (0..peers.len()).filter(|&peer| peer != rank).for_each(|peer| lives.add_beside(peer));
            links.set_lives(lives, Launched::default());
        }
        let lines = peers.iter().filter(|_| has_lines(&planner)).map(|peer| {
            group.find(peer, timeout, until, |left| left.lines.get(&peer.rank).map(Arc::clone))
        });
        let lines = lines.collect::<Result<Vec<_>>>()?;
        let shares = can_share(peers.len());
        let seat = Seat {
            rank,
            local_rank: rank,
            local_size: peers.len(),
            peers: Arc::clone(&peers),
            transports: links.transports(),
            shares,
            flight: recorder.communicator(group.job, rank, peers),
            origin: Origin::Threads(Arc::clone(&group)),
        };
        let patience = Patience::for_ranks(group.residents);
        let mut engine = Engine::new(planner, links, patience, last_level_cache());
        engine.abort = Arc::clone(abort);
        if !lines.is_empty() {
            engine.lay_open(rank, lines);
        }
        Ok(Communicator::new(seat, engine, timeout))
    }
}
