//! The meeting: ranks find each other through a store, agree on their settings, learn who sits on
//! which host, and open the streams that links run over. May touch: config, error, sockets.
//! Law: one host needs no TCP; nothing has a name in the file system; whoever does not belong here
//! neither stops nor delays the others.

pub(crate) mod auth;
mod connect;
mod exchange;
#[cfg(fuzzing)]
pub mod fuzz;
pub(crate) mod group_construction;
pub(crate) mod in_process;
mod inherited;
mod join_queue;
pub(crate) mod kv;
mod listen;
mod progress;
mod rank_record;
pub(crate) mod setup;
mod share_memory;
mod socket;
pub(crate) mod split;
mod start_up;
mod subgroup;
mod topology;

use std::io::ErrorKind;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use socket2::Socket;

pub use auth::secret::draw_secret;
pub use connect::{Connection, PairKey, Streams};
pub use kv::client::Store;
pub use kv::server::Server;
pub use progress::{Progress, Stage};
pub use setup::Builder;
pub use subgroup::Doors;
pub use topology::{LinkKind, PeerInfo};

use crate::config::{
    Config, ENCRYPT, INSECURE, ROLL_FD, SECRET_FILE, Secret, StoreAddr, deadline_after,
};
use crate::error::{Error, Limit, Result, warn};
use crate::health::process_table::Roll;
use crate::memory::resource_limit::raise_descriptor_limit;
use exchange::Gather;
pub(crate) use inherited::inherited_file;
pub(crate) use join_queue::{MOST_OUTSIDE, Newcomer, enter, newcomers};
use kv::client::{Pass, broken_store, refuse, resolve};
use rank_record::Record;
use start_up::Entrance;

/// The most hosts that an error names.
const MOST_NAMES: usize = 4;
/// How long rank 0 serves others after it failed, so that they learn why.
const AFTERCARE: Duration = Duration::from_secs(2);

/// Who is in the world, and how this rank reaches them.
#[derive(Debug)]
pub struct Meeting {
    /// This rank.
    pub rank: usize,
    /// Every rank's place, by rank.
    pub peers: Vec<PeerInfo>,
    /// The number of the job, drawn by rank 0.
    pub job: u64,
    /// The number of the membership.
    pub epoch: u32,
    secret: Option<Secret>,
    config: Config,
    hosts: Vec<Vec<usize>>,
    crowding: usize,
    residents: usize,
    /// Are all ranks of the job that are left among these?
    is_whole: bool,
    unix: Option<Socket>,
    tcp: Option<Socket>,
    /// What this rank's launcher has seen of its ranks.
    roll: Option<Arc<Roll>>,
    /// Raised when this rank is to wait for the others no more.
    abort: Arc<AtomicBool>,
    /// Until all links are open.
    entrance: Option<Entrance>,
}

/// Meets the other ranks of `config`'s world.
///
/// # Errors
/// [`Error::Config`] if settings make no sense or differ between ranks, [`Error::Store`] if the
/// store can't be used, [`Error::MissingRanks`] at the timeout, [`Error::DuplicateRank`].
pub fn meet(config: &Config) -> Result<Meeting> {
    let mut meeting = gather(config)?;
    meeting.is_complete();
    Ok(meeting)
}

/// The same, and the store stays until [`Meeting::is_complete`] or [`Meeting::failed`] is called.
pub(crate) fn gather(config: &Config) -> Result<Meeting> {
    config.validate()?;
    raise_descriptor_limit();
    let (unix, name) = listen::for_shared_memory(config)?;
    let roll = roll(config);
    let Some(address) = config.store.as_ref().filter(|_| config.size > 1) else {
        let record = Record::of(config, None, &name, roll.as_deref());
        return Meeting::new(config, None, vec![record], unix, roll);
    };
    let secret = auth::secret::of(config)?;
    if config.encrypt && secret.is_none() {
        return Err(Error::Config {
            name: ENCRYPT.into(),
            given: "1".into(),
            expected: "there is no secret to make keys with: start this with ringrun, name a file \
                       with one in RINGREDUCE_SECRET_FILE, or call Builder::secret"
                .into(),
        });
    }
    let record = Record::of(config, secret.as_ref(), &name, roll.as_deref());
    let pass = Pass::of(config, secret.as_ref());
    let shared = matches!(address, StoreAddr::Fd(_));
    let _turn = shared.then(turn);
    let began = Instant::now();
    let until = deadline_after(config.timeout);
    let server = match address {
        StoreAddr::Fd(_) => None,
        _ if config.rank > 0 => None,
        _ => Some(open_server(address, &pass, config.size, &record, until)?),
    };
    let result = match &server {
        Some(server) => server.connect(),
        None => Store::enter(address, &pass, until),
    }
    .and_then(|mut store| {
        let (rank, size) = (config.rank, config.size);
        let server = server.as_ref();
        let topic = "record";
        let (said, seen) = (false, roll.clone().filter(|_| shared));
        let mut gather =
            Gather { store: &mut store, server, rank, size, began, until, topic, roll: seen, said };
        Ok((exchange(&mut gather, config, secret, &record, (unix, roll))?, store))
    });
    match result {
        Ok((mut meeting, store)) => {
            meeting.entrance = Some(Entrance { store, server, until, shared, job: meeting.job });
            Ok(meeting)
        }
        Err(error) => {
            let Some(server) = server else { return Err(error) };
            let short = server.is_short();
            // Who comes late shall learn of it.
            server.finish(config.size, Instant::now() + AFTERCARE);
            Err(match error {
                Error::MissingRanks { missing, .. } if short => {
                    Error::io(format!("accepting ranks {missing:?} at the store"), Errno::EMFILE)
                }
                error => error,
            })
        }
    }
}

/// The roll that this rank's launcher keeps, if it keeps one of this version.
fn roll(config: &Config) -> Option<Arc<Roll>> {
    let opened = inherited_file(config.roll?).map_err(|error| error.to_string());
    let opened = opened.and_then(|fd| Roll::open(&fd).map_err(|error| error.to_string()));
    let say = |error: &String| warn(&format!("the launcher's roll in {ROLL_FD}: {error}"));
    opened.inspect_err(say).ok().map(Arc::new)
}

/// An inherited socket is one stream for all communicators of this process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The turn at it.
fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells who we are and learns who the others are; then where they accept TCP, if a pair needs it.
fn exchange(
    gather: &mut Gather<'_>,
    config: &Config,
    secret: Option<Secret>,
    record: &Record,
    (unix, roll): (Option<Socket>, Option<Arc<Roll>>),
) -> Result<Meeting> {
    let address = gather.store.address().to_string();
    let decode = |bytes: &[u8]| Record::decode(bytes).map_err(|e| broken_store(&address, e));
    if let Some(present) = gather.publish(&record.encode())? {
        let first = decode(&present)?;
        return Err(gather.call_off(duplicate(&first, record)));
    }
    // Rank 0 may believe in a smaller world and never look at our record: so we look at its.
    let leader = decode(&gather.read(0)?)?;
    record.agree(&leader).map_err(|error| gather.call_off(error))?;
    let records = gather.all(|bytes| decode(bytes)?.agree(&leader))?;
    let records = records.iter().map(|bytes| decode(bytes)).collect::<Result<_>>()?;
    let mut meeting = Meeting::new(config, secret, records, unix, roll)?;
    meeting.require_secret()?;
    gather.topic = "tcp";
    if meeting.needs_tcp() {
        let (socket, address) = match listen::for_tcp(config, meeting.hosts.len() == 1) {
            Ok(listening) => listening,
            Err(error) => return Err(gather.call_off(error)),
        };
        meeting.tcp = Some(socket);
        gather.publish(address.to_string().as_bytes())?;
        for (peer, text) in meeting.peers.iter_mut().zip(gather.all(|_| Ok(()))?) {
            peer.tcp = String::from_utf8_lossy(&text).parse().ok();
        }
    }
    Ok(meeting)
}

impl Meeting {
    /// Refuses a job whose ranks are on several hosts and that has no secret: whoever reaches these
    /// hosts could speak for a rank. All ranks come to the same answer.
    fn require_secret(&self) -> Result<()> {
        if self.hosts.len() == 1 || self.secret.is_some() || self.config.insecure {
            return Ok(());
        }
        let host = |ranks: &Vec<usize>| self.peers[ranks[0]].host.as_str();
        let names: Vec<_> = self.hosts.iter().take(MOST_NAMES).map(host).collect();
        let more = if self.hosts.len() > names.len() { ", .." } else { "" };
        let expected = format!(
            "the ranks are on {} hosts ({}{more}) and this job has no secret, so whoever reaches \
             their ports could take a rank's place. Make one on one host:\n    \
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

/// Rank 0's store, listening where the others look for it.
fn open_server(
    address: &StoreAddr,
    pass: &Pass,
    size: usize,
    record: &Record,
    until: Instant,
) -> Result<Server> {
    let server = Server::of_job(pass, size)?;
    let listening = match address {
        StoreAddr::Fd(_) => Ok(()),
        StoreAddr::Unix(name) => server.listen_unix(name),
        StoreAddr::Tcp { host, port } => {
            let found = resolve(host, *port)
                .map_err(|error| refuse(&address.to_string(), format!("no such host: {error}")))?;
            let mut last = Err(ErrorKind::AddrNotAvailable.into());
            for address in found {
                last = server.listen_tcp(address).map(|_| ());
                if !matches!(&last, Err(e) if e.kind() == ErrorKind::AddrNotAvailable) {
                    break;
                }
            }
            last
        }
    };
    let Err(error) = listening else { return Ok(server) };
    let reason = match error.kind() {
        ErrorKind::AddrInUse => match other_rank_0(address, pass, until) {
            Some(first) => return Err(duplicate(&first, record)),
            None => "rank 0 can't listen there, another program does; choose another port".into(),
        },
        ErrorKind::AddrNotAvailable => format!(
            "rank 0 runs on host {} and can't listen there, it is no address of this host",
            record.host
        ),
        _ if Limit::of(&error).is_some() => {
            return Err(Error::io(format!("listening at {address}"), error));
        }
        _ => format!("rank 0 can't listen there: {error}"),
    };
    Err(refuse(&address.to_string(), reason))
}

/// Who else is rank 0, if the listener at `address` is such a one.
fn other_rank_0(address: &StoreAddr, pass: &Pass, until: Instant) -> Option<Record> {
    let until = until.min(Instant::now() + AFTERCARE);
    let mut store = Store::enter(address, pass, until).ok()?;
    Record::decode(&store.get("record/0", until).ok()??).ok()
}

fn duplicate(first: &Record, second: &Record) -> Error {
    let rank = second.rank as usize;
    Error::DuplicateRank { rank, first: first.place(), second: second.place() }
}
