//! The record that each rank publishes at the rendezvous store: host, process, the name of its Unix
//! socket, and the settings that must be equal at all ranks. TCP addresses are published later.

use std::fs;
use std::process;
use std::sync::Arc;

use super::auth::keys::{KeyPair, secret_fingerprint};
use super::kv::protocol::{Decoder, Encoder, PROTOCOL, StreamError};
use super::tcp_addresses::TcpAddresses;
use super::topology::PeerInfo;
use crate::codec::printable;
use crate::config::{Config, FailureSettings, NumericSettings, Secret, Transport};
use crate::error::{Error, Result};
use crate::health::process_table::ProcessTable;
use crate::sync::UsableCpus;

/// A rank's published description of itself. Two ranks are on one host if they can share memory and
/// abstract sockets as the same user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankRecord {
    /// Number of the job; that of rank 0 counts.
    pub(super) job: u64,
    /// Location and addresses, without that of a TCP listener, which comes later.
    pub(super) peer: PeerInfo,
    /// Name and value of each setting that must be equal at all ranks; none in rank 0's table.
    settings: Vec<(String, String)>,
}

pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.map_or_else(|| "unknown".into(), |name| printable(&name))
}

impl RankRecord {
    /// The record of this process.
    pub(super) fn new(
        config: &Config,
        secret: Option<&Secret>,
        unix: &str,
        process_table: Option<&ProcessTable>,
    ) -> Self {
        let transport = match config.transport {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        };
        let NumericSettings { deterministic, wide, wire } = config.numbers;
        let FailureSettings { uniform, retry_safe } = config.failures;
        let text = |none: &str, some: Option<String>| some.unwrap_or_else(|| none.into());
        // As the other ranks read it.
        let setting = |name: &str, value: String| (name.to_string(), printable(&value));
        Self {
            job: getrandom::u64().unwrap_or_default(),
            peer: PeerInfo {
                rank: config.rank,
                job_rank: config.rank as u32,
                host: host_name().into(),
                identity: host_identity().into(),
                pid: process::id(),
                launched: process_table.map_or(0, ProcessTable::own_id),
                cpus: UsableCpus::now(),
                tcp: TcpAddresses::default(),
                unix: unix.into(),
                key: None,
            },
            settings: vec![
                setting("ringreduce version", env!("CARGO_PKG_VERSION").into()),
                setting("world size", config.size.to_string()),
                setting("job secret", text("none", secret.map(secret_fingerprint))),
                setting("job", config.job.clone().unwrap_or_default()),
                setting("RINGREDUCE_TRANSPORT", transport.into()),
                setting("RINGREDUCE_TCP_SOCKETS", config.tcp_sockets.to_string()),
                setting(
                    "RINGREDUCE_TCP_CHECKSUM",
                    text("unset", config.tcp_checksum.map(|it| u8::from(it).to_string())),
                ),
                setting("RINGREDUCE_ENCRYPT", u8::from(config.encrypt).to_string()),
                setting("RINGREDUCE_INSECURE", u8::from(config.insecure).to_string()),
                setting("RINGREDUCE_ALL_PAIRS", config.all_pairs.to_string()),
                setting("RINGREDUCE_ALGO", text("auto", config.algorithm.map(|it| it.to_string()))),
                setting("RINGREDUCE_DETERMINISTIC", u8::from(deterministic).to_string()),
                setting("RINGREDUCE_WIDE", u8::from(wide).to_string()),
                setting("RINGREDUCE_WIRE", text("off", wire.map(|it| it.to_string()))),
                setting("RINGREDUCE_UNIFORM", u8::from(uniform).to_string()),
                setting("RINGREDUCE_RETRY_SAFE", u8::from(retry_safe).to_string()),
            ],
        }
    }

    /// Draws the key pair of this process, and puts the public key into the record, if `config` has
    /// more ranks than are connected in all pairs.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub(super) fn draw_key(&mut self, config: &Config) -> Result<Option<Arc<KeyPair>>> {
        if config.connects_all_pairs() {
            return Ok(None);
        }
        let key = KeyPair::draw()?;
        self.peer.key = Some(key.nonce);
        Ok(Some(Arc::new(key)))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let out = Encoder::default().u16(PROTOCOL).u64(self.job).u32(self.peer.rank as u32);
        let mut out = self.peer.encode(out).u16(self.settings.len() as u16);
        for (name, value) in &self.settings {
            out = out.text(name).text(value);
        }
        out.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StreamError> {
        let mut fields = Decoder(bytes);
        let version = fields.u16()?;
        if version != PROTOCOL {
            let text = format!("a rank speaks version {version}, this one {PROTOCOL}");
            return Err(StreamError::Malformed(text));
        }
        let (job, rank) = (fields.u64()?, fields.u32()? as usize);
        let peer = PeerInfo::decode(rank, &mut fields)?;
        let mut record = Self { job, peer, settings: Vec::new() };
        for _ in 0..fields.u16()? {
            record.settings.push((fields.text()?, fields.text()?));
        }
        if !fields.0.is_empty() {
            return Err(StreamError::Malformed("a rank says more than it should".into()));
        }
        Ok(record)
    }

    /// The record for ranks that need not compare settings.
    pub(super) fn without_settings(self) -> Self {
        Self { settings: Vec::new(), ..self }
    }

    /// Checks that `other` has the same settings. The error names both ranks and values.
    pub(super) fn check_settings(&self, other: &Self) -> Result<()> {
        let pairs = self.settings.iter().zip(&other.settings);
        let mut differing = pairs.filter(|(ours, theirs)| ours != theirs);
        let Some(((name, ours), (_, theirs))) = differing.next() else { return Ok(()) };
        Err(Error::Config {
            name: name.clone(),
            given: ours.clone(),
            expected: format!(
                "rank {} ({}) has {ours}, but rank {} ({}) has {theirs}; it must be the same for \
                 all ranks",
                self.peer.rank,
                self.peer.location(),
                other.peer.rank,
                other.peer.location()
            ),
        })
    }
}

/// Identifies what ranks must share to connect over abstract sockets: the running kernel, the
/// network namespace and the user, whose number holds within a user namespace. If the system does
/// not say, the identity is random and matches no other rank's.
fn host_identity() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let [network, users] =
        ["net", "user"].map(|name| fs::read_link(format!("/proc/self/ns/{name}")));
    match (kernel, network, users) {
        (Ok(kernel), Ok(network), Ok(users)) => {
            let user = nix::unistd::geteuid();
            let (network, users) = (network.display(), users.display());
            format!("{} {network} {users} user {user}", kernel.trim())
        }
        _ => random_hex(),
    }
}

/// 128 random bits in hexadecimal.
pub(super) fn random_hex() -> String {
    let part = || getrandom::u64().unwrap_or_default();
    format!("{:016x}{:016x}", part(), part())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_secrets_are_named_without_their_bytes() {
        let config = Config::default();
        let secrets = [Some(Secret::from(&[0x5e; 32])), Some(Secret::from(&[1; 32])), None];
        let records = secrets.map(|secret| RankRecord::new(&config, secret.as_ref(), "", None));
        for (one, other) in [(0, 1), (0, 2), (2, 1)] {
            let error = records[one].check_settings(&records[other]).unwrap_err().to_string();
            assert!(error.contains("job secret=") && error.contains("rank 0 "), "{error}");
            assert!(!error.contains("5e5e") && !error.contains("0101"), "{error}");
        }
        assert!(records[0].check_settings(&records[0]).is_ok());
    }

    #[test]
    fn a_host_is_told_apart_by_its_namespaces() {
        let identity = host_identity();
        for name in ["net", "user"] {
            let namespace = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
            assert!(identity.contains(&namespace.display().to_string()), "{identity}");
        }
    }
}
