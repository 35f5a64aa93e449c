//! Config: who this process is in its world, where the ranks meet and how they talk. The only room
//! that reads the environment. May touch: error, `std::env`.
//! Law: what the user said is obeyed or refused with its name and value, never ignored.

mod hidden;
mod launcher;
mod own;
mod secret;
mod slurm;
mod store;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

pub use secret::{SECRET, Secret, SecretSource};
pub use store::StoreAddr;

use crate::element::DataType;
use crate::error::{Error, Result, tell};
use crate::schedule::{ALL_PAIRS, Algorithm};
pub(crate) use hidden::Hidden;
pub(crate) use own::{ENCRYPT, INSECURE, RECORD_FD, ROLL_FD, SECRET_FD, SECRET_FILE};

/// How long any wait lasts when nobody said otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest timeout that makes sense; beyond it clocks overflow.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(1_000_000_000);
/// After how long without a sign of it another host is unreachable, and the shortest and longest
/// that may be asked for: it is asked for one each second, of which one may be lost.
const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_secs(5);
const PEER_TIMEOUTS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(3600)];
/// Ranks are sent as 32-bit numbers.
const MAX_SIZE: usize = 1 << 20;
/// More connections per link than this only waste memory.
const MAX_TCP_SOCKETS: usize = 64;

/// When a wait that begins now and may last so long is over. A user may give any duration, also one
/// that no clock can reach: every deadline that follows from such a duration is made here.
pub(crate) fn deadline_after(wait: Duration) -> Instant {
    Instant::now() + wait.min(LONGEST_TIMEOUT)
}

/// How ranks of one pair reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Shared memory where both sit on one host, TCP otherwise.
    #[default]
    Auto,
    /// Shared memory only.
    Shm,
    /// TCP only.
    Tcp,
}

/// What the numbers of reductions go by, beside type and operation. All ranks agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Bits do not depend on algorithm, transport, length or placement.
    pub deterministic: bool,
    /// Partial sums of 16- and 8-bit floats travel as f32.
    pub wide: bool,
    /// What f32 travels as, if not as it is: one of the 16- and 8-bit floats.
    pub wire: Option<DataType>,
}

/// What holds of calls that fail. All ranks agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// A collective call ends well at all ranks that are left, or at none.
    pub uniform: bool,
    /// One that fails leaves the buffer of an in-place call as it was.
    pub retry_safe: bool,
}

/// Everything that a rank is told before it meets the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process's rank.
    pub rank: usize,
    /// The world size.
    pub size: usize,
    /// The rank among those on this host, if the launcher said so.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host, if the launcher said so.
    pub local_size: Option<usize>,
    /// What tells this job from another one, if the launcher said so; the same for all ranks.
    pub job: Option<String>,
    /// Where ranks meet; a world of one needs no such place.
    pub store: Option<StoreAddr>,
    /// Where the secret is by which they know each other; without one they believe what they hear.
    pub secret: Option<SecretSource>,
    /// May ranks on several hosts go without a secret?
    pub insecure: bool,
    /// The longest that any wait lasts.
    pub timeout: Duration,
    /// After how long without a sign of it another host is taken for unreachable.
    pub peer_timeout: Duration,
    /// Which transport pairs of ranks use.
    pub transport: Transport,
    /// Which network interfaces may be used.
    pub interface: Option<String>,
    /// Connections per TCP link.
    pub tcp_sockets: usize,
    /// Has what goes over TCP a checksum (CRC-32C), beside TCP's own 16 bits?
    pub tcp_checksum: bool,
    /// Is all that goes over TCP encrypted?
    pub encrypt: bool,
    /// The kernel's congestion control for TCP links, if not its default.
    pub tcp_congestion: Option<String>,
    /// The algorithm to take wherever it can make a call.
    pub algorithm: Option<Algorithm>,
    /// The largest world with links between all pairs of ranks.
    pub all_pairs: usize,
    /// How many multiprocessors of a device the kernels of a call may take; all, if nobody says.
    pub multiprocessors: Option<u32>,
    /// What the numbers of reductions go by.
    pub numbers: Numbers,
    /// What holds of calls that fail.
    pub failures: Failures,
    /// The folder that measured speeds are kept in.
    pub cache: Option<PathBuf>,
    /// The launcher's memory for this rank's record, which this process inherited as this.
    pub record: Option<i32>,
    /// The roll that the launcher keeps of its ranks, inherited likewise.
    pub roll: Option<i32>,
    /// The folder for a rank's last operations when a call fails.
    pub record_dir: Option<PathBuf>,
    /// The folder for every call and step, if they are wanted.
    pub trace: Option<PathBuf>,
    /// Does this rank come to a job that runs, whose members have to let it in?
    pub joins: bool,
    /// Who said all this, for messages.
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
            algorithm: None,
            all_pairs: ALL_PAIRS as usize,
            multiprocessors: None,
            numbers: Numbers::default(),
            failures: Failures::default(),
            cache: None,
            record: None,
            roll: None,
            record_dir: None,
            trace: None,
            tcp_sockets: 1,
            tcp_checksum: true,
            encrypt: false,
            tcp_congestion: None,
            joins: false,
            source: "no launcher".into(),
        }
    }
}

/// What surrounds a process, as far as it says who the process is.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The environment variables.
    pub vars: BTreeMap<OsString, OsString>,
    /// The user.
    pub uid: u32,
    /// The nearest ancestor process that lacks a variable: the launcher that sets it.
    pub ancestor_without: fn(&str) -> u32,
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            vars: std::env::vars_os().collect(),
            uid: nix::unistd::geteuid().as_raw(),
            ancestor_without: launcher::ancestor_without,
        }
    }
}

impl Config {
    /// What the environment says: the `RINGREDUCE_*` variables, else those of torchrun, Open MPI,
    /// MPICH or Intel MPI, or Slurm; a world of one rank without any of them. Warnings go to
    /// `tracing` and, once per process, to stderr.
    ///
    /// # Errors
    /// If a variable is malformed or incomplete, or if two launchers disagree.
    pub fn from_env() -> Result<Self> {
        static ONCE: Once = Once::new();
        let (config, warnings) = Self::detect(&Surroundings::of_this_process())?;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        ONCE.call_once(|| warnings.iter().for_each(|warning| tell(warning)));
        Ok(config)
    }

    /// What the `RINGREDUCE_*` settings say, for a rank that is told by its program who it is.
    ///
    /// # Errors
    /// If a setting is malformed.
    pub fn settings() -> Result<Self> {
        let around = Surroundings::of_this_process();
        let mut config = Self { source: "the program".into(), ..Self::default() };
        config.store = own::settings(Vars(&around.vars), &mut config)?;
        config.validate()?;
        Ok(config)
    }

    /// [`Self::from_env`] for any surroundings; the warnings are handed back.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn detect(around: &Surroundings) -> Result<(Self, Vec<String>)> {
        let vars = Vars(&around.vars);
        let mut warnings = own::unknown_names(vars);
        let mut config = Self::default();
        let given_store = own::settings(vars, &mut config)?;
        let place = match launcher::forced(vars)? {
            Some(launcher::Forced::Alone) => None,
            Some(launcher::Forced::Own) => Some(own::place(vars)?.ok_or_else(|| {
                let expected = "ringrun left no RINGREDUCE_RANK and RINGREDUCE_SIZE".into();
                malformed(own::LAUNCHER, "ringrun", expected)
            })?),
            Some(launcher::Forced::Foreign(launcher)) => {
                Some(launcher::named(launcher, vars, around)?)
            }
            None => match own::place(vars)? {
                Some(place) => Some(place),
                None => launcher::first_complete(vars, around)?,
            },
        };
        match place {
            None => warnings.extend(launcher::alone_in_a_job(vars)),
            Some(place) => {
                config.rank = place.rank;
                config.size = place.size;
                config.local_rank = place.local_rank;
                config.local_size = place.local_size;
                config.job = place.job;
                config.store = place.store;
                config.source = place.source;
            }
        }
        config.store = given_store.or(config.store).filter(|_| config.size != 1);
        config.joins = vars.switch(own::JOIN)?;
        if config.joins && !matches!(config.store, Some(StoreAddr::Fd(_))) {
            let expected = "it is for ranks that ringrun --elastic starts again; unset it".into();
            return Err(malformed(own::JOIN, "1", expected));
        }
        config.validate()?;
        Ok((config, warnings))
    }

    /// Do the settings make sense together? Every way to make a `Config` ends here.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting and its value.
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
        let [least, most] = PEER_TIMEOUTS;
        if !(least..=most).contains(&self.peer_timeout) {
            let given = self.peer_timeout.as_secs_f64();
            return refuse(own::PEER_TIMEOUT, &given, "it must be 4 to 3600 seconds".into());
        }
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            let given = self.timeout.as_secs_f64();
            return refuse(own::TIMEOUT, &given, "it must be above 0, at most 1e9 seconds".into());
        }
        if let Some(wire) = self.numbers.wire.filter(|wire| !wire.is_narrow_float()) {
            let expected = format!("it must be float, or one of {}", DataType::narrow_floats());
            return refuse("wire", &wire, expected);
        }
        if self.tcp_sockets == 0 || self.tcp_sockets > MAX_TCP_SOCKETS {
            let expected = format!("it must be 1 to {MAX_TCP_SOCKETS}");
            return refuse(own::TCP_SOCKETS, &self.tcp_sockets, expected);
        }
        if !(2..=MAX_SIZE).contains(&self.all_pairs) {
            let expected = format!("it must be 2 to {MAX_SIZE}");
            return refuse(own::ALL_PAIRS, &self.all_pairs, expected);
        }
        if self.multiprocessors == Some(0) {
            return refuse(own::MULTIPROCESSORS, &0, "it must be at least 1".into());
        }
        if self.store.is_none() && size > 1 {
            let expected = format!(
                "{size} ranks need a place to meet and none was given; set it to host:port, an \
                 address of rank 0's host and a free port there, the same for all ranks"
            );
            return refuse(own::STORE, &"", expected);
        }
        Ok(())
    }
}

/// The environment's variables, with what can be wrong with a value.
#[derive(Clone, Copy)]
struct Vars<'a>(&'a BTreeMap<OsString, OsString>);

impl<'a> Vars<'a> {
    fn has(self, name: &str) -> bool {
        self.0.contains_key(std::ffi::OsStr::new(name))
    }

    /// The value of a variable that, if set, must be text and not empty.
    fn text(self, name: &str) -> Result<Option<&'a str>> {
        let Some(raw) = self.0.get(std::ffi::OsStr::new(name)) else { return Ok(None) };
        match raw.to_str() {
            None => Err(malformed(name, &raw.to_string_lossy(), "it is not UTF-8".into())),
            Some("") => Err(malformed(name, "", "it is empty; unset it or give it a value".into())),
            Some(text) => Ok(Some(text)),
        }
    }

    /// A value that is compared or hashed only; anything unreadable counts as unset.
    fn loose(self, name: &str) -> Option<&'a str> {
        self.0.get(std::ffi::OsStr::new(name)).and_then(|raw| raw.to_str())
    }

    /// A switch: 0 or 1; unset it is off.
    fn switch(self, name: &str) -> Result<bool> {
        match self.text(name)? {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(text) => Err(malformed(name, text, "it must be 0 or 1".into())),
        }
    }

    fn number(self, name: &str) -> Result<Option<usize>> {
        self.text(name)?.map(|text| number(name, text)).transpose()
    }
}

/// A whole number that is not negative.
fn number(name: &str, text: &str) -> Result<usize> {
    text.parse().map_err(|_| malformed(name, text, "it must be a whole number from 0".into()))
}

/// The error of a setting that makes no sense.
fn malformed(name: &str, given: &str, expected: String) -> Error {
    Error::Config { name: name.into(), given: given.into(), expected }
}

/// What a launcher (or the user) says of this process.
#[derive(Clone, Debug)]
struct Place {
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
    job: Option<String>,
    store: Option<StoreAddr>,
    source: String,
}
