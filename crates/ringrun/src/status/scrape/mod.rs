//! `--prometheus`: serves a job's metrics over HTTP, from a thread of its own. `request` reads what
//! a client asks, and `connection` carries it and the answer.
//! Law: one thread serves a few connections, and no client delays the others, the launcher's loop
//! or a rank: no client is waited for, and a new one takes the place of the oldest that has not
//! asked.

mod connection;
mod request;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ringreduce::trace::NameLabels;

use super::JobStatus;
use crate::failure::Failure;
use connection::Connection;

/// Connections that are open at a time.
const MAX_CONNECTIONS: usize = 8;
/// Clients that ask more often get the same text again, since each new one costs the launcher's
/// host, and the agents of others, the time to read the records of all ranks.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// The time after which the system may have descriptors for a new connection again.
const PAUSE: Duration = Duration::from_millis(100);

/// The address of a job's metrics, before the job has any.
pub(crate) struct Listener(TcpListener);

/// The latest text of the metrics.
struct Metrics {
    status: JobStatus,
    names: NameLabels,
    /// The time at which `text` was made.
    made: Option<Instant>,
    text: String,
}

impl Listener {
    /// Takes the address, or says why it can't be taken.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address);
        let listener = listener.and_then(|it| it.set_nonblocking(true).map(|()| it));
        listener.map(Self).map_err(|cause| {
            let remedy = match cause.kind() {
                ErrorKind::AddrInUse => "another program has this port: choose another one, or 0",
                ErrorKind::AddrNotAvailable => "choose an address of this host",
                ErrorKind::PermissionDenied => "choose a port from 1024 on",
                _ => return Failure::system(format!("serve metrics at {address}"))(cause),
            };
            Failure::Host(format!(
                "cannot serve metrics at {address} (--prometheus): {remedy} ({cause})"
            ))
        })
    }

    /// The address, with the port that the system chose for port 0.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves the metrics from now on, as long as this process lives.
    pub(crate) fn serve(self, status: JobStatus) -> Result<(), Failure> {
        let (names, text) = (NameLabels::new(), String::new());
        let metrics = Metrics { status, names, made: None, text };
        let thread = std::thread::Builder::new().name("metrics".into());
        let started = thread.spawn(move || serve(&self.0, metrics));
        started.map(drop).map_err(|cause| Failure::no_process("serve metrics".into(), cause))
    }
}

impl Metrics {
    fn text(&mut self) -> &str {
        if self.made.is_none_or(|made| made.elapsed() >= MIN_INTERVAL) {
            self.text = self.status.metrics(&mut self.names);
            self.made = Some(Instant::now());
        }
        &self.text
    }
}

fn serve(listener: &TcpListener, mut metrics: Metrics) {
    let mut connections: Vec<Connection> = vec![];
    loop {
        let Ok(ready) = wait(listener, &connections) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let (now, mut ready) = (Instant::now(), ready.into_iter());
        let is_client = ready.next_back().unwrap_or(false);
        connections.retain_mut(|client| {
            let is_ready = ready.next().unwrap_or(false);
            let is_open = !is_ready || client.advance(|| request::metrics(metrics.text()));
            is_open && now < client.deadline
        });
        if is_client {
            accept(listener, &mut connections);
        }
    }
}

/// Takes in a client, in the place of another one if there are too many.
fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) {
    match listener.accept().and_then(|(stream, _)| Connection::new(stream)) {
        Ok(client) => {
            if connections.len() == MAX_CONNECTIONS {
                let idle = connections.iter().position(|client| !client.is_answering());
                connections.remove(idle.unwrap_or(0));
            }
            connections.push(client);
        }
        // The client has left.
        Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        // Descriptors or memory are short until others give some back.
        Err(_) => std::thread::sleep(PAUSE),
    }
}

/// Waits until a connection or the listener is ready, or the first deadline has come. Says of each
/// connection whether it is ready, and at last of the listener.
fn wait(listener: &TcpListener, connections: &[Connection]) -> io::Result<Vec<bool>> {
    let deadline = connections.iter().map(|client| client.deadline).min();
    let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
        // A millisecond more, since the poll may end that much too early.
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    let clients = connections.iter().map(|client| PollFd::new(client.as_fd(), client.event()));
    let listener = PollFd::new(listener.as_fd(), PollFlags::POLLIN);
    let mut fds: Vec<_> = clients.chain([listener]).collect();
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(cause) => return Err(cause.into()),
    }
    Ok(fds.iter().map(|fd| fd.any().unwrap_or(true)).collect())
}
