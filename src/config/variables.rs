//! The `RINGREDUCE_*` environment variables: rank and size, settings, and a hint for each misspelt
//! name.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::launcher::with_locals;
use super::{
    Assignment, Config, FailureSettings, NumericSettings, SecretSource, StoreAddr, Transport, Vars,
    malformed, number,
};
use crate::codec::printable;
use crate::element::{DataType, UnknownName, Wire};
use crate::error::{Error, Result};

/// Defines constants for the names of variables, and the list of all of them.
macro_rules! variables {
    ($($(#[$doc:meta])* $visibility:vis const $name:ident: &str = $text:literal;)*) => {
        $($(#[$doc])* $visibility const $name: &str = $text;)*

        const NAMES: &[&str] = &[$($name),*];
    };
}

variables! {
    /// The rank, from 0.
    pub const RANK: &str = "RINGREDUCE_RANK";
    /// The number of ranks.
    pub const SIZE: &str = "RINGREDUCE_SIZE";
    /// The rank among those of its host, from 0.
    pub const LOCAL_RANK: &str = "RINGREDUCE_LOCAL_RANK";
    /// The number of ranks on the host.
    pub const LOCAL_SIZE: &str = "RINGREDUCE_LOCAL_SIZE";
    /// The address of the store.
    pub const STORE: &str = "RINGREDUCE_STORE";
    /// The descriptor of the job's secret, which itself is in no variable.
    pub const SECRET_FD: &str = "RINGREDUCE_SECRET_FD";
    /// The file of the user's own secret.
    pub const SECRET_FILE: &str = "RINGREDUCE_SECRET_FILE";
    /// 1 to encrypt data sent over TCP.
    pub const ENCRYPT: &str = "RINGREDUCE_ENCRYPT";
    /// 1 to meet other hosts without a secret.
    pub const INSECURE: &str = "RINGREDUCE_INSECURE";
    pub(super) const TIMEOUT: &str = "RINGREDUCE_TIMEOUT";
    /// Seconds without a sign of life after which another host counts as unreachable.
    pub const PEER_TIMEOUT: &str = "RINGREDUCE_PEER_TIMEOUT";
    pub(super) const TRANSPORT: &str = "RINGREDUCE_TRANSPORT";
    /// The interface, or the network, of the address that ranks give to other hosts.
    pub const IFNAME: &str = "RINGREDUCE_IFNAME";
    /// The ports at which ranks listen over TCP.
    pub const PORT_RANGE: &str = "RINGREDUCE_PORT_RANGE";
    pub(super) const LAUNCHER: &str = "RINGREDUCE_LAUNCHER";
    pub(super) const TCP_SOCKETS: &str = "RINGREDUCE_TCP_SOCKETS";
    pub(super) const TCP_CHECKSUM: &str = "RINGREDUCE_TCP_CHECKSUM";
    pub(super) const TCP_CONGESTION: &str = "RINGREDUCE_TCP_CONGESTION";

    /// The largest world with links between all pairs of ranks.
    pub const ALL_PAIRS: &str = "RINGREDUCE_ALL_PAIRS";
    pub(super) const ALGO: &str = "RINGREDUCE_ALGO";
    pub(super) const CACHE: &str = "RINGREDUCE_CACHE";

    pub(super) const MULTIPROCESSORS: &str = "RINGREDUCE_MULTIPROCESSORS";

    pub(super) const DETERMINISTIC: &str = "RINGREDUCE_DETERMINISTIC";
    pub(super) const WIDE: &str = "RINGREDUCE_WIDE";
    pub(super) const WIRE: &str = "RINGREDUCE_WIRE";

    pub(super) const UNIFORM: &str = "RINGREDUCE_UNIFORM";
    pub(super) const RETRY_SAFE: &str = "RINGREDUCE_RETRY_SAFE";

    /// Flight recorder: the launcher's memory for this rank's record, and folders for reports and
    /// traces.
    pub const RECORD_FD: &str = "RINGREDUCE_RECORD_FD";
    /// The launcher's process table.
    pub const PROCESS_TABLE_FD: &str = "RINGREDUCE_ROLL_FD";
    pub(super) const RECORD_DIR: &str = "RINGREDUCE_RECORD_DIR";
    pub(super) const TRACE: &str = "RINGREDUCE_TRACE";

    /// 1 for a rank that joins a running job, 0 for others of a job that ranks may join.
    pub const JOIN: &str = "RINGREDUCE_JOIN";
}

const PREFIX: &str = "RINGREDUCE_";

/// A warning for each variable that has our prefix but is unknown.
pub(super) fn unknown_names(vars: Vars<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for name in vars.0.keys().map(|name| printable(&name.to_string_lossy())) {
        if !name.starts_with(PREFIX) || NAMES.contains(&&*name) {
            continue;
        }
        let nearest =
            NAMES.iter().map(|variable| (strsim::damerau_levenshtein(&name, variable), variable));
        warnings.push(match nearest.min() {
            // At most one letter in three may be misspelt.
            Some((distance, variable)) if distance <= (name.len() - PREFIX.len()).div_ceil(3) => {
                format!(
                    "{name} is no variable of ringreduce and is ignored; did you mean {variable}?"
                )
            }
            _ => format!("{name} is no variable of ringreduce and is ignored"),
        });
    }
    warnings
}

/// Reads the settings that hold under any launcher. Returns the store address, which overrides the
/// launcher's.
pub(super) fn settings(vars: Vars<'_>, config: &mut Config) -> Result<Option<StoreAddr>> {
    for (name, timeout) in
        [(TIMEOUT, &mut config.timeout), (PEER_TIMEOUT, &mut config.peer_timeout)]
    {
        let Some(text) = vars.text(name)? else { continue };
        if name == TIMEOUT && text == "none" {
            *timeout = super::MAX_TIMEOUT;
            continue;
        }
        let seconds = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        *timeout = seconds.ok_or_else(|| {
            let none = if name == TIMEOUT { ", or none" } else { "" };
            malformed(name, text, format!("it must be a number of seconds, for example 2.5{none}"))
        })?;
    }
    if let Some(text) = vars.text(TRANSPORT)? {
        config.transport = match text {
            "auto" => Transport::Auto,
            "shm" => Transport::Shm,
            "tcp" => Transport::Tcp,
            _ => return Err(malformed(TRANSPORT, text, "it must be auto, shm or tcp".into())),
        };
    }
    if let Some(sockets) = vars.number(TCP_SOCKETS)? {
        config.tcp_sockets = sockets;
    }
    if vars.text(TCP_CHECKSUM)?.is_some() {
        config.tcp_checksum = Some(vars.switch(TCP_CHECKSUM)?);
    }
    config.encrypt = vars.switch(ENCRYPT)?;
    config.insecure = vars.switch(INSECURE)?;
    if let Some(most) = vars.number(ALL_PAIRS)? {
        config.all_pairs = most;
    }
    if let Some(most) = vars.number(MULTIPROCESSORS)? {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        config.multiprocessors = Some(most);
    }
    if let Some(text) = vars.text(ALGO)?.filter(|&text| text != "auto") {
        let unknown = |e: UnknownName| malformed(ALGO, text, format!("{e}, or auto"));
        config.algorithm = Some(text.parse().map_err(unknown)?);
    }
    config.numbers = numbers(vars)?;
    let (uniform, retry_safe) = (vars.switch(UNIFORM)?, vars.switch(RETRY_SAFE)?);
    config.failures = FailureSettings { uniform, retry_safe };
    config.cache = cache(vars)?;
    config.secret = secret(vars)?;
    // Without a launcher there is none whose descriptors a process could have.
    if vars.raw(LAUNCHER) != Some("none") {
        let inherited = |name| vars.text(name)?.map(|text| descriptor(name, text)).transpose();
        config.record_fd = inherited(RECORD_FD)?;
        config.process_table_fd = inherited(PROCESS_TABLE_FD)?;
    }
    config.record_dir = vars.text(RECORD_DIR)?.map(Into::into);
    config.trace = vars.text(TRACE)?.map(Into::into);
    config.interface = vars.text(IFNAME)?.map(Into::into);
    config.ports = vars.text(PORT_RANGE)?.map(port_range).transpose()?;
    config.tcp_congestion = vars.text(TCP_CONGESTION)?.map(Into::into);
    let Some(text) = vars.text(STORE)? else { return Ok(None) };
    text.parse().map(Some).map_err(|reason| malformed(STORE, text, reason))
}

/// Reads the numeric settings of reductions.
fn numbers(vars: Vars<'_>) -> Result<NumericSettings> {
    let (deterministic, wide) = (vars.switch(DETERMINISTIC)?, vars.switch(WIDE)?);
    let wire = vars.text(WIRE)?.filter(|&text| text != "off");
    let wire = wire.map(|text| match (text, text.parse::<Wire>()) {
        ("fp16", _) => Ok(DataType::F16.into()),
        ("bf16", _) => Ok(DataType::BF16.into()),
        // The f8e5m2 format is made for gradients, which need its range more than a third bit of
        // precision.
        ("fp8", _) => Ok(DataType::F8E5M2.into()),
        (_, Ok(wire)) if wire.is_narrow() => Ok(wire),
        _ => {
            let names = Wire::narrow_names();
            let expected = format!("it must be {names}, bf16, fp16, fp8 (f8e5m2) or off");
            Err(malformed(WIRE, text, expected))
        }
    });
    Ok(NumericSettings { deterministic, wide, wire: wire.transpose()? })
}

impl Config {
    /// The settings by which a launcher listens: the values of `RINGREDUCE_IFNAME` and of
    /// `RINGREDUCE_PORT_RANGE`.
    ///
    /// # Errors
    /// [`Error::Config`] if the second is malformed.
    pub fn of_listener(interface: Option<&str>, ports: Option<&str>) -> Result<Self> {
        let (interface, ports) = (interface.map(Into::into), ports.map(port_range).transpose()?);
        Ok(Self { interface, ports, ..Self::default() })
    }
}

/// A range such as `20000-20100`, whose ends count.
fn port_range(text: &str) -> Result<RangeInclusive<u16>> {
    let ends = text
        .split_once('-')
        .and_then(|(low, high)| Some(low.trim().parse().ok()?..=high.trim().parse().ok()?));
    ends.filter(|ports| *ports.start() > 0 && !ports.is_empty()).ok_or_else(|| {
        let expected = "it must be two ports, the lower one first, for example 20000-20100";
        malformed(PORT_RANGE, text, expected.into())
    })
}

/// The folder of the cache of measured speeds, if there is one.
fn cache(vars: Vars<'_>) -> Result<Option<PathBuf>> {
    let folder = |name: &str| vars.0.get(OsStr::new(name)).map(PathBuf::from);
    match vars.text(CACHE)? {
        Some("off") => Ok(None),
        Some(text) if Path::new(text).is_absolute() => Ok(Some(text.into())),
        Some(text) => Err(malformed(CACHE, text, "it must be an absolute path, or off".into())),
        None => {
            let home = || folder("HOME").map(|home| home.join(".cache"));
            let users = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(home);
            Ok(users.filter(|path| path.is_absolute()).map(|path| path.join("ringreduce")))
        }
    }
}

/// The source of the job's secret. The environment never holds the secret itself.
fn secret(vars: Vars<'_>) -> Result<Option<SecretSource>> {
    let inherited = vars.text(SECRET_FD)?.filter(|_| vars.raw(LAUNCHER) != Some("none"));
    match (inherited, vars.text(SECRET_FILE)?) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(SecretSource::Fd(descriptor(SECRET_FD, text)?))),
        (None, Some(text)) if Path::new(text).is_absolute() => {
            Ok(Some(SecretSource::File(text.into())))
        }
        (None, Some(text)) => {
            Err(malformed(SECRET_FILE, text, "it must be an absolute path".into()))
        }
        (Some(_), Some(text)) => {
            let expected = format!("{SECRET_FD} is set too, and a job has one secret; unset one");
            Err(malformed(SECRET_FILE, text, expected))
        }
    }
}

/// Parses the number of a descriptor.
fn descriptor(name: &str, text: &str) -> Result<i32> {
    let fd = text.parse().ok().filter(|&fd: &i32| fd >= 0);
    fd.ok_or_else(|| malformed(name, text, "it must be the number of an open descriptor".into()))
}

/// Rank and size, as ringrun or the user gives them.
pub(super) fn assignment(vars: Vars<'_>) -> Result<Option<Assignment>> {
    let (rank, size) = match (vars.text(RANK)?, vars.text(SIZE)?) {
        (Some(rank), Some(size)) => (number(RANK, rank)?, number(SIZE, size)?),
        (Some(rank), None) => return Err(incomplete(RANK, rank, SIZE)),
        (None, Some(size)) => return Err(incomplete(SIZE, size, RANK)),
        (None, None) => {
            for name in [LOCAL_RANK, LOCAL_SIZE] {
                if let Some(value) = vars.text(name)? {
                    return Err(incomplete(name, value, "RINGREDUCE_RANK and RINGREDUCE_SIZE"));
                }
            }
            return Ok(None);
        }
    };
    let (local_rank, local_size) = (vars.number(LOCAL_RANK)?, vars.number(LOCAL_SIZE)?);
    let source = format!("{RANK}={rank}, {SIZE}={size}");
    let source = with_locals(source, &[(LOCAL_RANK, local_rank), (LOCAL_SIZE, local_size)]);
    Ok(Some(Assignment { rank, size, local_rank, local_size, job: None, store: None, source }))
}

fn incomplete(name: &str, value: &str, missing: &str) -> Error {
    malformed(name, value, format!("it needs {missing} beside it, which is not set"))
}
