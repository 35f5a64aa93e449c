//! Configuration: rank and size of this process, address of the store, and settings. The only
//! module that reads the environment.
//! Law: a setting is obeyed, or refused with its name and value, but never ignored.

mod environment;
mod hidden;
mod launcher;
mod secret;
mod slurm;
mod store;
pub mod variables;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

pub use environment::ProcessEnvironment;
pub use secret::{SECRET_LEN, Secret, SecretSource};
pub use store::StoreAddr;

use crate::element::Wire;
use crate::error::{Error, Result, warn_on_stderr};
use crate::schedule::{ALL_PAIRS, Algorithm};
use crate::sync::Instant;
use environment::{Vars, malformed, number};
pub(crate) use hidden::HiddenMemory;
pub(crate) use launcher::INHERITED_FROM_A_RANK;
pub(crate) use variables::{
    ENCRYPT, INSECURE, PROCESS_TABLE_FD, RECORD_FD, SECRET_FD, SECRET_FILE,
};

/// Default timeout of every wait.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest timeout, which no wait reaches; beyond it clocks overflow.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(1_000_000_000);
/// Peer timeout by default, and its range. A host is probed once a second, and one probe may be
/// lost.
/// The peer timeout where no setting gives another one.
pub const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_secs(5);
const PEER_TIMEOUT_RANGE: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(3600)];
/// The most ranks of a job; they travel as 32-bit numbers.
pub const MAX_SIZE: usize = 1 << 20;
/// More connections per link only waste memory.
const MAX_TCP_SOCKETS: usize = 64;

/// The deadline of a wait that begins now. Users may give any duration, even one that no clock can
/// reach, so every deadline is computed here.
pub(crate) fn deadline_after(wait: Duration) -> Instant {
    Instant::now() + wait.min(MAX_TIMEOUT)
}

/// Transport of the links between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Shared memory on one host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory only.
    Shm,
    /// TCP only.
    Tcp,
}

/// Numeric settings of reductions. All ranks must have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumericSettings {
    /// Results do not depend on algorithm, transport, length or placement.
    pub deterministic: bool,
    /// Partial sums of 16- and 8-bit floats travel as f32.
    pub wide: bool,
    /// The narrow form that f32 travels in; none to send f32.
    pub wire: Option<Wire>,
}

/// Guarantees of calls that fail. All ranks must have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureSettings {
    /// A collective call succeeds at all surviving ranks, or at none.
    pub uniform: bool,
    /// A failed call leaves the buffer of an in-place call unchanged.
    pub retry_safe: bool,
}

/// Everything that a rank must know before the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process's rank.
    pub rank: usize,
    /// The world size.
    pub size: usize,
    /// Index among the ranks on this host, if the launcher gives it.
    pub local_rank: Option<usize>,
    /// Number of ranks on this host, if the launcher gives it.
    pub local_size: Option<usize>,
    /// The launcher's name of this job, the same for all ranks, if there is one.
    pub job: Option<String>,
    /// Address of the rendezvous store. A world of one rank needs none.
    pub store: Option<StoreAddr>,
    /// Source of the job's secret. Without one, ranks do not authenticate each other.
    pub secret: Option<SecretSource>,
    /// True if ranks on several hosts may run without a secret.
    pub insecure: bool,
    /// The longest that any wait lasts.
    pub timeout: Duration,
    /// How long another host may give no sign of life before it counts as unreachable.
    pub peer_timeout: Duration,
    /// Transport of the links.
    pub transport: Transport,
    /// Network interfaces that may be used.
    pub interface: Option<String>,
    /// The ports at which this process may listen over TCP, if not those that the system chooses.
    pub ports: Option<RangeInclusive<u16>>,
    /// Connections per TCP link.
    pub tcp_sockets: usize,
    /// Whether data over TCP has a CRC-32C, in addition to TCP's own 16 bits; `None` for only the
    /// links between hosts.
    pub tcp_checksum: Option<bool>,
    /// True if everything that goes over TCP is encrypted.
    pub encrypt: bool,
    /// The kernel's congestion control for TCP links, if not its default.
    pub tcp_congestion: Option<String>,
    /// The algorithm to use wherever it supports a call.
    pub algorithm: Option<Algorithm>,
    /// The largest world with links between all pairs of ranks.
    pub all_pairs: usize,
    /// The most multiprocessors of a device that the kernels of a call may take; none for all.
    pub multiprocessors: Option<u32>,
    /// Numeric settings of reductions.
    pub numbers: NumericSettings,
    /// Guarantees of calls that fail.
    pub failures: FailureSettings,
    /// The folder of the cache of measured speeds.
    pub cache: Option<PathBuf>,
    /// Inherited descriptor of the memory for this rank's flight record.
    pub record_fd: Option<i32>,
    /// Inherited descriptor of the launcher's process table.
    pub process_table_fd: Option<i32>,
    /// The folder for a rank's last operations when a call fails.
    pub record_dir: Option<PathBuf>,
    /// The folder for traces of every call and step.
    pub trace: Option<PathBuf>,
    /// True if this rank joins a running job, whose members must admit it.
    pub is_joiner: bool,
    /// Origin of these values, for messages.
    pub source: String,
}

impl Default for Config {
    /// A world of one rank.
    fn default() -> Self {
        Self {
            rank: 0,
            size: 1,
            local_rank: None,
            local_size: None,
            job: None,
            store: None,
            secret: None,
            insecure: false,
            timeout: DEFAULT_TIMEOUT,
            peer_timeout: DEFAULT_PEER_TIMEOUT,
            transport: Transport::Auto,
            interface: None,
            ports: None,
            algorithm: None,
            all_pairs: ALL_PAIRS as usize,
            multiprocessors: None,
            numbers: NumericSettings::default(),
            failures: FailureSettings::default(),
            cache: None,
            record_fd: None,
            process_table_fd: None,
            record_dir: None,
            trace: None,
            tcp_sockets: 1,
            tcp_checksum: None,
            encrypt: false,
            tcp_congestion: None,
            is_joiner: false,
            source: "no launcher".into(),
        }
    }
}

impl Config {
    /// Reads the environment: the `RINGREDUCE_*` variables, else those of torchrun, Open MPI, MPICH
    /// or Intel MPI, or Slurm. Without any of them the world has one rank. Warnings go to `tracing`
    /// and, once per process, to stderr.
    ///
    /// # Errors
    /// If a variable is malformed or incomplete, or if two launchers disagree.
    pub fn from_env() -> Result<Self> {
        let (config, warnings) = Self::detect(&ProcessEnvironment::of_this_process())?;
        warn(&warnings);
        Ok(config)
    }

    /// Reads the `RINGREDUCE_*` settings, for a program that sets rank and size itself. Warnings
    /// are those of unknown names, and go where those of [`Self::from_env`] go.
    ///
    /// # Errors
    /// If a setting is malformed.
    pub fn settings() -> Result<Self> {
        let env = ProcessEnvironment::of_this_process();
        let mut config = Self { source: "the program".into(), ..Self::default() };
        config.store = variables::settings(Vars(&env.vars), &mut config)?;
        config.validate()?;
        warn(&variables::unknown_names(Vars(&env.vars)));
        Ok(config)
    }

    /// [`Self::from_env`] for any environment; returns the warnings.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn detect(env: &ProcessEnvironment) -> Result<(Self, Vec<String>)> {
        let vars = Vars(&env.vars);
        let mut warnings = variables::unknown_names(vars);
        let mut config = Self::default();
        let given_store = variables::settings(vars, &mut config)?;
        let assignment = assignment(vars, env)?;
        match assignment {
            None => warnings.extend(launcher::unused_allocation_warning(vars)),
            Some(assignment) => {
                config.rank = assignment.rank;
                config.size = assignment.size;
                config.local_rank = assignment.local_rank;
                config.local_size = assignment.local_size;
                config.job = assignment.job;
                config.store = assignment.store;
                config.source = assignment.source;
            }
        }
        config.store = given_store.or(config.store).filter(|_| config.size != 1);
        config.is_joiner = vars.switch(variables::JOIN)?;
        if config.is_joiner && !matches!(config.store, Some(StoreAddr::Fd(_))) {
            let expected = "it is for ranks that ringrun --elastic starts again; unset it".into();
            return Err(malformed(variables::JOIN, "1", expected));
        }
        config.validate()?;
        Ok((config, warnings))
    }

    /// True if all pairs of ranks are connected from the beginning. Otherwise ranks make control
    /// channels that a recovery needs by their ports and keys.
    pub(crate) fn connects_all_pairs(&self) -> bool {
        self.size <= self.all_pairs
    }

    /// Checks that the settings fit together. Every `Config` must pass this check.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) naming the setting and its value.
    pub fn validate(&self) -> Result<()> {
        let Self { rank, size, local_rank, local_size, .. } = *self;
        let refuse = |name: &str, given: &dyn fmt::Display, expected: String| {
            Err(malformed(name, &given.to_string(), format!("{expected} ({})", self.source)))
        };
        if size == 0 || size > MAX_SIZE {
            return refuse("world size", &size, format!("it must be 1 to {MAX_SIZE}"));
        }
        if rank >= size {
            return refuse("rank", &rank, format!("it must be below the world size, {size}"));
        }
        let most = local_size.unwrap_or(size);
        if most == 0 || most > size {
            return refuse("local size", &most, format!("it must be 1 to the world size, {size}"));
        }
        if let Some(local) = local_rank.filter(|&local| local >= most) {
            return refuse(
                "local rank",
                &local,
                format!("it must be below the local size, {most}"),
            );
        }
        let [least, most] = PEER_TIMEOUT_RANGE;
        if !(least..=most).contains(&self.peer_timeout) {
            let given = self.peer_timeout.as_secs_f64();
            return refuse(variables::PEER_TIMEOUT, &given, "it must be 4 to 3600 seconds".into());
        }
        if self.timeout.is_zero() {
            return refuse(variables::TIMEOUT, &0, "it must be above 0".into());
        }
        if let Some(wire) = self.numbers.wire.filter(|wire| !wire.is_narrow()) {
            let expected = format!("it must be float, or one of {}", Wire::narrow_names());
            return refuse("wire", &wire, expected);
        }
        if self.tcp_sockets == 0 || self.tcp_sockets > MAX_TCP_SOCKETS {
            let expected = format!("it must be 1 to {MAX_TCP_SOCKETS}");
            return refuse(variables::TCP_SOCKETS, &self.tcp_sockets, expected);
        }
        if !(2..=MAX_SIZE).contains(&self.all_pairs) {
            let expected = format!("it must be 2 to {MAX_SIZE}");
            return refuse(variables::ALL_PAIRS, &self.all_pairs, expected);
        }
        if self.multiprocessors == Some(0) {
            return refuse(variables::MULTIPROCESSORS, &0, "it must be at least 1".into());
        }
        if self.store.is_none() && size > 1 {
            let expected = format!(
                "{size} ranks need a place to meet and none was given; set it to host:port, an \
                 address of rank 0's host and a free port there, the same for all ranks"
            );
            return refuse(variables::STORE, &"", expected);
        }
        Ok(())
    }
}

/// The assignment of a launcher to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launched {
    /// The rank as which this process was started; other ranks may have been lost since.
    pub rank: usize,
    /// How many ranks were started.
    pub size: usize,
    /// Whether the launcher starts lost ranks again.
    pub is_elastic: bool,
}

/// The assignment of a launcher to this process, by the variables that
/// [`Communicator::from_env`](crate::Communicator::from_env) reads; rank 0 of 1 without a launcher.
/// For programs that make their ranks themselves, as threads, and must not do so in each process,
/// and for those that go on without lost ranks.
///
/// # Errors
/// If a variable is malformed or incomplete, or if two launchers disagree.
pub fn launched() -> Result<Launched> {
    let env = ProcessEnvironment::of_this_process();
    let is_elastic = env.vars.contains_key(std::ffi::OsStr::new(variables::JOIN));
    let (rank, size) = assignment(Vars(&env.vars), &env)?.map_or((0, 1), |it| (it.rank, it.size));
    Ok(Launched { rank, size, is_elastic })
}

/// The launcher that has started this process as one of several ranks, by its variables.
#[must_use]
pub fn outer_launcher() -> Option<String> {
    let env = ProcessEnvironment::of_this_process();
    match assignment(Vars(&env.vars), &env) {
        Ok(assignment) => assignment.filter(|it| it.size > 1).map(|it| it.source),
        Err(Error::Launchers { first, second }) => Some(format!("{first}; {second}")),
        Err(_) => None,
    }
}

/// The rank and the world that the launcher has assigned to this process; none without a launcher.
fn assignment(vars: Vars<'_>, env: &ProcessEnvironment) -> Result<Option<Assignment>> {
    Ok(match launcher::launcher_choice(vars)? {
        Some(launcher::LauncherChoice::SingleRank) => None,
        Some(launcher::LauncherChoice::Ringrun) => {
            Some(variables::assignment(vars)?.ok_or_else(|| {
                let expected = "ringrun has not set RINGREDUCE_RANK and RINGREDUCE_SIZE".into();
                malformed(variables::LAUNCHER, "ringrun", expected)
            })?)
        }
        Some(launcher::LauncherChoice::Named(launcher)) => {
            Some(launcher::assignment_by(launcher, vars, env)?)
        }
        None => match variables::assignment(vars)? {
            Some(assignment) => Some(assignment),
            None => launcher::first_assignment(vars, env)?,
        },
    })
}

/// Warnings about the environment: to `tracing`, and once per process to stderr.
fn warn(warnings: &[String]) {
    static ONCE: Once = Once::new();
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    ONCE.call_once(|| warnings.iter().for_each(|warning| warn_on_stderr(warning)));
}

/// Rank, size and store address, as one launcher or the user gives them.
#[derive(Clone, Debug)]
struct Assignment {
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
    job: Option<String>,
    store: Option<StoreAddr>,
    source: String,
}
