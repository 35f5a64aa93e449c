//! The client of a store: a key-value service that a world of ranks meets at. May touch: entry,
//! wire, socket, fd. Law: every request has a deadline, and the error names the store.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use socket2::Socket;

use super::protocol::{Broken, Frame, Inbox, Kind, MAX_VALUE};
use crate::bootstrap::auth::acceptor::{Sealing, offer};
use crate::bootstrap::auth::handshake::Identity;
use crate::bootstrap::auth::keys::{Keys, number_of};
use crate::bootstrap::exchange::SOON;
use crate::bootstrap::inherited::inherited;
use crate::bootstrap::socket::{connect_tcp, connect_unix, send_all, send_now, wait_one};
use crate::config::{Config, Secret, StoreAddr};
use crate::error::{Error, Limit, Result, warn};
use crate::health::control_channel::watch;
use crate::transport::aead::{Sealer, Seals};

/// How much later than the deadline of a request its answer may come.
const GRACE: Duration = Duration::from_secs(2);
/// The longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// What a client proves to a store, and the store to it.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(super) keys: Keys,
    job: u64,
    rank: u32,
    /// After how long without a sign of it another host is taken for unreachable.
    unreachable: Duration,
}

impl Default for Pass {
    /// Nothing.
    fn default() -> Self {
        let unreachable = Config::default().peer_timeout;
        Self { keys: Keys::new(None, 0), job: 0, rank: 0, unreachable }
    }
}

impl Pass {
    /// That of a rank. Before the ranks have met, a job's number is what its launcher calls it.
    pub(crate) fn of(config: &Config, secret: Option<&Secret>) -> Self {
        let job = number_of(config.job.as_deref());
        let (keys, rank) = (Keys::new(secret, job), config.rank as u32);
        Self { keys, job, rank, unreachable: config.peer_timeout }
    }

    /// The stream of this job that a client should say it is.
    pub(super) fn expects(&self, said: &Identity) -> Option<Identity> {
        let here = Identity::of_store(self.job, said.from);
        (said.role == here.role).then_some(here)
    }
}

/// A connection to a store.
#[derive(Debug)]
pub struct Store {
    socket: Socket,
    inbox: Inbox,
    /// What it says is sealed by this, if it had to prove who it is.
    sealer: Option<Sealer>,
    address: String,
    next_id: u32,
}

impl Store {
    /// Connects to the store at `address`, of a job without a secret; while nobody listens there,
    /// tries again until `until`.
    ///
    /// # Errors
    /// [`Error::Store`] if the store can't be reached in time, is silent, or is something else.
    pub fn connect(address: &StoreAddr, until: Instant) -> Result<Self> {
        Self::enter(address, &Pass::default(), until)
    }

    /// The same with a pass.
    pub(crate) fn enter(address: &StoreAddr, pass: &Pass, until: Instant) -> Result<Self> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            let reason = match Self::attempt(address, pass, until) {
                Ok(store) => return Ok(store),
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Own(error)) => {
                    return Err(Error::io(format!("connecting to the store at {address}"), error));
                }
                Err(Attempt::Again(reason)) => reason,
            };
            if Instant::now() + pause >= until {
                let waited = began.elapsed();
                return Err(refuse(
                    &address.to_string(),
                    format!(
                        "no answer within {waited:.1?} ({reason}). Rank 0 listens there: is it \
                         running, and is this its host? (A world that is complete listens no more)"
                    ),
                ));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// The store at the other end of `stream`.
    ///
    /// # Errors
    /// [`Error::Store`] if it is silent until `until`, or something else.
    pub fn over(stream: UnixStream, address: &str, until: Instant) -> Result<Self> {
        Self::begin(stream.into(), None, address, until).map_err(|(_, error)| error)
    }

    /// The launcher's store, by the socket that this process inherited from it: no new meeting.
    pub(crate) fn of_launcher(fd: RawFd) -> Result<Self> {
        let address = StoreAddr::Fd(fd).to_string();
        let copy = inherited(fd).map_err(|error| refuse(&address, error.to_string()))?;
        Ok(Self::new(copy.into(), None, &address))
    }

    fn new(socket: Socket, sealing: Option<Seals>, address: &str) -> Self {
        // An inherited socket may still hold an answer to a process that died: start at random.
        let next_id = getrandom::u32().unwrap_or_default();
        let (sealer, inbox) = match sealing {
            Some(Seals { sealer, opener }) => (Some(sealer), Inbox::sealed(opener)),
            None => (None, Inbox::default()),
        };
        Self { socket, inbox, sealer, address: address.into(), next_id }
    }

    fn attempt(address: &StoreAddr, pass: &Pass, until: Instant) -> Result<Self, Attempt> {
        let name = address.to_string();
        let again = |error: std::io::Error| match Limit::of(&error) {
            Some(_) => Attempt::Own(error),
            None => Attempt::Again(error.to_string()),
        };
        let socket = match address {
            StoreAddr::Fd(fd) => {
                let copy = inherited(*fd).map_err(|error| {
                    if Limit::of(&error).is_some() {
                        return Attempt::Own(error);
                    }
                    let hint = "the launcher's socket is not usable; start this with ringrun, or \
                                unset RINGREDUCE_STORE";
                    Attempt::Final(refuse(&name, format!("{error}: {hint}")))
                })?;
                return Self::begin(copy.into(), None, &name, until)
                    .map_err(|(_, e)| Attempt::Final(e));
            }
            StoreAddr::Unix(path) => connect_unix(path).map_err(|error| match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::WouldBlock => again(error),
                _ if Limit::of(&error).is_some() => Attempt::Own(error),
                _ => Attempt::Final(refuse(&name, error.to_string())),
            })?,
            StoreAddr::Tcp { host, port } => {
                let mut last = Attempt::Again("the name has no address".into());
                let found = resolve(host, *port).map_err(again)?;
                let connect = |&address| match connect_tcp(address, until, &|| false)
                    .and_then(|socket| watch(&socket, pass.unreachable).map(|()| socket))
                {
                    Ok(socket) => Some(socket),
                    Err(error) => {
                        last = again(error);
                        None
                    }
                };
                match found.iter().find_map(connect) {
                    Some(socket) => socket,
                    None => return Err(last),
                }
            }
        };
        let sealing = greet(&socket, pass, until).map_err(|error| match error.kind() {
            ErrorKind::InvalidData | ErrorKind::TimedOut => {
                Attempt::Final(refuse(&name, error.to_string()))
            }
            _ => again(error),
        })?;
        Self::begin(socket, sealing, &name, until).map_err(|(broken, error)| match broken {
            // A listener on its way out closes what it has not accepted.
            Some(Broken::Closed) => Attempt::Again("it closed the connection".into()),
            _ => Attempt::Final(error),
        })
    }

    fn begin(
        socket: Socket,
        sealing: Sealing,
        address: &str,
        until: Instant,
    ) -> Result<Self, (Option<Broken>, Error)> {
        let mut store = Self::new(socket, sealing, address);
        let answer = store.exchange(Kind::Begin, "", &[], Duration::ZERO, until);
        match answer.map_err(|broken| (Some(broken.clone()), store.trouble(broken)))?.kind {
            Kind::Done => Ok(store),
            other => Err((None, store.trouble(Broken::Garbage(format!("answered {other:?}"))))),
        }
    }

    /// Stores `value` at `key` unless the key has one, which is then given back.
    ///
    /// # Errors
    /// [`Error::Store`] if the store is gone, silent until `until`, full, or something else.
    pub fn set_new(&mut self, key: &str, value: &[u8], until: Instant) -> Result<Option<Vec<u8>>> {
        if value.len() > MAX_VALUE {
            let reason = format!("a value of {} bytes is above {MAX_VALUE}", value.len());
            return Err(refuse(&self.address, reason));
        }
        let answer = self.ask(Kind::SetNew, key, value, Duration::ZERO, until)?;
        match answer.kind {
            Kind::Done => Ok(None),
            Kind::Value => Ok(Some(answer.value)),
            other => Err(self.unexpected(other)),
        }
    }

    /// The value at `key`, waiting for it until `until`; `None` if none came.
    ///
    /// # Errors
    /// As [`Self::set_new`].
    pub fn get(&mut self, key: &str, until: Instant) -> Result<Option<Vec<u8>>> {
        Ok(self.get_any(&[key], until, until)?.map(|(_, value)| value))
    }

    /// The first of `keys` that has a value, and the value, waiting for one until `look`; a store
    /// that is paused may answer until `until`.
    pub(crate) fn get_any(
        &mut self,
        keys: &[&str],
        look: Instant,
        until: Instant,
    ) -> Result<Option<(String, Vec<u8>)>> {
        let wait = look.saturating_duration_since(Instant::now());
        let answer = self.ask(Kind::Get, &keys.join("\n"), &[], wait, until)?;
        match answer.kind {
            Kind::Value => Ok(Some((answer.key, answer.value))),
            Kind::Absent => Ok(None),
            other => Err(self.unexpected(other)),
        }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn ask(
        &mut self,
        kind: Kind,
        key: &str,
        value: &[u8],
        wait: Duration,
        until: Instant,
    ) -> Result<Frame> {
        let answer =
            self.exchange(kind, key, value, wait, until).map_err(|broken| self.trouble(broken))?;
        match answer.kind {
            Kind::Refused => {
                let reason = String::from_utf8_lossy(&answer.value).into_owned();
                Err(refuse(&self.address, reason))
            }
            _ => Ok(answer),
        }
    }

    /// Says something, and does not wait for the answer: a store that is silent stops nobody.
    pub(crate) fn tell(&mut self, kind: Kind, value: &[u8]) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let frame = Frame { kind, id, wait_ms: 0, key: String::new(), value: value.to_vec() };
        if let Some(bytes) = frame.travelling(self.sealer.as_mut()) {
            // There is room for so few bytes, or nobody to hear them.
            let _ = send_now(&self.socket, &bytes);
        }
    }

    /// One request and its answer; answers to requests of others before us are skipped.
    fn exchange(
        &mut self,
        kind: Kind,
        key: &str,
        value: &[u8],
        wait: Duration,
        until: Instant,
    ) -> Result<Frame, Broken> {
        let began = Instant::now();
        let until = until.max(began) + GRACE;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let frame = Frame { kind, id, wait_ms, key: key.into(), value: value.to_vec() };
        let failed = |error: std::io::Error| match error.kind() {
            // Not the system's: it was waited long enough.
            ErrorKind::TimedOut if error.raw_os_error().is_none() => Broken::Garbage(silent(began)),
            _ => Broken::from(error),
        };
        let bytes = frame.travelling(self.sealer.as_mut()).ok_or(Broken::Closed)?;
        send_all(&self.socket, &bytes, until).map_err(failed)?;
        loop {
            match self.inbox.pull(&self.socket)? {
                Some(answer) if answer.id == id => return Ok(answer),
                Some(_) => {}
                None => self.wait(began + wait, until).map_err(failed)?,
            }
        }
    }

    /// Waits for an answer that is due at `due`, and says so if none comes for long.
    fn wait(&self, due: Instant, until: Instant) -> std::io::Result<()> {
        let soon = due + SOON;
        let comes = |until| wait_one(self.socket.as_fd(), PollFlags::POLLIN, until);
        if soon < until && Instant::now() < soon {
            match comes(soon) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                done => return done,
            }
            warn(&format!("no answer from the store at {} for {SOON:.0?}", self.address));
        }
        comes(until)
    }

    fn trouble(&self, broken: Broken) -> Error {
        broken_store(&self.address, broken)
    }

    pub(crate) fn unexpected(&self, kind: Kind) -> Error {
        refuse(&self.address, format!("it gave an answer that does not fit ({kind:?})"))
    }
}

/// The handshake with a store.
fn greet(socket: &Socket, pass: &Pass, until: Instant) -> std::io::Result<Sealing> {
    let began = Instant::now();
    let until = until.max(began) + GRACE;
    offer(socket, &pass.keys, Identity::of_store(pass.job, pass.rank), until, &|| false).map_err(
        |error| match error.kind() {
            ErrorKind::TimedOut => std::io::Error::new(ErrorKind::TimedOut, silent(began)),
            _ => error,
        },
    )
}

/// What is wrong with one that says nothing.
fn silent(began: Instant) -> String {
    format!("it is silent for {:.1?}; is it the store of this job?", began.elapsed())
}

/// How an attempt to connect failed.
enum Attempt {
    /// The store may come up yet.
    Again(String),
    /// Waiting does not help.
    Final(Error),
    /// Nor here: it is a limit of this process.
    Own(std::io::Error),
}

/// The addresses of a host.
pub(crate) fn resolve(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// The error of a store that says no more, or what makes no sense.
pub(crate) fn broken_store(address: &str, broken: Broken) -> Error {
    let reason = match broken {
        Broken::Closed => "it closed the connection; did rank 0 or the launcher end?".into(),
        Broken::Unreachable => {
            "its host is unreachable; RINGREDUCE_PEER_TIMEOUT sets how long it may be".into()
        }
        Broken::Garbage(what) => what,
    };
    refuse(address, reason)
}

/// An [`Error::Store`].
pub(crate) fn refuse(address: &str, reason: impl Into<String>) -> Error {
    Error::Store { address: address.into(), reason: reason.into() }
}
