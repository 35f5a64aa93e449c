//! The store's server: one thread that serves every connection. May touch: entry, guest, progress,
//! wire, socket. Law: nobody can make it wait, allocate without bound or end; who can't prove that
//! it belongs here, speaks something else, or stops in the middle of a message, is dropped.

mod accept;
mod join_queue;
mod values;

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
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};

use super::client::{Pass, Store};
use super::connection::{Guest, Waiting};
use super::protocol::{Broken, Frame, Kind};
use crate::bootstrap::auth::rejected::{Refusal, Strangers};
use crate::bootstrap::progress::{Progress, Stage};
use crate::bootstrap::socket::{listen_tcp, listen_unix, recv_now, room_for, send_now, wait};
use crate::error::{Error, Result};

/// How long this process waits for its own store.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many connections may be in their handshake, in small worlds and in the largest.
const MAX_STRANGERS: (usize, usize) = (64, 4096);

/// A store; it ends, with all its connections, when dropped.
#[derive(Debug)]
pub struct Server {
    commands: Sender<Command>,
    wake: Socket,
    thread: Option<JoinHandle<()>>,
    /// Was the last caller sent away because there was no descriptor for it?
    is_short: Arc<AtomicBool>,
    /// Whom members have left behind.
    behind: Socket,
}

#[derive(Debug)]
enum Command {
    Adopt(Socket, Progress),
    Listen(Socket),
    Deafen,
    Finish {
        until: Instant,
        expected: usize,
    },
    /// To be answered once all is heard that was said before.
    Hear(Sender<()>),
}

impl Server {
    /// A store that nobody can reach yet, of a job without a secret.
    ///
    /// # Errors
    /// If the system has no thread or descriptor left.
    pub fn new() -> Result<Self> {
        Self::of_job(&Pass::default(), 1)
    }

    /// The same for a job of `size` ranks, who have a pass like this one.
    pub(crate) fn of_job(pass: &Pass, size: usize) -> Result<Self> {
        let io = |error| Error::io("starting a store", error);
        let (wake, woken) = Socket::pair(Domain::UNIX, Type::STREAM, None).map_err(io)?;
        let (behind, behinds) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).map_err(io)?;
        let (commands, orders) = channel();
        let is_short = Arc::new(AtomicBool::new(false));
        let hall = Hall {
            is_short: Arc::clone(&is_short),
            orders,
            woken,
            behind: behinds,
            listeners: Vec::new(),
            pass: pass.clone(),
            most_strangers: room_for((2 * size).clamp(MAX_STRANGERS.0, MAX_STRANGERS.1), size),
            strangers: Strangers::at("the store"),
            spare: File::open("/dev/null").ok(),
            deaf_until: None,
            guests: Vec::new(),
            values: BTreeMap::new(),
            bytes: 0,
            begun: 0,
            tickets: 0,
            finish: None,
            asked: Vec::new(),
        };
        let thread = thread::Builder::new().name("ringreduce-store".into());
        let thread = thread.spawn(move || hall.serve());
        let thread = thread.map_err(|e| Error::no_thread("starting a store's thread", e))?;
        Ok(Self { commands, wake, thread: Some(thread), is_short, behind })
    }

    /// Serves one more client: the peer at the other end of `stream`.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn adopt(&self, stream: UnixStream) -> Result<()> {
        self.adopt_rank(stream).map(|_| ())
    }

    /// The same of a rank; tells how far it is.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub fn adopt_rank(&self, stream: UnixStream) -> Result<Progress> {
        let progress = Progress::default();
        self.order(Command::Adopt(stream.into(), progress.clone()))?;
        Ok(progress)
    }

    /// A client in this process.
    ///
    /// # Errors
    /// If the system has no descriptor left, or the server has ended.
    pub fn connect(&self) -> Result<Store> {
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| Error::io("connecting to the own store", e))?;
        self.adopt(theirs)?;
        Store::over(ours, "this process", Instant::now() + PATIENCE)
    }

    /// Serves whoever connects to `address` too; gives the address with its port.
    ///
    /// # Errors
    /// The system's answer, among them [`io::ErrorKind::AddrInUse`] and
    /// [`io::ErrorKind::AddrNotAvailable`].
    pub fn listen_tcp(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::from(listen_tcp(address)?);
        let bound = listener.local_addr()?;
        self.order(Command::Listen(listener.into())).map_err(io::Error::other)?;
        Ok(bound)
    }

    /// Serves whoever of the same user connects to the abstract Unix socket `name` too.
    ///
    /// # Errors
    /// The system's answer, among them [`io::ErrorKind::AddrInUse`].
    pub fn listen_unix(&self, name: &str) -> io::Result<()> {
        self.order(Command::Listen(listen_unix(name)?)).map_err(io::Error::other)
    }

    /// Are there callers, and no descriptors for them?
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Closes the listeners; connections stay.
    pub(crate) fn close_listeners(&self) -> Result<()> {
        self.order(Command::Deafen)
    }

    /// Waits until all is heard that ranks have said so far, as one that has ended since.
    pub fn hear(&self) {
        let (heard, hears) = channel();
        if self.order(Command::Hear(heard)).is_ok() {
            // It has ended, if that fails.
            let _ = hears.recv();
        }
    }

    /// Ends when `expected` clients have come and all have left, or at `until`.
    pub(crate) fn finish(mut self, expected: usize, until: Instant) {
        if self.order(Command::Finish { until, expected }).is_ok() {
            self.join();
        }
    }

    fn order(&self, command: Command) -> Result<()> {
        let sent = self.commands.send(command).map_err(|_| io::Error::other("it has ended"));
        sent.and_then(|()| send_now(&self.wake, &[1]))
            .map(|_sent| ())
            .map_err(|error| Error::io("speaking to the store's thread", error))
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already_ended = self.wake.shutdown(std::net::Shutdown::Both);
        self.join();
    }
}

/// The thread's state.
struct Hall {
    orders: Receiver<Command>,
    woken: Socket,
    /// Where the launcher hears whom members have left behind.
    behind: Socket,
    listeners: Vec<Socket>,
    /// What clients have to prove that they have too.
    pass: Pass,
    most_strangers: usize,
    strangers: Strangers,
    is_short: Arc<AtomicBool>,
    /// Let go of when there is no other descriptor, to take who knocks and send it away.
    spare: Option<File>,
    deaf_until: Option<Instant>,
    guests: Vec<Guest>,
    /// By meeting and key.
    values: BTreeMap<(u64, String), Vec<u8>>,
    bytes: usize,
    /// How many connections began a meeting.
    begun: usize,
    /// How many have come to wait outside.
    tickets: u64,
    /// When to end at the latest, and how many must have begun to end before.
    finish: Option<(Instant, usize)>,
    /// Who waits until all is heard.
    asked: Vec<Sender<()>>,
}

impl Hall {
    fn serve(mut self) {
        loop {
            let Ok((called, knocks, readable)) = self.sleep() else { return };
            if called && !self.obey() {
                return;
            }
            self.hear_all(readable);
            if !self.asked.is_empty() {
                // What came since this was woken was said before they asked, too.
                (0..self.guests.len()).for_each(|index| self.hear(index));
            }
            for heard in self.asked.drain(..) {
                // Who asked waits for it.
                let _ = heard.send(());
            }
            self.expire(Instant::now());
            // Before others come: they may need the descriptors.
            self.guests.retain(|guest| !guest.gone);
            if knocks {
                self.welcome();
            }
            let empty = self.guests.iter().all(|guest| guest.meeting == 0);
            if let Some((until, expected)) = self.finish
                && (until <= Instant::now() || empty && self.begun >= expected)
            {
                return;
            }
        }
    }

    /// Waits for news: was I called, does somebody knock, which guests have something?
    fn sleep(&self) -> io::Result<(bool, bool, Vec<usize>)> {
        let mut fds = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        for guest in &self.guests {
            let events = match guest.outbox.is_empty() {
                true => PollFlags::POLLIN,
                false => PollFlags::POLLOUT,
            };
            fds.push(PollFd::new(guest.socket.as_fd(), events));
        }
        if self.deaf_until.is_none() {
            let knock = |listener| PollFd::new(listener, PollFlags::POLLIN);
            fds.extend(self.listeners.iter().map(|listener| knock(listener.as_fd())));
        }
        wait(&mut fds, self.next_deadline())?;
        let news: Vec<_> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
        let (called, rest) = news.split_first().unwrap_or((&false, &[]));
        let (guests, listeners) = rest.split_at(self.guests.len());
        let readable = guests.iter().enumerate().filter(|(_, news)| **news).map(|(i, _)| i);
        Ok((*called, listeners.contains(&true), readable.collect()))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waits = self.guests.iter().filter_map(|guest| guest.waiting.as_ref().map(|w| w.until));
        let patience = self.guests.iter().filter_map(Guest::patience_ends);
        waits.chain(patience).chain(self.deaf_until).chain(self.finish.map(|finish| finish.0)).min()
    }

    /// Does as told; false when the server was dropped.
    fn obey(&mut self) -> bool {
        let mut bytes = [0; 64];
        if matches!(recv_now(&self.woken, &mut bytes), Ok(Some(0)) | Err(_)) {
            return false;
        }
        for order in self.orders.try_iter().collect::<Vec<_>>() {
            match order {
                Command::Adopt(socket, progress) => {
                    let mut guest = Guest::new(socket, None);
                    guest.progress = progress;
                    self.guests.push(guest);
                }
                Command::Listen(listener) => self.listeners.push(listener),
                Command::Deafen => self.listeners.clear(),
                Command::Finish { until, expected } => self.finish = Some((until, expected)),
                Command::Hear(heard) => self.asked.push(heard),
            }
        }
        true
    }

    /// Serves what guest `index` has sent, and sends it what waits to go.
    fn hear(&mut self, index: usize) {
        while let Some(guest) = self.guests.get_mut(index).filter(|guest| !guest.gone) {
            guest.flush();
            if guest.gone || !guest.outbox.is_empty() {
                return;
            }
            if let Some(entry) = &mut guest.entry {
                match entry.hear(&guest.socket, &self.pass.keys, |said| self.pass.expects(said)) {
                    Ok(Some((stream, sealing))) => guest.let_in(stream.from, sealing),
                    Ok(None) => return,
                    Err(why) => {
                        guest.gone = true;
                        self.strangers.turn_away(why, Instant::now());
                    }
                }
                continue;
            }
            let was_partial = guest.inbox.is_partial();
            match guest.inbox.pull(&guest.socket) {
                Ok(Some(frame)) => self.answer(index, frame),
                Ok(None) => {
                    if !was_partial && guest.inbox.is_partial() {
                        guest.since = Instant::now();
                    }
                    return;
                }
                Err(broken) => {
                    if let Broken::Garbage(text) = broken {
                        tracing::debug!("store: dropped a connection: {text}");
                        guest.say(Kind::Refused, 0, "", text.as_bytes());
                    }
                    guest.gone = true;
                }
            }
        }
    }

    fn answer(&mut self, index: usize, frame: Frame) {
        let guest = &mut self.guests[index];
        (guest.waiting, guest.outside) = (None, None);
        let Frame { kind, id, wait_ms, key, value } = frame;
        match kind {
            Kind::Begin => {
                self.begun += usize::from(guest.meeting == 0);
                guest.meeting += 1;
                guest.progress.is(Stage::Meets);
                guest.say(Kind::Done, id, "", &[]);
                self.forget();
            }
            _ if guest.meeting == 0 => guest.gone = true,
            Kind::SetNew => self.store(index, id, key, value),
            Kind::Get => {
                let until = Instant::now() + Duration::from_millis(wait_ms.into());
                guest.waiting = Some(Waiting { id, keys: key, until });
                guest.look(&self.values);
            }
            Kind::Enter | Kind::Outside | Kind::Invite | Kind::Joined | Kind::Behind
                if guest.proved.is_some() =>
            {
                // A launcher brings its ranks, so this is not the store that they mean.
                tracing::debug!("store: dropped rank {:?}, which asked {kind:?}", guest.proved);
                guest.gone = true;
            }
            Kind::Enter => self.enter(index, id, wait_ms, value),
            Kind::Outside => self.tell_outside(index, id),
            Kind::Invite => self.invite(index, id, &key, &value),
            Kind::Joined => self.let_in(index, id),
            Kind::Behind => self.leave_behind(index, id, &value),
            Kind::Done | Kind::Value | Kind::Absent | Kind::Refused => guest.gone = true,
        }
    }

    /// Ends waits that are over and drops who was silent for too long.
    fn expire(&mut self, now: Instant) {
        self.deaf_until = self.deaf_until.filter(|&until| until > now);
        for guest in &mut self.guests {
            if let Some(over) = guest.waiting.take_if(|waiting| waiting.until <= now) {
                guest.outside = None;
                guest.say(Kind::Absent, over.id, "", &[]);
            }
            if guest.patience_ends().is_some_and(|end| end <= now) && !guest.gone {
                guest.gone = true;
                self.strangers.turn_away(Refusal::Late, now);
            }
        }
    }
}
