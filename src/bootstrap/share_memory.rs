//! How ranks come to map each other's memory: threads find it on a board in their process,
//! processes hand descriptors round the ring over the streams of its links. May touch:
//! link, shared. Law: nothing is named, and every wait has a deadline.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::api::{Communicator, Origin};
use crate::config::deadline_after;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exec::direct::MOST_RANKS;
use crate::exec::{Halt, Stop};
use crate::health::Links;
use crate::memory::Control;
use crate::memory::mapping::Region;
use crate::plan::{Planner, stage};
use crate::transport::Fault;
use crate::transport::{recv_fd, send_fd};

/// How often a rank that waits for a descriptor looks for an abort.
const GLANCE: Duration = Duration::from_millis(10);

/// The memory of all ranks, unless this one can't map it.
type Mapped = Result<Vec<Arc<Region>>>;

/// Where ranks that are threads find each other's memory, by rank.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<BTreeMap<usize, Arc<Region>>>);

/// Can so many ranks map each other's memory, if they are on one host?
pub(super) fn can_share(size: usize) -> bool {
    (2..=MOST_RANKS).contains(&size)
}

/// Do the ranks of such a world have their lines and stages from the start, if they are on one
/// host? As they have links between all pairs; large worlds, which would spend too much on it, have
/// them from the first registration on.
pub(super) fn has_lines(planner: &Planner) -> bool {
    stage(planner.ring()) > 0
}

impl Engine {
    /// From now on ranks see each other's lines, and calls may go without links.
    pub(super) fn lay_open(&mut self, rank: usize, lines: Vec<Arc<Region>>) {
        let stage = stage(self.planner.ring());
        if stage > 0 {
            self.planner.set_stage(stage.min(Control::stage_len()));
        }
        self.registry.open(Control::new(rank, lines, self.cache_bytes));
    }
}

impl Communicator {
    /// Shares the lines of ranks on one host.
    pub(crate) fn share_lines(&mut self, name: &'static str) -> Result<()> {
        let len = Control::footprint();
        let mine = Region::create(len).map_err(|error| self.broken_by(name, error))?;
        let lines = self.share(name, &mine, &vec![len; self.size()])?;
        let lines = lines.map_err(|error| self.broken_by(name, error))?;
        let me = self.rank();
        self.at_home(name)?.0.lay_open(me, lines);
        Ok(())
    }

    /// Every rank's memory, mapped here if that is possible: `mine` is this rank's, and all say how
    /// long theirs are. Only where ranks share a host.
    pub(crate) fn share(
        &mut self,
        name: &'static str,
        mine: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let shared = match &self.seat.origin {
            Origin::Threads(group) => {
                let group = Arc::clone(group);
                self.post(name, &group.board, mine, lens)
            }
            Origin::Processes(_) => {
                // It prepares the next call: who ends meanwhile, or does not come, is missed.
                let next = self.at_home(name)?.0.sequence + 1;
                self.at_home(name)?.0.links.lives().prepare(next);
                let shared = self.hand_round(name, mine, lens);
                self.at_home(name)?.0.links.lives().enter(next - 1, 0);
                shared
            }
        };
        // The others wait for what can't come any more: let them know.
        shared.map_err(|error| self.broken_by(name, error))
    }

    fn post(
        &mut self,
        name: &'static str,
        board: &Board,
        mine: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let places = || board.0.lock().unwrap_or_else(PoisonError::into_inner);
        let me = self.rank();
        let region = Region::open(mine.as_fd(), lens[me], "this process");
        let region = region.map(|region| places().insert(me, Arc::new(region)));
        self.meet_in(name)?;
        let found: Vec<_> = places().values().cloned().collect();
        // Nobody takes his down before all have looked.
        self.meet_in(name)?;
        places().remove(&me);
        Ok(region.and_then(|_| match found.len() == self.size() {
            true => Ok(found),
            false => Err(Error::io("mapping what another thread could not", Errno::ENOMEM)),
        }))
    }

    fn hand_round(
        &mut self,
        name: &'static str,
        mine: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let (me, size) = (self.rank(), self.size());
        let (next, prev) = ((me + 1) % size, (me + size - 1) % size);
        let timeout = self.settings.timeout;
        let until = deadline_after(timeout);
        let mut found = vec![Region::open(mine.as_fd(), lens[me], "this process").map(Arc::new)];
        let mut fd = mine.try_clone().map_err(|e| Error::io("sharing memory", e))?;
        for step in 1..size {
            let lost = |fault| Stop::Fault(fault);
            let sent = stream(&mut self.at_home(name)?.0.links, next, true).map_err(lost).and_then(
                |stream| {
                    send_fd(stream, fd)
                        .map_err(|e| Stop::Fault(Fault::Lost(format!("no way to it: {e}"))))
                },
            );
            sent.map_err(|stop| self.fail(name, Halt { stop, step, peer: next }))?;
            let abort = Arc::clone(&self.abort);
            let taken = take(&mut self.at_home(name)?.0.links, prev, (until, timeout), &abort);
            fd = taken.map_err(|stop| self.fail(name, Halt { stop, step, peer: prev }))?;
            let from = (me + size - step) % size;
            let whose = self.peers()[from].to_string();
            // What can't be mapped here goes on to the others all the same.
            found.push(Region::open(fd.as_fd(), lens[from], &whose).map(Arc::new));
        }
        // They came in the order me, me - 1, ...: put them in that of ranks.
        found.reverse();
        found.rotate_left(size - 1 - me);
        Ok(found.into_iter().collect())
    }
}

/// The stream to or from a neighbour.
fn stream(links: &mut Links, peer: usize, to: bool) -> Result<&UnixStream, Fault> {
    let life = if to { links.tx(peer)?.life() } else { links.rx(peer)?.life() };
    life.ok_or_else(|| Fault::Lost("there is no stream to hand memory over".into()))
}

/// The descriptor that comes from a neighbour.
fn take(
    links: &mut Links,
    from: usize,
    (until, timeout): (Instant, Duration),
    abort: &std::sync::atomic::AtomicBool,
) -> Result<OwnedFd, Stop> {
    let began = Instant::now();
    loop {
        let now = Instant::now();
        match recv_fd(stream(links, from, false)?, until.min(now + GLANCE)) {
            Ok(fd) => return Ok(fd),
            Err(_) if abort.load(Ordering::Relaxed) => return Err(Stop::Aborted),
            Err(error) if error.kind() != std::io::ErrorKind::TimedOut => {
                return Err(Stop::Fault(Fault::Lost(format!("no memory came from it: {error}"))));
            }
            Err(_) if now >= until => return Err(Stop::Timeout(timeout)),
            Err(_) => {}
        }
        if let Some((peer, fault)) = links.cause(None, |_, _| false) {
            return Err(Stop::Other { peer, fault });
        }
        links.wait_on((began.elapsed(), timeout), None);
    }
}
