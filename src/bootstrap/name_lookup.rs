//! The addresses of a host's name. The system's resolver has no deadline, so a thread of its own
//! asks.
//! Law: no wait for an answer lasts past its deadline; at most one question of a lookup is open.

use crate::sync::Instant;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How long one wait for an answer lasts; the question stays open for the next one.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(500);

/// The answer of the system's resolver.
type Answer = io::Result<Vec<SocketAddr>>;

/// A lookup of one name, which may be asked again while the name has no address yet.
#[derive(Debug)]
pub struct NameLookup<'a> {
    host: &'a str,
    port: u16,
    open_question: Option<Receiver<Answer>>,
}

impl<'a> NameLookup<'a> {
    /// The lookup of this name, for addresses with this port.
    #[must_use]
    pub fn new(host: &'a str, port: u16) -> Self {
        Self { host, port, open_question: None }
    }

    /// The addresses, each once, in the resolver's order; [`io::ErrorKind::TimedOut`] if the
    /// resolver has not answered at `deadline`. A later call waits for the same answer.
    ///
    /// # Errors
    /// The system's answer, or that there was none in time.
    pub fn addresses(&mut self, deadline: Instant) -> Answer {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let answer = match self.open_question.take() {
            Some(answer) => answer,
            None => self.ask()?,
        };
        match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(addresses) => addresses,
            Err(RecvTimeoutError::Timeout) => {
                self.open_question = Some(answer);
                let text = "the system's name lookup gives no answer";
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the system's name lookup ended without an answer"))
            }
        }
    }

    fn ask(&self) -> io::Result<Receiver<Answer>> {
        let (sender, answer) = channel();
        let (host, port) = (self.host.to_owned(), self.port);
        let thread = thread::Builder::new().name("ringreduce-name".into());
        thread.spawn(move || {
            // The asker may have given up.
            let _ = sender.send(look_up(&host, port));
        })?;
        Ok(answer)
    }
}

/// The addresses of a host's name.
///
/// # Errors
/// The system's answer; [`io::ErrorKind::TimedOut`] if there is none within `limit`.
pub fn addresses_of(host: &str, limit: Duration) -> io::Result<Vec<IpAddr>> {
    let found = NameLookup::new(host, 0).addresses(Instant::now() + limit)?;
    Ok(found.iter().map(SocketAddr::ip).collect())
}

fn look_up(host: &str, port: u16) -> Answer {
    let mut addresses = Vec::new();
    for address in (host, port).to_socket_addrs()? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => Err(io::Error::other("the name has no address")),
        false => Ok(addresses),
    }
}
