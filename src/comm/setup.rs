//! Making communicators: from the environment, by hand, or as threads of this process.
//! May touch: config, rendezvous, link, plan.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::Communicator;
use super::registered::Registry;
use super::share::Host;
use crate::config::{Config, Transport};
use crate::error::{Error, Peer, Result};
use crate::exec::direct::MOST_RANKS;
use crate::link::tcp::{self, Settings, tune};
use crate::link::{Links, loopback, shm};
use crate::partition::SlotShape;
use crate::plan::Planner;
use crate::rendezvous::{Meeting, PairKey, Streams, meet};
use crate::schedule::Ring;
use crate::sync::{Patience, cpus};

/// 64 KiB x 16 stays in a core's cache and was best or near it for every size and world measured
/// on shared memory.
const SHM_SLOTS: SlotShape = SlotShape { bytes: 64 << 10, capacity: 16 };

/// A system call per slot wants larger ones, as soon as any link runs over TCP.
const TCP_SLOTS: SlotShape = SlotShape { bytes: 256 << 10, capacity: 8 };

/// The shortest chunk worth a message of its own. Where ranks have to take turns on a CPU each
/// message costs a turn, and a ring makes 2n(n-1) of them unless it leaves chunks empty: with four
/// ranks a CPU, 512 bytes over TCP took 510 us in eight chunks and 115 us in one.
fn least_chunk(tcp: bool, crowding: usize) -> usize {
    let (alone, crowded) = if tcp { (4 << 10, 4 << 10) } else { (256, 1 << 10) };
    if crowding == 1 { alone } else { (crowded * crowding * crowding).min(64 << 10) }
}

/// Bytes of the cache that all CPUs share; results that exceed it are stored past it.
fn last_level_cache() -> usize {
    let size = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let kilobytes = size.ok().and_then(|text| text.trim().strip_suffix('K')?.parse().ok());
    kilobytes.unwrap_or(32 << 10) << 10
}

/// Settings of a communicator. What is not set here comes from the environment, except that a
/// program which says who it is (`rank` and `size`) is not contradicted by a launcher's variables.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    rank: Option<usize>,
    size: Option<usize>,
    store: Option<String>,
    timeout: Option<Duration>,
    transport: Option<Transport>,
    interface: Option<String>,
}

impl Builder {
    /// This process's rank, from 0; needs `size` too.
    #[must_use]
    pub fn rank(self, rank: usize) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// The world size; needs `rank` too.
    #[must_use]
    pub fn size(self, size: usize) -> Self {
        Self { size: Some(size), ..self }
    }

    /// Where ranks meet: `host:port` (rank 0 listens there), `unix:@name` or `fd:N`.
    #[must_use]
    pub fn store(self, address: &str) -> Self {
        Self { store: Some(address.into()), ..self }
    }

    /// The longest that any wait lasts, while meeting and in every call; 300 s if nobody says.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Forces a transport.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        Self { transport: Some(transport), ..self }
    }

    /// Which network interfaces may be used: prefixes, `^` excludes, `=` is exact, or a subnet.
    #[must_use]
    pub fn interface(self, interface: &str) -> Self {
        Self { interface: Some(interface.into()), ..self }
    }

    /// Meets the other ranks and opens the links of the ring.
    ///
    /// # Errors
    /// If a setting makes no sense, or the others can't be met in time.
    pub fn build(self) -> Result<Communicator> {
        Communicator::meet(&self.config()?)
    }

    fn config(self) -> Result<Config> {
        let mut config = match (self.rank, self.size) {
            (None, None) => Config::from_env()?,
            (Some(rank), Some(size)) => Config { rank, size, ..Config::settings()? },
            (rank, size) => {
                return Err(Error::Argument {
                    call: "build",
                    argument: if rank.is_none() { "rank" } else { "size" },
                    given: "not set".into(),
                    expected: format!(
                        "set, as {} is",
                        if size.is_none() { "rank" } else { "size" }
                    ),
                });
            }
        };
        if let Some(store) = self.store {
            let wrong =
                |expected| Error::Config { name: "store".into(), given: store.clone(), expected };
            config.store = Some(store.parse().map_err(wrong)?);
        }
        config.timeout = self.timeout.unwrap_or(config.timeout);
        config.transport = self.transport.unwrap_or(config.transport);
        config.interface = self.interface.or(config.interface);
        Ok(config)
    }
}

impl Communicator {
    /// The rank that the environment describes: under ringrun, torchrun, Open MPI, MPICH, Intel MPI
    /// or Slurm; without any of them a world of one rank.
    ///
    /// # Errors
    /// If a variable is malformed, launchers disagree, or the others can't be met in time.
    pub fn from_env() -> Result<Self> {
        Self::meet(&Config::from_env()?)
    }

    /// Settings by hand.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `n` ranks that are threads of this process; give each to a thread of its own.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let ranks = Communicator::local(4)?;
    /// std::thread::scope(|scope| {
    ///     for mut comm in ranks {
    ///         scope.spawn(move || {
    ///             let mut numbers = [comm.rank() as f32, 1.0];
    ///             let done = comm.all_reduce(&mut numbers, ReduceOp::Sum);
    ///             assert!(done.is_ok());
    ///             assert_eq!(numbers, [6.0, 4.0]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `n` is 0, the links' memory can't be had or a `RINGREDUCE_*` setting is malformed.
    pub fn local(n: usize) -> Result<Vec<Self>> {
        if n == 0 || n > u32::MAX as usize {
            let expected = "1 to 4294967295".into();
            let (call, argument) = ("local", "n");
            return Err(Error::Argument { call, argument, given: n.to_string(), expected });
        }
        let timeout = Config::settings()?.timeout;
        let host = crate::rendezvous::host_name();
        let pid = std::process::id();
        let peers: Arc<[Peer]> =
            (0..n).map(|rank| Peer { rank, host: host.clone(), pid }).collect();
        let ring = Ring::natural(n as u32);
        let least = least_chunk(false, n.div_ceil(cpus()));
        let cache = last_level_cache();
        let planner = |rank| Planner::new(ring.clone(), rank as u32, SHM_SLOTS, least);
        let planners: Vec<Planner> = (0..n).map(planner).collect();
        let mut links: Vec<Links> = (0..n).map(|_| Links::new(n)).collect();
        for (from, planner) in planners.iter().enumerate() {
            for to in planner.peers().0.into_iter().map(|to| to as usize) {
                let (tx, rx) = loopback::pair(SHM_SLOTS)?;
                links[from].add_tx(to, tx);
                links[to].add_rx(from, rx);
            }
        }
        let board = (2..=MOST_RANKS).contains(&n).then(|| Host::threads(n));
        let make = |((rank, links), planner)| Self {
            rank,
            local_rank: rank,
            local_size: n,
            peers: Arc::clone(&peers),
            planner,
            links,
            patience: Patience::for_ranks(n),
            timeout,
            cache,
            abort: Arc::new(AtomicBool::new(false)),
            registry: Registry::new(match &board {
                Some(board) => Host::Threads(Arc::clone(board)),
                None => Host::Apart,
            }),
            sequence: 0,
            broken: None,
        };
        Ok(links.into_iter().enumerate().zip(planners).map(make).collect())
    }

    fn meet(config: &Config) -> Result<Self> {
        let deadline = Instant::now() + config.timeout;
        let mut meeting = meet(config)?;
        let order = meeting.ring_order().into_iter().map(|rank| rank as u32).collect();
        let ring = Ring::new(order).ok_or_else(|| {
            Error::io("ordering the ring", std::io::Error::other("the hosts' ranks overlap"))
        })?;
        let slots = if meeting.needs_tcp() { TCP_SLOTS } else { SHM_SLOTS };
        let least = least_chunk(meeting.needs_tcp(), meeting.crowding());
        let rank = meeting.rank;
        let planner = Planner::new(ring, rank as u32, slots, least);
        let links = connect(&mut meeting, &planner, config, slots, deadline)?;
        let apart = meeting.needs_tcp() || !(2..=MOST_RANKS).contains(&meeting.size());
        Ok(Self {
            rank,
            local_rank: meeting.local_rank(),
            local_size: meeting.local_size(),
            peers: meeting.peers.iter().map(|info| info.peer()).collect(),
            planner,
            links,
            patience: Patience::for_ranks(meeting.local_size()),
            timeout: config.timeout,
            cache: last_level_cache(),
            abort: Arc::new(AtomicBool::new(false)),
            registry: Registry::new(if apart { Host::Apart } else { Host::Processes }),
            sequence: 0,
            broken: None,
        })
    }
}

/// The links that a planner's plans walk over.
fn connect(
    meeting: &mut Meeting,
    planner: &Planner,
    config: &Config,
    slots: SlotShape,
    deadline: Instant,
) -> Result<Links> {
    let (me, size) = (meeting.rank, meeting.size());
    let mut links = Links::new(size);
    if size == 1 {
        return Ok(links);
    }
    let (to, from) = planner.peers();
    let dial: Vec<_> = to.into_iter().map(|to| PairKey { from: me, to: to as usize }).collect();
    let accept: Vec<_> =
        from.into_iter().map(|from| PairKey { from: from as usize, to: me }).collect();
    let settings = Settings { congestion: config.tcp_congestion.clone(), ..Settings::default() };
    for connection in meeting.connect(&dial, &accept)? {
        let PairKey { from, to } = connection.pair;
        match connection.streams {
            Streams::Shm(life) if from == me => links.add_tx(to, shm::sender(slots, life)?),
            Streams::Shm(life) => {
                let peer = meeting.peers[from].peer().to_string();
                links.add_rx(from, shm::receiver(slots, life, &peer, deadline)?);
            }
            Streams::Tcp(streams) => {
                streams.iter().try_for_each(|stream| tune(stream, &settings))?;
                if from == me {
                    links.add_tx(to, Box::new(tcp::Tx::new(streams, slots, 0)?));
                } else {
                    links.add_rx(from, Box::new(tcp::Rx::new(streams, slots, 0)?));
                }
            }
        }
    }
    Ok(links)
}
