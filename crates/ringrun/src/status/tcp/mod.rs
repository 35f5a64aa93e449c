//! The servers of a job's status over TCP, each in a thread of its own: `--prometheus` and `--ras`.
//! `connection` carries a client's requests and the answers, which a [`Session`] makes.
//! Law: one thread serves a few connections, and no client delays the others, the launcher's loop
//! or a rank: no client is waited for, and a new one takes the place of the oldest that does not
//! wait for an answer.

mod connection;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::scrape::{HttpSession, Metrics};
use super::{JobStatus, Snapshots, ras::RasSession};
use crate::failure::Failure;
use connection::Connection;
pub(super) use connection::{Reply, Session};

/// Connections that are open at a time.
const MAX_CONNECTIONS: usize = 8;
/// The time after which the system may have descriptors for a new connection again.
const PAUSE: Duration = Duration::from_millis(100);

/// The protocol of a server, and its purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    /// `--prometheus`: metrics over HTTP.
    Prometheus,
    /// `--ras`: the commands of NCCL's RAS clients.
    Ras,
}

/// The address of a server, before the job has any status.
pub(crate) struct Listener {
    socket: TcpListener,
    service: Service,
}

impl Service {
    /// The option that asks for the service.
    pub(crate) const fn option(self) -> &'static str {
        match self {
            Self::Prometheus => "--prometheus",
            Self::Ras => "--ras",
        }
    }

    /// The name of the data that clients of the service read.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Prometheus => "metrics",
            Self::Ras => "RAS status",
        }
    }
}

impl Listener {
    /// Takes the address, or says why it can't be taken.
    pub(crate) fn bind(address: SocketAddr, service: Service) -> Result<Self, Failure> {
        let socket = TcpListener::bind(address);
        let socket = socket.and_then(|it| it.set_nonblocking(true).map(|()| it));
        socket.map(|socket| Self { socket, service }).map_err(|cause| {
            let (name, option) = (service.name(), service.option());
            let remedy = match cause.kind() {
                ErrorKind::AddrInUse => "another program has this port: choose another one, or 0",
                ErrorKind::AddrNotAvailable => "choose an address of this host",
                ErrorKind::PermissionDenied => "choose a port from 1024 on",
                _ => return Failure::system(format!("serve {name} at {address}"))(cause),
            };
            Failure::Host(format!(
                "cannot serve {name} at {address} ({option}): {remedy} ({cause})"
            ))
        })
    }

    /// Serves the job's status from now on, as long as this process lives. Gives the line that says
    /// where, with the port that the system chose for port 0.
    pub(crate) fn serve(self, status: JobStatus) -> Result<String, Failure> {
        let Self { socket, service } = self;
        let name = service.name();
        let address = socket.local_addr();
        let address = address.map_err(Failure::system(format!("find the port of the {name}")))?;
        let snapshots = Snapshots::new(status);
        let thread = std::thread::Builder::new().name(name.into());
        let started = match service {
            Service::Prometheus => {
                thread.spawn(move || serve::<HttpSession>(&socket, Metrics::new(snapshots)))
            }
            Service::Ras => thread.spawn(move || serve::<RasSession>(&socket, snapshots)),
        };
        started.map_err(|cause| Failure::no_process(format!("serve {name}"), cause))?;
        Ok(match service {
            Service::Prometheus => format!("{name}: http://{address}/metrics"),
            Service::Ras => format!("{name}: {address}"),
        })
    }
}

fn serve<S: Session>(listener: &TcpListener, mut source: S::Source) {
    let mut connections: Vec<Connection<S>> = vec![];
    loop {
        let Ok(ready) = wait(listener, &connections) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let (now, mut ready) = (Instant::now(), ready.into_iter());
        let is_client = ready.next_back().unwrap_or(false);
        connections.retain_mut(|client| {
            let is_ready = ready.next().unwrap_or(false);
            let is_open = !is_ready || client.advance(&mut source);
            is_open && now < client.deadline
        });
        if is_client {
            accept(listener, &mut connections);
        }
    }
}

/// Takes in a client, in the place of another one if there are too many.
fn accept<S: Session>(listener: &TcpListener, connections: &mut Vec<Connection<S>>) {
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
fn wait<S: Session>(
    listener: &TcpListener,
    connections: &[Connection<S>],
) -> io::Result<Vec<bool>> {
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
