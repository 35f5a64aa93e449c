//! Making communicators: from the environment, by hand, or as threads of this process.
//! May touch: config, rendezvous, link, plan.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect::{PairKey, Streams};
use super::in_process::{Group, Ready};
use super::share_memory::{can_share, has_lines};
use super::{Meeting, gather};
use crate::api::options::{Preferences, Told};
use crate::api::{Communicator, Origin, Seat};
use crate::config::{Config, SECRET, Secret, SecretSource, Transport, deadline_after};
use crate::engine::Engine;
use crate::error::{Error, Peer, Result};
use crate::health::Links;
use crate::health::control_channel::Controls;
use crate::health::local_detector::Lives;
use crate::plan::{Planner, Slots, least_chunk};
use crate::schedule::Ring;
use crate::sync::Patience;
use crate::trace::Recorder;
use crate::trace::launcher_record;
use crate::transport::descriptor_passing::wait_readable;
use crate::transport::shm;
use crate::transport::tcp::{self, Settings, tune};

/// Bytes of the cache that all CPUs share; results that exceed it are stored past it.
pub(super) fn last_level_cache() -> usize {
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
    secret: Option<Secret>,
    insecure: Option<bool>,
    transport: Option<Transport>,
    encrypt: Option<bool>,
    interface: Option<String>,
    all_pairs: Option<usize>,
    multiprocessors: Option<u32>,
    uniform: Option<bool>,
    peer_timeout: Option<Duration>,
    pub(crate) told: Told,
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

    /// What the ranks of this job know and nobody else does; the same for all, and random. Ranks
    /// prove to each other that they have it whenever they connect. Under `ringrun` there is no
    /// need for one.
    #[must_use]
    pub fn secret(self, secret: &[u8; SECRET]) -> Self {
        Self { secret: Some(secret.into()), ..self }
    }

    /// Whether ranks on several hosts may go without a secret: then whoever reaches their ports can
    /// join the job. Without this, and without a secret, such a job is an error that says how to
    /// make one. All ranks say the same.
    #[must_use]
    pub fn insecure(self, insecure: bool) -> Self {
        Self { insecure: Some(insecure), ..self }
    }

    /// Forces a transport.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        Self { transport: Some(transport), ..self }
    }

    /// Encrypts and authenticates what goes over TCP, at the cost of some of each CPU; all ranks
    /// say the same. It needs the job's secret. Shared memory stays as it is.
    #[must_use]
    pub fn encrypt(self, encrypt: bool) -> Self {
        Self { encrypt: Some(encrypt), ..self }
    }

    /// Which network interfaces may be used: prefixes, `^` excludes, `=` is exact, or a subnet.
    #[must_use]
    pub fn interface(self, interface: &str) -> Self {
        Self { interface: Some(interface.into()), ..self }
    }

    /// The largest world in which every rank has a link to every other one; 32 if nobody says. All
    /// ranks say the same, and what [`Communicator::split`] and [`Communicator::duplicate`] make
    /// goes by it too.
    ///
    /// In larger worlds ranks have links to their neighbours on the ring and to those at a distance
    /// of a power of two: messages reach no others, the uneven forms but `all_gather_v` and
    /// `reduce_scatter_v` can't be made, nor can deterministic reductions but prefixes. A link
    /// takes memory and, between processes, two descriptors at either rank, and time at the start.
    #[must_use]
    pub fn all_pairs(self, ranks: usize) -> Self {
        Self { all_pairs: Some(ranks), ..self }
    }

    /// How many multiprocessors of this rank's device the kernels of a collective may take, so that
    /// others run beside them; all, if nobody says. It may differ from rank to rank.
    #[must_use]
    pub fn multiprocessors(self, most: u32) -> Self {
        Self { multiprocessors: Some(most), ..self }
    }

    /// Whether each collective call ends well at all ranks that are left, or at none: without it
    /// some may have the result when others learn that a rank is lost. It costs a barrier after
    /// each call, links between all pairs of ranks, and after a failure the time until all that are
    /// left have made the call or have been waited for in vain. All ranks say the same. Calls on
    /// streams and messages are not meant, nor is a rank whose call is aborted.
    ///
    /// A rank that had not heard of the failure then learns of it by its next call, whose error is
    /// of the call that ended well. The barriers are numbered too: calls are 1, 3, 5, ... here.
    #[must_use]
    pub fn uniform(self, uniform: bool) -> Self {
        Self { uniform: Some(uniform), ..self }
    }

    /// After how long without a sign of it another host is taken for unreachable: 4 s to an hour,
    /// in whole seconds; 5 s if nobody says.
    #[must_use]
    pub fn peer_timeout(self, timeout: Duration) -> Self {
        Self { peer_timeout: Some(timeout), ..self }
    }

    /// Meets the other ranks and opens the links to them.
    ///
    /// # Errors
    /// If a setting makes no sense, or the others can't be met in time.
    pub fn build(self) -> Result<Communicator> {
        Communicator::meet(&self.config()?)
    }

    /// `n` ranks that are threads of this process, with these settings: as
    /// [`Communicator::local`]. They need no rank, size, store, secret, opt-out of one,
    /// transport, encryption, interface or timeout of peers, and must not be told any.
    ///
    /// # Errors
    /// As [`Communicator::local`].
    pub fn local(self, n: usize) -> Result<Vec<Communicator>> {
        let (call, most) = ("local", u32::MAX as usize);
        let refuse =
            |argument, given, expected| Err(Error::Argument { call, argument, given, expected });
        if n == 0 || n > most {
            return refuse("n", n.to_string(), format!("1 to {most}"));
        }
        let told = [
            ("rank", self.rank.is_some()),
            ("size", self.size.is_some()),
            ("store", self.store.is_some()),
            ("secret", self.secret.is_some()),
            ("insecure", self.insecure.is_some()),
            ("transport", self.transport.is_some()),
            ("encrypt", self.encrypt.is_some()),
            ("peer_timeout", self.peer_timeout.is_some()),
            ("interface", self.interface.is_some()),
        ];
        if let Some((argument, _)) = told.into_iter().find(|(_, told)| *told) {
            let expected = "not set: the ranks are threads of this process".into();
            return refuse(argument, "set".into(), expected);
        }
        let config = self.over(Config::settings()?);
        config.validate()?;
        if config.failures.uniform {
            let expected = "off: ranks that are threads end together".into();
            return refuse("uniform", "on".into(), expected);
        }
        let preferences = Preferences::from(&config);
        let Config { timeout, all_pairs, record_dir, trace, .. } = config;
        let host = super::rank_record::host_name();
        let pid = std::process::id();
        let peers: Arc<[Peer]> =
            (0..n).map(|rank| Peer { rank, host: host.clone(), pid }).collect();
        let group = Group::new(n, all_pairs as u32);
        let ready = |rank| Ready::new(Arc::clone(&group), rank, Arc::clone(&peers));
        let ready: Vec<_> = (0..n).map(ready).collect::<Result<_>>()?;
        let meet = |(rank, ready): (usize, Ready)| {
            let recorder =
                Recorder::new(None, (rank, n), record_dir.clone(), trace.clone(), false)?;
            Ok(ready.meet(timeout, &Arc::default(), &recorder)?.going_by(preferences))
        };
        ready.into_iter().enumerate().map(meet).collect()
    }

    fn config(mut self) -> Result<Config> {
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
        if let Some(store) = self.store.take() {
            let wrong =
                |expected| Error::Config { name: "store".into(), given: store.clone(), expected };
            config.store = Some(store.parse().map_err(wrong)?);
        }
        Ok(self.over(config))
    }

    /// `config`, but for what is set here.
    fn over(self, mut config: Config) -> Config {
        config.timeout = self.told.timeout.unwrap_or(config.timeout);
        config.peer_timeout = self.peer_timeout.unwrap_or(config.peer_timeout);
        config.secret = self.secret.map(SecretSource::Given).or(config.secret);
        config.insecure = self.insecure.unwrap_or(config.insecure);
        config.transport = self.transport.unwrap_or(config.transport);
        config.encrypt = self.encrypt.unwrap_or(config.encrypt);
        config.interface = self.interface.or(config.interface);
        config.all_pairs = self.all_pairs.unwrap_or(config.all_pairs);
        config.multiprocessors = self.multiprocessors.or(config.multiprocessors);
        config.failures.uniform = self.uniform.unwrap_or(config.failures.uniform);
        self.told.over(&mut config.numbers, &mut config.failures);
        config
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
        Self::builder().local(n)
    }

    fn meet(config: &Config) -> Result<Self> {
        let recorder = launcher_record::of(config)?;
        if config.joins {
            return Self::come_later(config, &recorder);
        }
        Self::open(gather(config)?, &recorder)?.enrolled()
    }

    /// The communicator of those who met, once its links are open.
    pub(crate) fn open(mut meeting: Meeting, recorder: &Arc<Recorder>) -> Result<Self> {
        let &Config { timeout, all_pairs, .. } = meeting.config();
        let preferences = Preferences::from(meeting.config());
        let deadline = deadline_after(timeout);
        let ring = Ring::through(&meeting.ring_order()).ok_or_else(|| {
            Error::io("ordering the ring", std::io::Error::other("the hosts' ranks overlap"))
        })?;
        let ring = ring.with_all_pairs(all_pairs as u32);
        let slots = Slots::of(meeting.needs_tcp(), meeting.size());
        let least = least_chunk(meeting.needs_tcp(), meeting.crowding());
        let rank = meeting.rank;
        let planner = Planner::new(ring, rank as u32, slots, least);
        let links = connect(&mut meeting, &planner, deadline);
        let links = links.map_err(|error| meeting.failed(error))?;
        meeting.close_doors();
        let patience = Patience::for_ranks(meeting.residents());
        let abort = Arc::clone(meeting.abort());
        let peers: Arc<[Peer]> = meeting.peers.iter().map(|info| info.peer()).collect();
        let seat = Seat {
            rank,
            local_rank: meeting.local_rank(),
            local_size: meeting.local_size(),
            peers: Arc::clone(&peers),
            transports: links.transports(),
            shares: !meeting.needs_tcp() && can_share(meeting.size()),
            flight: recorder.communicator(meeting.job, rank, peers),
            origin: Origin::Processes(Box::new(meeting)),
        };
        let mut engine = Engine::new(planner, links, patience, last_level_cache());
        engine.abort = abort;
        if preferences.failures.uniform && !engine.can_meet(&seat) {
            let expected = format!(
                "off in a world of {} ranks, unless RINGREDUCE_ALL_PAIRS or Builder::all_pairs \
                 gives all of them links to each other",
                seat.peers.len()
            );
            let (call, argument, given) = ("build", "uniform", "on".into());
            return Err(Error::Argument { call, argument, given, expected });
        }
        let lines = seat.shares && has_lines(&engine.planner);
        let mut comm = Self::new(seat, engine, timeout).going_by(preferences);
        if lines {
            comm.share_lines("build")?;
        }
        Ok(comm)
    }
}

/// The links that a planner's plans walk over.
fn connect(meeting: &mut Meeting, planner: &Planner, deadline: Instant) -> Result<Links> {
    let (me, size) = (meeting.rank, meeting.size());
    let mut links = Links::new(size);
    if size == 1 {
        return Ok(links);
    }
    let peers: Vec<_> = planner.peers().into_iter().map(|peer| peer as usize).collect();
    let dial: Vec<_> = peers.iter().map(|&to| PairKey { from: me, to }).collect();
    let accept: Vec<_> = peers.iter().map(|&from| PairKey { from, to: me }).collect();
    let checks = meeting.config().tcp_checksum;
    let congestion = meeting.config().tcp_congestion.clone();
    let settings = Settings { congestion, ..Settings::default() };
    let mut controls = Controls::new(me, size, meeting.config().peer_timeout);
    // Both before any other rank can connect: of a rank that ends while the others go on with this
    // communicator they find what it voted for there, which is nothing.
    let (mut lives, page) = Lives::new(me, size, meeting.job)?;
    let launched = meeting.launched();
    for connection in meeting.connect(&dial, &accept)? {
        let PairKey { from, to } = connection.pair;
        let slots = planner.slots(from as u32, to as u32);
        if let Some(control) = connection.control {
            controls.add(if from == me { to } else { from }, control)?;
        }
        match connection.streams {
            Streams::Shm(life) if from == me => {
                let peer = meeting.peers[to].peer().to_string();
                page.pass(&life, &peer)?;
                links.add_tx(to, shm::sender(slots, life, &peer)?);
            }
            Streams::Shm(life) => {
                let peer = meeting.peers[from].peer().to_string();
                let deadline = wait_readable(&life, deadline, meeting.abort());
                lives.receive(from, &life, &peer, deadline)?;
                let deadline = wait_readable(&life, deadline, meeting.abort());
                links.add_rx(from, shm::receiver(slots, life, &peer, deadline)?);
            }
            Streams::Tcp(streams) => {
                streams.iter().try_for_each(|stream| tune(stream, &settings))?;
                let (sealers, openers) =
                    connection.seals.into_iter().map(|seals| (seals.sealer, seals.opener)).unzip();
                if from == me {
                    let link = tcp::Tx::sealed(streams, sealers, slots)?;
                    links.add_tx(to, Box::new(link.checked(checks)));
                } else {
                    let link = tcp::Rx::sealed(streams, openers, slots)?;
                    links.add_rx(from, Box::new(link.checked(checks)));
                }
            }
        }
    }
    links.set_controls(controls);
    links.set_lives(lives, launched);
    Ok(links)
}
