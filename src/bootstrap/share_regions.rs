//! Exchange of regions between all ranks of one host, one of each rank: the control blocks by which
//! devices synchronise. Threads use a table in their process; processes pass descriptors round the
//! ring.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;

use crate::api::{Communicator, Origin};
use crate::error::{Error, Result};
use crate::memory::mapping::Region;

/// The regions of all ranks by rank, or the reason why this rank can't map them.
type Mapped = Result<Vec<Arc<Region>>>;

/// Regions of ranks that are threads, by rank.
#[derive(Debug, Default)]
pub(super) struct RegionTable(Mutex<BTreeMap<usize, Arc<Region>>>);

impl Communicator {
    /// The regions of all ranks, mapped here: `own_fd` is this rank's, and `lens` are the lengths
    /// of all. The ranks must be on one host.
    pub(crate) fn share_regions(
        &mut self,
        name: &'static str,
        own_fd: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let shared = match &*self.origin {
            Origin::Threads(group) => {
                let group = Arc::clone(group);
                self.share_between_threads(name, &group.regions, own_fd, lens)
            }
            Origin::Processes(_) => {
                let next = self.prepare_exchange(name)?;
                let shared = self.share_over_ring(name, own_fd, lens);
                self.engine_on_this_thread(name)?.0.peers.local_detector().enter(next - 1, 0);
                shared
            }
        };
        // The failure is published, since the other ranks wait for descriptors that no longer come.
        shared.map_err(|error| self.break_with(name, error))
    }

    fn share_between_threads(
        &mut self,
        name: &'static str,
        regions: &RegionTable,
        own_fd: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let table = || regions.0.lock().unwrap_or_else(PoisonError::into_inner);
        let me = self.rank();
        let region = Region::open(own_fd.as_fd(), lens[me], "this process");
        let region = region.map(|region| table().insert(me, Arc::new(region)));
        self.internal_barrier(name)?;
        let regions: Vec<_> = table().values().cloned().collect();
        // A second barrier: each rank removes its region after all have read the table.
        self.internal_barrier(name)?;
        table().remove(&me);
        Ok(region.and_then(|_| match regions.len() == self.size() {
            true => Ok(regions),
            false => Err(Error::io("mapping what another thread could not", Errno::ENOMEM)),
        }))
    }

    fn share_over_ring(
        &mut self,
        name: &'static str,
        own_fd: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let (me, size) = (self.rank(), self.size());
        let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
        let mut regions =
            vec![Region::open(own_fd.as_fd(), lens[me], "this process").map(Arc::new)];
        let mut fd = own_fd.try_clone().map_err(|e| Error::io("sharing memory", e))?;
        for step in 1..size {
            self.send_to(name, (next, fd))?;
            fd = self.receive_from(name, step, previous)?;
            let from = (me + size - step) % size;
            let whose = self.peers()[from].to_string();
            // A descriptor that can't be mapped here still goes on to the other ranks.
            regions.push(Region::open(fd.as_fd(), lens[from], &whose).map(Arc::new));
        }
        // Regions arrived in the order me, me - 1, ...; callers want them by rank.
        regions.reverse();
        regions.rotate_left(size - 1 - me);
        Ok(regions.into_iter().collect())
    }
}
