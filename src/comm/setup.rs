//! Making communicators: from the environment, by hand, or as threads of this process.
//! May touch: config, rendezvous, link, plan.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::Communicator;
use crate::error::{Error, Peer, Result};
use crate::link::{Links, loopback};
use crate::partition::SlotShape;
use crate::plan::Planner;
use crate::schedule::Ring;
use crate::sync::Patience;

/// 64 KiB x 16 stays in a core's cache and was best or near it for every size and world measured
/// on shared memory.
const SHM_SLOTS: SlotShape = SlotShape { bytes: 64 << 10, capacity: 16 };

/// Settings of a communicator; what is not set comes from the environment.
#[derive(Clone, Debug, Default)]
pub struct Builder {}

impl Communicator {
    /// `n` ranks that are threads of this process; give each to a thread of its own.
    ///
    /// # Errors
    /// If `n` is 0 or the links' memory can't be had.
    pub fn local(n: usize) -> Result<Vec<Self>> {
        if n == 0 || u32::try_from(n).is_err() {
            let expected = "1 to 4294967295".into();
            let (call, argument) = ("local", "n");
            return Err(Error::Argument { call, argument, given: n.to_string(), expected });
        }
        let host = "localhost".to_owned();
        let pid = std::process::id();
        let peers: Arc<[Peer]> =
            (0..n).map(|rank| Peer { rank, host: host.clone(), pid }).collect();
        let ring = Ring::natural(n as u32);
        let mut links: Vec<Links> = (0..n).map(|_| Links::new(n)).collect();
        for from in (0..n).filter(|_| n > 1) {
            let to = ring.after(from as u32, 1) as usize;
            let (tx, rx) = loopback::pair(SHM_SLOTS)?;
            links[from].add_tx(to, tx);
            links[to].add_rx(from, rx);
        }
        let make = |(rank, links)| Self {
            rank,
            local_rank: rank,
            local_size: n,
            peers: Arc::clone(&peers),
            planner: Planner::new(ring.clone(), rank as u32, SHM_SLOTS),
            links,
            patience: Patience::for_ranks(n),
            timeout: Duration::from_secs(300),
            abort: Arc::new(AtomicBool::new(false)),
            sequence: 0,
            broken: None,
        };
        Ok(links.into_iter().enumerate().map(make).collect())
    }
}
