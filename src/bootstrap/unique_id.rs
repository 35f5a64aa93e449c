//! Unique ids, as NCCL calls them: the address and the secret of a store that one process serves
//! and every rank is told of by other means.
//! Law: the server of an id ends when its ranks have met.

use std::fmt;
use std::io::{self, Cursor, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Server;
use super::auth::keys::secret_of_id;
use super::auth::secret::load;
use super::kv::credentials::Credentials;
use super::listen::listen_at_free_port;
use crate::config::{Config, SECRET_LEN, Secret, SecretSource, StoreAddr, Transport};
use crate::error::{Error, Result};
use crate::transport::tcp::interface;

/// The name and the version of the format, the first bytes of an id.
const MAGIC: [u8; 8] = *b"ringrdc\x01";
/// The largest world that the server of an id expects to connect at the same time.
const EXPECTED_RANKS: usize = 1024;

/// The stores of this process's ids whose ranks have not met yet.
static SERVERS: Mutex<Vec<(StoreAddr, Server)>> = Mutex::new(Vec::new());

fn servers() -> MutexGuard<'static, Vec<(StoreAddr, Server)>> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the ranks of one communicator find each other without a launcher (NCCL's `ncclUniqueId`).
/// One process makes an id, and the program takes its bytes to all ranks, each of which passes it
/// to [`Builder::unique_id`](crate::Builder::unique_id). An id is for one communicator.
///
/// An id has a secret, so whoever reads it can join, unless the job has a secret of its own in
/// `RINGREDUCE_SECRET_FILE`: then a rank needs both. [`UniqueIdKey`](crate::UniqueIdKey) takes it
/// through a place that others can read. The process that made it has to live until all ranks have
/// met.
///
/// ```
/// use ringreduce::{Communicator, UniqueId};
///
/// let id = UniqueId::new()?;
/// let bytes = *id.as_bytes(); // to be taken to the other ranks
/// let id = UniqueId::from_bytes(&bytes)?;
/// let comm = Communicator::builder().rank(0).size(1).unique_id(&id).build()?;
/// assert_eq!(comm.size(), 1);
/// # Ok::<(), ringreduce::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; Self::LEN]);

impl UniqueId {
    /// The length of an id in bytes, as `NCCL_UNIQUE_ID_BYTES`.
    pub const LEN: usize = 128;

    /// Starts a store that listens on the interface of `RINGREDUCE_IFNAME`, or else the one that
    /// links between hosts take, and makes the id that leads there.
    ///
    /// # Errors
    /// If no interface fits, or the system has no thread or descriptor left.
    pub fn new() -> Result<Self> {
        Self::on_interface(None)
    }

    /// As [`Self::new`], on an interface that is chosen as by
    /// [`Builder::interface`](crate::Builder::interface).
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_interface(interface: Option<&str>) -> Result<Self> {
        let mut config = Config::settings()?;
        if let Some(interface) = interface {
            config.interface = Some(interface.to_owned());
        }
        Self::of(&config)
    }

    /// As [`Self::new`], for these settings.
    pub(super) fn of(config: &Config) -> Result<Self> {
        let address = match config.transport {
            Transport::Shm => IpAddr::V4(Ipv4Addr::LOCALHOST),
            _ => interface::choose(config.interface.as_deref(), &interface::list()?)?,
        };
        let mut secret = [0; SECRET_LEN];
        let drawn = getrandom::fill(&mut secret).map_err(io::Error::other);
        drawn.map_err(|error| Error::io("drawing a secret", error))?;
        let credentials = Credentials::of(config, Some(&secret_for(config, &secret)?));
        let server = Server::of_job(&credentials, EXPECTED_RANKS)?;
        let listening = listen_at_free_port(address, config, |at| server.listen_tcp(at));
        let address = listening
            .map_err(|error| Error::io("listening for the ranks of a unique id", error))?;
        servers().push((store_address(address), server));
        let mut id = [0; Self::LEN];
        encode(&mut id, address, &secret)
            .map_err(|error| Error::io("writing a unique id", error))?;
        Ok(Self(id))
    }

    /// The bytes, which any process turns back by [`Self::from_bytes`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// # Errors
    /// If the bytes are no id of this version of the library.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self> {
        let given = "bytes that are no unique id";
        let expected = "those of UniqueId::as_bytes, whole, from the same version of ringreduce";
        let wrong = |_| Error::argument("unique_id", "id", given, expected);
        decode(bytes).map(|_| Self(*bytes)).map_err(wrong)
    }

    /// Ends the store of an id that this process has made, and that no rank was told of.
    pub(super) fn discard(&self) {
        if let Ok((address, _)) = decode(&self.0) {
            drop(take_server(&store_address(address)));
        }
    }

    /// Makes this the store and the secret of a configuration.
    pub(crate) fn configure(&self, config: &mut Config) -> Result<()> {
        let read = decode(&self.0);
        let (address, secret) = read.map_err(|error| Error::io("reading a unique id", error))?;
        config.store = Some(store_address(address));
        config.secret = Some(SecretSource::Given(secret_for(config, &secret)?));
        Ok(())
    }
}

/// The secret by which the ranks of an id know each other: that of the id, with the user's if there
/// is one. A launcher's secret is of its own ranks alone, and an id may join more than those.
fn secret_for(config: &Config, drawn: &[u8; SECRET_LEN]) -> Result<Secret> {
    match &config.secret {
        Some(SecretSource::File(_) | SecretSource::Given(_)) => {
            Ok(load(config)?.map_or_else(|| drawn.into(), |job| secret_of_id(&job, drawn)))
        }
        _ => Ok(drawn.into()),
    }
}

/// The server of an id that this process has made, for the first of its ranks that asks.
pub(super) fn take_server(address: &StoreAddr) -> Option<Server> {
    let mut servers = servers();
    let at = servers.iter().position(|(of, _)| of == address)?;
    Some(servers.swap_remove(at).1)
}

fn store_address(address: SocketAddr) -> StoreAddr {
    StoreAddr::UniqueId { host: address.ip().to_string(), port: address.port() }
}

fn encode(id: &mut [u8], address: SocketAddr, secret: &[u8; SECRET_LEN]) -> io::Result<()> {
    let mut id = Cursor::new(id);
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    id.write_all(&MAGIC)?;
    id.write_all(&ip.octets())?;
    id.write_all(&address.port().to_le_bytes())?;
    id.write_all(secret)
}

fn decode(id: &[u8; UniqueId::LEN]) -> io::Result<(SocketAddr, [u8; SECRET_LEN])> {
    let mut id = Cursor::new(&id[..]);
    let (mut magic, mut ip, mut port, mut secret) = ([0; 8], [0; 16], [0; 2], [0; SECRET_LEN]);
    id.read_exact(&mut magic)?;
    id.read_exact(&mut ip)?;
    id.read_exact(&mut port)?;
    id.read_exact(&mut secret)?;
    if magic != MAGIC || port == [0; 2] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let ip = Ipv6Addr::from(ip).to_canonical();
    Ok((SocketAddr::new(ip, u16::from_le_bytes(port)), secret))
}

impl From<&Self> for UniqueId {
    fn from(id: &Self) -> Self {
        *id
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = decode(&self.0).map(|(address, _secret)| address.to_string());
        f.debug_tuple("UniqueId").field(&address.unwrap_or_default()).finish()
    }
}
