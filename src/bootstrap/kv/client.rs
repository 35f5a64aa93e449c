//! Client of the rendezvous store: connects with backoff, authenticates, and reads and writes
//! values.
//! Law: every request has a deadline, and every error names the store.

mod interrupted;
mod unanswered;

use std::io::ErrorKind;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use nix::poll::PollFlags;
use socket2::Socket;

use super::attempts::{Attempt, Attempts};
use super::credentials::{ANSWER_GRACE, Credentials, silence_reason};
use super::errors::{USED_ID, name_error, store_error, stream_error};
use super::protocol::{FrameBuffer, FrameKind, MAX_VALUE_LEN, StoreFrame, StreamError};
use crate::bootstrap::CHOOSE_STORE_NAME;
use crate::bootstrap::name_lookup::{LOOKUP_TIMEOUT, NameLookup};
use crate::bootstrap::socket::{connect_unix, wait_for};
use crate::codec::printable;
use crate::config::StoreAddr;
use crate::error::{Error, Limit, Result, warn};
use crate::health::control_channel::is_unreachable;
use crate::memory::inherited::inherited_socket;
use crate::sync::{FIRST_NOTICE, Instant, WaitNotice};
use crate::transport::aead::{AeadKeys, SealingKey};

/// How late an answer is that the user is told of, if the request waits at the store.
const LATE_ANSWER: Duration = Duration::from_secs(1);
/// How often a waiting client checks that the store's host gives signs of life.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest backoff between two attempts to connect.
const MAX_BACKOFF: Duration = Duration::from_millis(200);

/// A client's connection to a store.
#[derive(Debug)]
pub struct Store {
    pub(super) socket: Socket,
    inbox: FrameBuffer,
    /// Bytes of requests that have not left. Of a request that was given up in the middle, the rest
    /// goes before the next one.
    unsent: Vec<u8>,
    /// The inherited descriptor, if this is the launcher's stream.
    launcher_fd: Option<RawFd>,
    /// Encrypts requests, if the stream was authenticated.
    sealer: Option<SealingKey>,
    address: String,
    next_id: u32,
    /// The purpose of a request that may take long, as notices to the user name it.
    waits_for: Option<&'static str>,
}

impl Store {
    /// Connects to the store of a job without a secret at `address`. While no listener is there,
    /// tries again until `deadline`.
    ///
    /// # Errors
    /// [`Error::Store`] if the store can't be reached in time, is silent, or is another program.
    pub fn connect(address: &StoreAddr, deadline: Instant) -> Result<Self> {
        Self::connect_with(address, &Credentials::default(), deadline)
    }

    /// Connects as [`Self::connect`], with credentials.
    pub(crate) fn connect_with(
        address: &StoreAddr,
        credentials: &Credentials,
        deadline: Instant,
    ) -> Result<Self> {
        let attempts = Attempts::new(address, credentials.rank);
        let mut lookup = address.host_and_port().map(|(host, port)| NameLookup::new(host, port));
        let mut backoff = Duration::from_millis(5);
        loop {
            match Self::try_connect(address, credentials, deadline, &attempts, &mut lookup) {
                Ok(store) => return Ok(store),
                Err(Failure::Fatal(error)) => return Err(error),
                Err(Failure::Local(error)) => {
                    return Err(Error::io(format!("connecting to the store at {address}"), error));
                }
                Err(Failure::Retry) => {}
            }
            if Instant::now() + backoff >= deadline {
                return Err(store_error(&address.to_string(), attempts.final_reason()));
            }
            attempts.tell_if_due();
            thread::sleep(backoff);
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// A client of the store at the other end of `stream`.
    ///
    /// # Errors
    /// [`Error::Store`] if the store is silent until `deadline`, or is another program.
    pub fn over_stream(stream: UnixStream, address: &str, deadline: Instant) -> Result<Self> {
        let store = Self::new(stream.into(), None, address);
        store.begin(deadline).map_err(|(_, error)| error)
    }

    /// A client of the launcher's store, over the inherited socket, without a new rendezvous.
    pub(crate) fn inherited(fd: RawFd) -> Result<Self> {
        let address = StoreAddr::Fd(fd).to_string();
        let stream =
            inherited_socket(fd).map_err(|error| store_error(&address, error.to_string()))?;
        Ok(Self::new(stream.into(), None, &address).of_launcher(fd))
    }

    fn new(socket: Socket, stream_keys: Option<AeadKeys>, address: &str) -> Self {
        // Ids start at random, since an inherited socket may still hold an answer to a process that
        // has ended.
        let next_id = getrandom::u32().unwrap_or_default();
        let (sealer, inbox) = match stream_keys {
            Some(AeadKeys { sealer, opener }) => (Some(sealer), FrameBuffer::encrypted(opener)),
            None => (None, FrameBuffer::default()),
        };
        let (unsent, launcher_fd, waits_for) = (Vec::new(), None, None);
        let address = address.into();
        Self { socket, inbox, unsent, launcher_fd, sealer, address, next_id, waits_for }
    }

    fn try_connect(
        address: &StoreAddr,
        credentials: &Credentials,
        deadline: Instant,
        attempts: &Attempts<'_>,
        lookup: &mut Option<NameLookup<'_>>,
    ) -> Result<Self, Failure> {
        let name = address.to_string();
        let retry = |error: std::io::Error| match Limit::of(&error) {
            Some(_) => Failure::Local(error),
            None => {
                attempts.set_error(error.to_string());
                Failure::Retry
            }
        };
        let socket = match address {
            StoreAddr::Fd(fd) => {
                let stream = inherited_socket(*fd).map_err(|error| {
                    if Limit::of(&error).is_some() {
                        return Failure::Local(error);
                    }
                    if error.kind() == ErrorKind::NotConnected {
                        return Failure::Fatal(store_error(&name, error.to_string()));
                    }
                    let hint = "the launcher's socket is not usable; start this with ringrun, or \
                                unset RINGREDUCE_STORE";
                    Failure::Fatal(store_error(&name, format!("{error}: {hint}")))
                })?;
                let store = Self::new(stream.into(), None, &name).of_launcher(*fd);
                return store.begin(deadline).map_err(|(_, e)| Failure::Fatal(e));
            }
            // Ranks meet at the store of a unique id instead, which they pass by PMI.
            StoreAddr::Pmi(_) => return Err(Failure::Fatal(store_error(&name, "it is no store"))),
            StoreAddr::Unix(path) => connect_unix(path).map_err(|error| match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::WouldBlock => retry(error),
                _ if Limit::of(&error).is_some() => Failure::Local(error),
                ErrorKind::PermissionDenied => {
                    Failure::Fatal(store_error(&name, format!("{error}; {CHOOSE_STORE_NAME}")))
                }
                _ => Failure::Fatal(store_error(&name, error.to_string())),
            })?,
            StoreAddr::Tcp { host, .. } | StoreAddr::UniqueId { host, .. } => {
                let found = match lookup {
                    Some(lookup) => lookup.addresses(deadline.min(Instant::now() + LOOKUP_TIMEOUT)),
                    None => Ok(Vec::new()),
                };
                let found = found.map_err(|error| {
                    attempts.set(Attempt::NoAddress(name_error(host, &error)));
                    Failure::Retry
                })?;
                let dialled = credentials.dial(&found, deadline, attempts);
                dialled.map_err(|error| match (address, error.kind()) {
                    // The process that makes an id listens before anybody has the id.
                    (StoreAddr::UniqueId { .. }, ErrorKind::ConnectionRefused) => {
                        Failure::Fatal(store_error(&name, USED_ID))
                    }
                    _ => retry(error),
                })?
            }
        };
        let authenticated = credentials.authenticate(&socket, deadline, attempts);
        let stream_keys = authenticated.map_err(|error| match error.kind() {
            ErrorKind::InvalidData | ErrorKind::TimedOut => {
                Failure::Fatal(store_error(&name, error.to_string()))
            }
            _ => retry(error),
        })?;
        let store = Self::new(socket, stream_keys, &name);
        store.begin(deadline).map_err(|(broken, error)| {
            match broken {
                // A listener that ends closes the connections in its backlog.
                Some(StreamError::Closed) => {
                    attempts.set_error("it closed the connection".into());
                    Failure::Retry
                }
                _ => Failure::Fatal(error),
            }
        })
    }

    fn begin(mut self, deadline: Instant) -> Result<Self, (Option<StreamError>, Error)> {
        let answer = self.round_trip(FrameKind::Begin, "", &[], Duration::ZERO, deadline);
        match answer.map_err(|broken| (Some(broken.clone()), self.stream_error(broken)))?.kind {
            FrameKind::Done => Ok(self),
            other => Err((
                None,
                self.stream_error(StreamError::Malformed(format!("answered {other:?}"))),
            )),
        }
    }

    /// Stores `value` at `key` unless the key has a value; returns the present value then.
    ///
    /// # Errors
    /// [`Error::Store`] if the store is gone, silent until `deadline`, full, or another program.
    pub fn set_new(
        &mut self,
        key: &str,
        value: &[u8],
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>> {
        self.check_length(value)?;
        let answer = self.request(FrameKind::SetNew, key, value, Duration::ZERO, deadline)?;
        match answer.kind {
            FrameKind::Done => Ok(None),
            FrameKind::Value => Ok(Some(answer.value)),
            other => Err(self.unexpected_answer(other)),
        }
    }

    fn check_length(&self, value: &[u8]) -> Result<()> {
        if value.len() <= MAX_VALUE_LEN {
            return Ok(());
        }
        let reason = format!("a value of {} bytes is above {MAX_VALUE_LEN}", value.len());
        Err(store_error(&self.address, reason))
    }

    /// Waits until `deadline` for a value at `key`; `None` if none came.
    ///
    /// # Errors
    /// As [`Self::set_new`].
    pub fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>> {
        Ok(self.get_any(&[key], deadline, deadline)?.map(|(_, value)| value))
    }

    /// Waits until `wait_until` for a value at one of `keys`; returns the first key that has one,
    /// and the value. A store that is slow may answer until `deadline`.
    pub(crate) fn get_any(
        &mut self,
        keys: &[&str],
        wait_until: Instant,
        deadline: Instant,
    ) -> Result<Option<(String, Vec<u8>)>> {
        let wait = wait_until.saturating_duration_since(Instant::now());
        let answer = self.request(FrameKind::Get, &keys.join("\n"), &[], wait, deadline)?;
        match answer.kind {
            FrameKind::Value => Ok(Some((answer.key, answer.value))),
            FrameKind::Absent => Ok(None),
            other => Err(self.unexpected_answer(other)),
        }
    }

    /// Names the purpose of the next requests in notices to the user.
    pub(crate) fn set_waits_for(&mut self, purpose: &'static str) {
        self.waits_for = Some(purpose);
    }

    /// The store's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn request(
        &mut self,
        kind: FrameKind,
        key: &str,
        value: &[u8],
        wait: Duration,
        deadline: Instant,
    ) -> Result<StoreFrame> {
        let answer = self
            .round_trip(kind, key, value, wait, deadline)
            .map_err(|broken| self.stream_error(broken))?;
        match answer.kind {
            FrameKind::Refused => {
                let reason = printable(&String::from_utf8_lossy(&answer.value));
                Err(store_error(&self.address, reason))
            }
            _ => Ok(answer),
        }
    }

    /// Sends a request and waits for its answer. Answers to earlier requests are skipped.
    fn round_trip(
        &mut self,
        kind: FrameKind,
        key: &str,
        value: &[u8],
        wait: Duration,
        deadline: Instant,
    ) -> Result<StoreFrame, StreamError> {
        let began = Instant::now();
        let deadline = deadline.max(began) + ANSWER_GRACE;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let frame = StoreFrame { kind, id, wait_ms, key: key.into(), value: value.to_vec() };
        let failed = |error: std::io::Error| match error.kind() {
            // Our own deadline has passed; the kernel's timeouts have an error number.
            ErrorKind::TimedOut if error.raw_os_error().is_none() => {
                StreamError::Malformed(silence_reason(began))
            }
            _ => StreamError::from(error),
        };
        let bytes = frame.to_wire(self.sealer.as_mut()).ok_or(StreamError::Closed)?;
        self.send_whole(&bytes, deadline).map_err(failed)?;
        let mut notice = WaitNotice::new();
        loop {
            match self.inbox.try_read(&self.socket)? {
                Some(answer) if answer.id == id => return Ok(answer),
                Some(_) => {}
                None => {
                    let warn_at = (began + FIRST_NOTICE).max(began + wait + LATE_ANSWER);
                    self.wait(began, warn_at, deadline, &mut notice).map_err(failed)?;
                }
            }
        }
    }

    /// Waits for the answer to a request of the time `began`; warns if none has come at `warn_at`.
    fn wait(
        &self,
        began: Instant,
        warn_at: Instant,
        deadline: Instant,
        notice: &mut WaitNotice,
    ) -> std::io::Result<()> {
        let mut readable_by = |deadline: Instant| loop {
            let next_check = deadline.min(Instant::now() + SILENCE_CHECK_INTERVAL);
            match wait_for(self.socket.as_fd(), PollFlags::POLLIN, next_check) {
                Err(error) if error.kind() == ErrorKind::TimedOut && next_check < deadline => {
                    if let Some(purpose) = self.waits_for {
                        notice.tell_if_due(|waited| format!("waited {waited:.0?} {purpose}"));
                    }
                    if is_unreachable(&self.socket) {
                        return Err(ErrorKind::HostUnreachable.into());
                    }
                }
                done => return done,
            }
        };
        if warn_at < deadline && Instant::now() < warn_at {
            match readable_by(warn_at) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                done => return done,
            }
            let other_reason = match self.socket.local_addr() {
                Ok(address) if address.is_unix() => {
                    "another process may use the same connection: a program of a rank that is \
                     started twice, or that starts others, gives each but one of them \
                     RINGREDUCE_LAUNCHER=none"
                }
                _ => {
                    "the way to it may drop long packets (compare the MTU of the hosts' interfaces)"
                }
            };
            warn(&format!(
                "waited {:.0?} for an answer of the store at {}: rank 0, or the launcher or \
                 program that serves it, may be stopped, or {other_reason}",
                began.elapsed(),
                self.address
            ));
        }
        readable_by(deadline)
    }

    pub(super) fn stream_error(&self, broken: StreamError) -> Error {
        stream_error(&self.address, broken)
    }

    pub(crate) fn unexpected_answer(&self, kind: FrameKind) -> Error {
        store_error(&self.address, format!("it gave an answer that does not fit ({kind:?})"))
    }
}

/// A failed attempt to connect.
enum Failure {
    /// The store may not have started yet.
    Retry,
    /// A further attempt can't help.
    Fatal(Error),
    /// A limit of this process, which no further attempt mends.
    Local(std::io::Error),
}
