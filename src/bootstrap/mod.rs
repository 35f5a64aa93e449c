//! Bootstrap, as NCCL calls it: ranks rendezvous at a key-value store, where each rank publishes a
//! record of itself (`rank_record`). The ranks compare their settings, learn the topology (which
//! rank is on which host), publish TCP addresses in a second exchange if a link needs TCP
//! (`exchange_records`), connect their control channels with authentication, and wait until all
//! have them all (`await_links`). Links over TCP connect at their first use (`links`).
//! Law: ranks of one host need no TCP; nothing has a name in the file system; a process that does
//! not belong to the job can neither stop nor delay it.

pub(crate) mod auth;
mod create_group;
mod dial;
mod exchange;
#[cfg(feature = "internals")]
pub mod fuzz;
pub(crate) mod group_construction;
pub(crate) mod in_process;
mod join;
pub(crate) mod kv;
mod launcher_stream;
mod links;
mod listen;
mod name_lookup;
mod progress;
mod rank_record;
mod share_memory;
#[cfg(feature = "cuda")]
mod share_regions;
pub(crate) mod shared_group;
mod socket;
pub(crate) mod split;
mod startup_store;
mod store_listener;
mod subgroup;
mod tcp_addresses;
mod topology;
mod unique_id;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use socket2::Socket;

pub use auth::keys::secret_fingerprint;
pub use auth::sealed_id::UniqueIdKey;
pub use auth::sealed_stream::{SealedListener, SealedStream};
pub use auth::secret::{draw_secret, read_secret_file, seal_secret};
pub use create_group::GroupCreator;
pub use kv::client::Store;
pub use kv::server::{Excluded, Server};
pub use links::ControlStream;
pub use listen::{rank_listeners, tcp_listener, tcp_listener_at};
pub use name_lookup::{NameLookup, addresses_of};
pub use progress::{Progress, StartupStage};
pub use subgroup::Listeners;
pub use tcp_addresses::{MAX_ADDRESSES, TcpAddresses};
pub use topology::{LinkKind, PeerInfo};
pub use unique_id::UniqueId;

pub use crate::error::refused_call::name_refused_call;
pub use crate::sync::{Instant, MAX_SLEEP};

use crate::config::{
    Config, ENCRYPT, INSECURE, PROCESS_TABLE_FD, SECRET_FILE, Secret, StoreAddr, Transport,
    deadline_after,
};
use crate::error::{Error, Result, warn};
use crate::health::process_table::ProcessTable;
use crate::memory::resource_limit::raise_descriptor_limit;
use crate::sync::WaitNotice;
use crate::transport::Bell;
use auth::keys::KeyPair;
use exchange::{StoreGather, decode_table};
pub(crate) use join::{Joiner, MAX_JOINER_LIST_LEN, decode_joiners, join_running_job};
use kv::credentials::Credentials;
use kv::errors::stream_error;
use kv::protocol::StreamError;
use launcher_stream::LauncherStream;
use rank_record::RankRecord;
use startup_store::StartupStore;
use store_listener::{ListensAt, start_server};

/// The most hosts that an error names.
const MAX_NAMED_HOSTS: usize = 4;
/// The remedy where an abstract name is taken. Any user of the host can take a name.
pub(in crate::bootstrap) const CHOOSE_STORE_NAME: &str =
    "set RINGREDUCE_STORE=unix:@NAME for all ranks, with a name that nobody can guess";
/// How long rank 0 keeps serving the store after a failure, so that the other ranks read the cause.
const STORE_LINGER: Duration = Duration::from_secs(2);

/// Bootstrap state of one rank: its rank, the addresses of all peers, and the listeners for them.
#[derive(Debug)]
pub struct Bootstrap {
    /// This rank.
    pub rank: usize,
    /// Address and location of every rank, by rank.
    pub peers: Vec<PeerInfo>,
    /// Number of the job, drawn at random by rank 0.
    pub job: u64,
    /// Number of the membership, from 0.
    pub epoch: u32,
    secret: Option<Secret>,
    config: Config,
    /// The ranks of each host, ascending; hosts are ordered by their lowest rank.
    hosts: Vec<Vec<usize>>,
    /// Ranks per CPU on the fullest host, rounded up. A subgroup counts all ranks of the job, since
    /// they run beside it. All ranks have the same number.
    ranks_per_cpu: usize,
    /// True if hosts of the job are a wide-area network apart. All ranks have the same answer, by
    /// which they cut calls into rounds.
    is_wide_area: bool,
    /// The number of ranks of the job on this rank's host, in this subgroup or not.
    ranks_on_host: usize,
    /// The CPUs that they share.
    cpus_on_host: usize,
    /// True if all surviving ranks of the job are among `peers`.
    spans_job: bool,
    /// True if these ranks share the connections of a communicator whose hosts had files, though
    /// their own hosts may have different numbers of ranks.
    inherits_files: bool,
    unix: Option<Socket>,
    tcp: Vec<Socket>,
    /// The launcher's process table, if this process has a launcher.
    process_table: Option<Arc<ProcessTable>>,
    /// The key pair of this process, whose public key is in its record.
    key: Option<Arc<KeyPair>>,
    /// The bells of linked ranks of this host, and this rank's own, once links are open.
    bells: BTreeMap<usize, Arc<Bell>>,
    /// The port of links over TCP, once control channels are connected; subgroups share it.
    port: Option<Arc<links::LinkPort>>,
    /// The resources that subgroups share, once the communicator is made.
    group_resources: OnceLock<shared_group::GroupResources>,
    /// Raised to make every wait of this bootstrap fail.
    abort_flag: Arc<AtomicBool>,
    /// The store, until all links are open.
    startup_store: Option<Box<StartupStore>>,
}

/// Meets the other ranks of `config`'s world at the store, which is released afterwards.
///
/// # Errors
/// [`Error::Config`] if settings make no sense or differ between ranks, [`Error::Store`] if the
/// store can't be used, [`Error::MissingRanks`] at the timeout, [`Error::DuplicateRank`].
pub fn rendezvous_and_release(config: &Config) -> Result<Bootstrap> {
    let mut bootstrap = rendezvous(config)?;
    bootstrap.release_store();
    Ok(bootstrap)
}

/// Meets the other ranks and keeps the store until [`Bootstrap::release_store`] or
/// [`Bootstrap::report_failure`] is called.
pub(crate) fn rendezvous(config: &Config) -> Result<Bootstrap> {
    config.validate()?;
    raise_descriptor_limit();
    match config.store {
        Some(StoreAddr::Pmi(fd)) if config.size > 1 => meet(&kv::pmi::at_id(config, fd)?),
        _ => meet(config),
    }
}

/// As [`rendezvous`], at the store that `config` names.
fn meet(config: &Config) -> Result<Bootstrap> {
    let (unix, name) = listen::unix_listener(config)?;
    let process_table = open_process_table(config);
    let own_server = match &config.store {
        Some(address @ StoreAddr::UniqueId { .. }) => unique_id::take_server(address),
        _ => None,
    };
    let Some(address) = config.store.as_ref().filter(|_| config.size > 1) else {
        return meet_nobody(config, (unix, &name), process_table);
    };
    let secret = load_secret(config)?;
    let mut record = RankRecord::new(config, secret.as_ref(), &name, process_table.as_deref());
    let key = record.draw_key(config)?;
    let credentials = Credentials::of(config, secret.as_ref());
    let is_shared = matches!(address, StoreAddr::Fd(_));
    let turn = is_shared.then(LauncherStream::lock);
    let notice = WaitNotice::new();
    let deadline = deadline_after(config.timeout);
    let mut listens_at = ListensAt::default();
    let server = match address {
        StoreAddr::Fd(_) | StoreAddr::Pmi(_) => None,
        StoreAddr::UniqueId { .. } => own_server,
        _ if config.rank > 0 => None,
        _ => {
            let started = start_server(address, &credentials, config.size, &record, deadline)?;
            listens_at = started.1;
            Some(started.0)
        }
    };
    let is_of_rank_zero = server.is_none() && address.is_of_rank_zero();
    let result = match &server {
        Some(server) => server.connect(),
        None => Store::connect_with(address, &credentials, deadline),
    }
    .and_then(|mut store| {
        let mut gather = StoreGather {
            server: server.as_ref(),
            is_of_rank_zero,
            rank: config.rank,
            size: config.size,
            deadline,
            topic: "record",
            process_table: process_table.clone().filter(|_| is_shared),
            own_address: listens_at.own.or_else(|| store.own_address()),
            store: &mut store,
            listens_at: &listens_at.text,
            notice,
        };
        Ok((exchange_records(&mut gather, config, secret, &record, (unix, process_table))?, store))
    });
    match result {
        Ok((mut bootstrap, store)) => {
            let job = bootstrap.job;
            bootstrap.key = key;
            let store =
                StartupStore { store, server, deadline, is_shared, turn, is_of_rank_zero, job };
            bootstrap.startup_store = Some(store.into());
            Ok(bootstrap)
        }
        Err(error) => {
            let Some(server) = server else { return Err(error) };
            let lacks_descriptors = server.lacks_descriptors();
            // Late ranks still read the cause from the store.
            server.finish(config.size, Instant::now() + STORE_LINGER);
            Err(match error {
                Error::MissingRanks { missing, .. } if lacks_descriptors => {
                    Error::io(format!("accepting ranks {missing:?} at the store"), Errno::EMFILE)
                }
                error => error,
            })
        }
    }
}

/// The bootstrap of a world of one rank, which has no store.
fn meet_nobody(
    config: &Config,
    (unix, name): (Option<Socket>, &str),
    process_table: Option<Arc<ProcessTable>>,
) -> Result<Bootstrap> {
    let mut record = RankRecord::new(config, None, name, process_table.as_deref());
    if config.transport == Transport::Tcp {
        // Ranks that join later know the rank's addresses by this, and the ports when they join.
        record.peer.tcp = rank_listeners(config, None, true)?.1;
    }
    Bootstrap::new(config, None, (record.job, vec![record.peer]), unix, process_table)
}

/// The job's secret, if `config` names a source. A job that encrypts must have one.
///
/// # Errors
/// [`Error::Config`] if the source has no secret, or another user may know it.
pub fn load_secret(config: &Config) -> Result<Option<Secret>> {
    let secret = auth::secret::load(config)?;
    if config.encrypt && secret.is_none() {
        return Err(Error::Config {
            name: ENCRYPT.into(),
            given: "1".into(),
            expected: "there is no secret to make keys with: start this with ringrun, name a file \
                       with one in RINGREDUCE_SECRET_FILE, or call Builder::secret"
                .into(),
        });
    }
    Ok(secret)
}

/// Opens the launcher's process table, if the launcher has one of this version.
fn open_process_table(config: &Config) -> Option<Arc<ProcessTable>> {
    let opened = crate::memory::inherited::inherited_file(config.process_table_fd?)
        .map_err(|error| error.to_string());
    let opened = opened.and_then(|fd| ProcessTable::open(&fd).map_err(|error| error.to_string()));
    let tell =
        |error: &String| warn(&format!("the launcher's table in {PROCESS_TABLE_FD}: {error}"));
    opened.inspect_err(tell).ok().map(Arc::new)
}

/// Exchanges the ranks' records, and then the addresses of TCP listeners if a pair of ranks needs
/// TCP, or may need it in a recovery.
fn exchange_records(
    gather: &mut StoreGather<'_>,
    config: &Config,
    secret: Option<Secret>,
    record: &RankRecord,
    (unix, process_table): (Option<Socket>, Option<Arc<ProcessTable>>),
) -> Result<Bootstrap> {
    let address = gather.store.address().to_string();
    let decode = |bytes: &[u8]| RankRecord::decode(bytes).map_err(|e| stream_error(&address, e));
    if let Some(present) = gather.publish(&record.encode())? {
        let first = decode(&present)?;
        return Err(gather.publish_error(duplicate_rank(&first, record)));
    }
    // Rank 0 may have a smaller world size and never read this rank's record, so this rank compares
    // its settings with those of rank 0.
    let leader = decode(&gather.read(0)?)?;
    record.check_settings(&leader).map_err(|error| gather.publish_error(error))?;
    let records = gather.gather_all(|bytes| {
        let record = decode(&bytes)?;
        record.check_settings(&leader)?;
        // They are equal now, and most of the bytes that each of n ranks would read n times.
        Ok(record.without_settings().encode())
    });
    let records = records.map_err(|error| gather.explain(error, &leader.peer))?;
    let broken = |e: StreamError| stream_error(&address, e);
    let mut peers: Vec<PeerInfo> = Vec::with_capacity(config.size);
    for bytes in decode_table(&records).map_err(broken)? {
        let mut peer = decode(bytes)?.peer;
        if let Some(previous) = peers.last() {
            peer.share_texts(previous);
        }
        peers.push(PeerInfo { rank: peers.len(), ..peer });
    }
    let mut bootstrap = Bootstrap::new(config, secret, (leader.job, peers), unix, process_table)?;
    bootstrap.require_secret()?;
    gather.topic = "tcp";
    if bootstrap.needs_tcp() || !config.connects_all_pairs() {
        let is_one_host = bootstrap.is_one_host();
        // Of several addresses this one has shown that others reach it.
        let listening = match bootstrap.needs_tcp() {
            true => rank_listeners(config, gather.own_address, is_one_host),
            false => listen::survivor_listeners(config),
        };
        let (sockets, addresses) =
            listening.map_err(|error| gather.publish_own_error(error, &record.peer.peer()))?;
        bootstrap.tcp = sockets;
        gather.publish(addresses.to_string().as_bytes())?;
        let addresses = gather.gather_all(Ok);
        let addresses = addresses.map_err(|error| gather.explain(error, &leader.peer))?;
        let addresses = decode_table(&addresses).map_err(broken)?;
        for (peer, text) in bootstrap.peers.iter_mut().zip(addresses) {
            peer.tcp = TcpAddresses::parse(&String::from_utf8_lossy(text));
        }
    }
    Ok(bootstrap)
}

impl Bootstrap {
    /// Refuses a job on several hosts that has no secret: any process that reaches these hosts
    /// could take a rank's place. All ranks come to the same result.
    fn require_secret(&self) -> Result<()> {
        if self.is_one_host() || self.secret.is_some() || self.config.insecure {
            return Ok(());
        }
        let host = |ranks: &Vec<usize>| &*self.peers[ranks[0]].host;
        let names: Vec<_> = self.hosts.iter().take(MAX_NAMED_HOSTS).map(host).collect();
        let more = if self.hosts.len() > names.len() { ", .." } else { "" };
        let expected = format!(
            "the ranks are on {} hosts ({}{more}) and this job has no secret, so whoever reaches \
             their ports could take a rank's place. Make one on one host, by `ringrun secret` \
             or:\n    \
             (umask 077; head -c 32 /dev/urandom > \"$HOME/.ringreduce-secret\")\n\
             copy it to each host that has another home directory:\n    \
             scp -p \"$HOME/.ringreduce-secret\" HOST:\n\
             and set this variable for all ranks; their user owns the file, with mode 600:\n    \
             export {SECRET_FILE}=\"$HOME/.ringreduce-secret\"\n\
             On a network that nobody else reaches, {INSECURE}=1 or Builder::insecure(true) does \
             without",
            self.hosts.len(),
            names.join(", "),
        );
        Err(Error::Config { name: SECRET_FILE.into(), given: String::new(), expected })
    }
}

fn duplicate_rank(first: &RankRecord, second: &RankRecord) -> Error {
    let (first, second) = (&first.peer, &second.peer);
    Error::DuplicateRank { rank: second.rank, first: first.location(), second: second.location() }
}
