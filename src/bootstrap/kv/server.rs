//! Server of the rendezvous store: one thread polls and serves all connections.
//! Law: no peer can make the server wait, allocate without bound, or end. A connection is dropped
//! if it fails the handshake, sends malformed bytes, or stops in the middle of a message.

mod absences;
mod accept;
mod join_queue;
mod requests;

pub use join_queue::Excluded;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};

use super::client::Store;
use super::connection::Client;
use super::credentials::Credentials;
use super::protocol::{FrameKind, StreamError};
use crate::bootstrap::auth::rejected::{Rejection, RejectionLog};
use crate::bootstrap::progress::Progress;
use crate::bootstrap::socket::{
    listen_tcp, listen_unix, pending_limit, try_recv, try_send, unix_pair, wait,
};
use crate::error::{Error, Result};
use crate::health::control_channel::set_keepalive;
use crate::sync::Instant;
use absences::Absence;

/// How long this process waits for its own store.
const OWN_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The least and the greatest limit for connections in their handshake; between them the limit is
/// twice the world size.
const PENDING_LIMITS: (usize, usize) = (64, 4096);

/// A store's server. Dropping it ends the server and all its connections.
#[derive(Debug)]
pub struct Server {
    commands: Sender<Command>,
    wakeup: Socket,
    thread: Option<JoinHandle<()>>,
    /// True if the last connection was rejected for want of a descriptor.
    lacks_descriptors: Arc<AtomicBool>,
    /// The ids of evicted processes arrive here.
    excluded_receiver: Socket,
}

#[derive(Debug)]
enum Command {
    AddConnection(Socket, Progress),
    AddListener(Socket),
    CloseListeners,
    Finish {
        deadline: Instant,
        expected: usize,
    },
    /// Answered once all earlier requests are processed.
    Drain(Sender<()>),
}

impl Server {
    /// A store without listeners, of a job without a secret.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left.
    pub fn new() -> Result<Self> {
        Self::of_job(&Credentials::default(), 1)
    }

    /// The store of a job of `size` ranks with these credentials.
    pub(crate) fn of_job(credentials: &Credentials, size: usize) -> Result<Self> {
        let io = |error| Error::io("starting a store", error);
        let (wakeup, wakeup_receiver) =
            Socket::pair(Domain::UNIX, Type::STREAM, None).map_err(io)?;
        let (excluded_receiver, excluded_sender) =
            Socket::pair(Domain::UNIX, Type::SEQPACKET, None).map_err(io)?;
        let (commands, command_queue) = channel();
        let lacks_descriptors = Arc::new(AtomicBool::new(false));
        let state = ServerState {
            lacks_descriptors: Arc::clone(&lacks_descriptors),
            command_queue,
            wakeup_receiver,
            excluded_sender,
            listeners: Vec::new(),
            credentials: credentials.clone(),
            max_pending: pending_limit((2 * size).clamp(PENDING_LIMITS.0, PENDING_LIMITS.1), size),
            rejections: RejectionLog::new("the store"),
            spare_fd: File::open("/dev/null").ok(),
            paused_until: None,
            clients: Vec::new(),
            values: BTreeMap::new(),
            value_bytes: 0,
            absences: BTreeMap::new(),
            departures: 0,
            begun_clients: 0,
            last_join_number: 0,
            finish: None,
            drain_waiters: Vec::new(),
        };
        let thread = thread::Builder::new().name("ringreduce-store".into());
        let thread = thread.spawn(move || state.serve());
        let thread = thread.map_err(|e| Error::no_thread("starting a store's thread", e))?;
        Ok(Self { commands, wakeup, thread: Some(thread), lacks_descriptors, excluded_receiver })
    }

    /// Serves one more client: the peer at the other end of `stream`. Returns the progress that its
    /// requests tell.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn adopt(&self, stream: UnixStream) -> Result<Progress> {
        let progress = Progress::default();
        self.send_command(Command::AddConnection(stream.into(), progress.clone()))?;
        Ok(progress)
    }

    /// A client in this process.
    ///
    /// # Errors
    /// If the system has no descriptor left, or the server has ended.
    pub fn connect(&self) -> Result<Store> {
        let (ours, theirs) =
            unix_pair().map_err(|e| Error::io("connecting to the own store", e))?;
        self.adopt(theirs)?;
        Store::over_stream(ours, "this process", Instant::now() + OWN_CONNECT_TIMEOUT)
    }

    /// Listens at `address` too; returns the address with its port.
    ///
    /// # Errors
    /// The system's answer, among them [`io::ErrorKind::AddrInUse`] and
    /// [`io::ErrorKind::AddrNotAvailable`].
    pub fn listen_tcp(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::from(listen_tcp(address)?);
        let bound = listener.local_addr()?;
        self.send_command(Command::AddListener(listener.into())).map_err(io::Error::other)?;
        Ok(bound)
    }

    /// Listens at the abstract Unix socket `name` too, for processes of the same user.
    ///
    /// # Errors
    /// The system's answer, among them [`io::ErrorKind::AddrInUse`].
    pub fn listen_unix(&self, name: &str) -> io::Result<()> {
        self.send_command(Command::AddListener(listen_unix(name)?)).map_err(io::Error::other)
    }

    /// True if connections wait for which there is no descriptor.
    pub(crate) fn lacks_descriptors(&self) -> bool {
        self.lacks_descriptors.load(Ordering::Relaxed)
    }

    /// Closes the listeners; connections stay open.
    pub(crate) fn close_listeners(&self) -> Result<()> {
        self.send_command(Command::CloseListeners)
    }

    /// Waits until all requests that ranks have sent so far are processed, also those of ranks that
    /// have ended since.
    pub fn process_pending(&self) {
        let (heard, hears) = channel();
        if self.send_command(Command::Drain(heard)).is_ok() {
            // An error means that the server has ended.
            let _ = hears.recv();
        }
    }

    /// Ends the server once `expected` clients have come and all have left, or at `deadline`.
    pub(crate) fn finish(mut self, expected: usize, deadline: Instant) {
        if self.send_command(Command::Finish { deadline, expected }).is_ok() {
            self.join_thread();
        }
    }

    fn send_command(&self, command: Command) -> Result<()> {
        let sent = self.commands.send(command).map_err(|_| io::Error::other("it has ended"));
        sent.and_then(|()| try_send(&self.wakeup, &[1]))
            .map(|_sent| ())
            .map_err(|error| Error::io("speaking to the store's thread", error))
    }

    fn join_thread(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already_ended = self.wakeup.shutdown(std::net::Shutdown::Both);
        self.join_thread();
    }
}

/// State of the server's thread.
struct ServerState {
    command_queue: Receiver<Command>,
    wakeup_receiver: Socket,
    /// The ids of evicted processes are sent here.
    excluded_sender: Socket,
    listeners: Vec<Socket>,
    /// Credentials that clients must prove.
    credentials: Credentials,
    max_pending: usize,
    rejections: RejectionLog,
    lacks_descriptors: Arc<AtomicBool>,
    /// A spare descriptor, released when there is no other, to accept a connection and reject it.
    spare_fd: Option<File>,
    paused_until: Option<Instant>,
    clients: Vec<Client>,
    /// Values, by rendezvous and key.
    values: BTreeMap<(u64, String), Vec<u8>>,
    value_bytes: usize,
    /// Ranks that have left or were refused while others meet, by rendezvous and rank.
    absences: BTreeMap<(u64, usize), Absence>,
    /// Number of processes that left while ranks met.
    departures: u32,
    /// Number of connections that have begun a rendezvous.
    begun_clients: usize,
    /// Number of the latest join request.
    last_join_number: u64,
    /// Deadline of the server, and how many clients must have begun before it may end earlier.
    finish: Option<(Instant, usize)>,
    /// Callers of `Server::process_pending`, which wait until all requests are processed.
    drain_waiters: Vec<Sender<()>>,
}

impl ServerState {
    fn serve(mut self) {
        loop {
            let Ok((has_commands, has_connections, readable)) = self.wait_for_events() else {
                return;
            };
            if has_commands && !self.run_commands() {
                return;
            }
            self.serve_readable(readable);
            if !self.drain_waiters.is_empty() {
                // Requests that arrived since the wakeup were sent before the caller asked, too.
                (0..self.clients.len()).for_each(|index| self.serve_client(index));
            }
            for heard in self.drain_waiters.drain(..) {
                // The caller waits for this message.
                let _ = heard.send(());
            }
            self.expire_timeouts(Instant::now());
            self.note_departures(Instant::now());
            self.expire_absences(Instant::now());
            // Closed connections give back their descriptors before new ones are accepted.
            self.clients.retain(|client| !client.is_closed);
            if has_connections {
                self.accept_connections();
            }
            let empty = self.clients.iter().all(|client| client.rendezvous == 0);
            if let Some((deadline, expected)) = self.finish
                && (deadline <= Instant::now() || empty && self.begun_clients >= expected)
            {
                return;
            }
        }
    }

    /// Polls all descriptors. Returns whether commands wait, whether connections wait, and which
    /// clients are ready.
    fn wait_for_events(&self) -> io::Result<(bool, bool, Vec<usize>)> {
        let mut fds = vec![PollFd::new(self.wakeup_receiver.as_fd(), PollFlags::POLLIN)];
        for client in &self.clients {
            let events = match client.outgoing.is_empty() {
                true => PollFlags::POLLIN,
                false => PollFlags::POLLOUT,
            };
            fds.push(PollFd::new(client.socket.as_fd(), events));
        }
        if self.paused_until.is_none() {
            let readable = |listener| PollFd::new(listener, PollFlags::POLLIN);
            fds.extend(self.listeners.iter().map(|listener| readable(listener.as_fd())));
        }
        wait(&mut fds, self.next_deadline())?;
        let ready: Vec<_> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
        let (has_commands, rest) = ready.split_first().unwrap_or((&false, &[]));
        let (clients, listeners) = rest.split_at(self.clients.len());
        let readable = clients.iter().enumerate().filter(|(_, ready)| **ready).map(|(i, _)| i);
        Ok((*has_commands, listeners.contains(&true), readable.collect()))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waits =
            self.clients.iter().filter_map(|client| client.pending.as_ref().map(|w| w.deadline));
        let client_timeouts = self.clients.iter().filter_map(Client::timeout_at);
        waits
            .chain(client_timeouts)
            .chain(self.next_fatal_absence())
            .chain(self.paused_until)
            .chain(self.finish.map(|finish| finish.0))
            .min()
    }

    /// Runs the waiting commands; false if the server was dropped.
    fn run_commands(&mut self) -> bool {
        let mut bytes = [0; 64];
        if matches!(try_recv(&self.wakeup_receiver, &mut bytes), Ok(Some(0)) | Err(_)) {
            return false;
        }
        for order in self.command_queue.try_iter().collect::<Vec<_>>() {
            match order {
                Command::AddConnection(socket, progress) => {
                    let mut client = Client::new(socket, None);
                    client.progress = progress;
                    self.clients.push(client);
                }
                Command::AddListener(listener) => self.listeners.push(listener),
                Command::CloseListeners => self.listeners.clear(),
                Command::Finish { deadline, expected } => self.finish = Some((deadline, expected)),
                Command::Drain(heard) => self.drain_waiters.push(heard),
            }
        }
        true
    }

    /// Processes everything that client `index` has sent, and sends what its socket takes.
    fn serve_client(&mut self, index: usize) {
        while let Some(client) = self.clients.get_mut(index).filter(|client| !client.is_closed) {
            client.flush();
            if client.is_closed || !client.outgoing.is_empty() {
                return;
            }
            if let Some(handshake) = &mut client.handshake {
                match handshake.receive(&client.socket, &self.credentials.keys, |claimed| {
                    self.credentials.expected_stream(claimed)
                }) {
                    Ok(Some((stream, stream_keys))) => {
                        let keys = stream_keys.map(|keys| keys.aead);
                        client.set_authenticated(stream.from, keys);
                        // A host that is cut off sends no end of its connections. Unix sockets
                        // need no sign of life.
                        let _ = set_keepalive(&client.socket, self.credentials.peer_timeout);
                    }
                    Ok(None) => return,
                    Err(reason) => {
                        let (claim, now) = (handshake.claim(), Instant::now());
                        let is_unix = handshake.is_unix();
                        client.is_closed = true;
                        self.rejections.record(reason, now);
                        self.note_refusal(claim, reason, is_unix, now);
                    }
                }
                continue;
            }
            let was_partial = client.incoming.is_partial();
            match client.incoming.try_read(&client.socket) {
                Ok(Some(frame)) => self.answer_request(index, frame),
                Ok(None) => {
                    if !was_partial && client.incoming.is_partial() {
                        client.silent_since = Instant::now();
                    }
                    return;
                }
                Err(broken) => {
                    if let StreamError::Malformed(text) = broken {
                        tracing::debug!("store: dropped a connection: {text}");
                        client.send(FrameKind::Refused, 0, "", text.as_bytes());
                    }
                    client.is_closed = true;
                }
            }
        }
    }

    /// Answers requests that have timed out, and drops connections that were silent for too long.
    fn expire_timeouts(&mut self, now: Instant) {
        self.paused_until = self.paused_until.filter(|&deadline| deadline > now);
        for client in &mut self.clients {
            if let Some(over) = client.pending.take_if(|pending| pending.deadline <= now) {
                client.join_request = None;
                client.send(FrameKind::Absent, over.id, "", &[]);
            }
            if client.timeout_at().is_some_and(|end| end <= now) && !client.is_closed {
                client.is_closed = true;
                self.rejections.record(Rejection::TimedOut, now);
            }
        }
    }
}
