//! Handshakes over sockets: the dialler's, which waits, and the acceptor's, which never does.
//! May touch: handshake, socket. Law: a caller costs a fixed piece of memory and two seconds.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use socket2::Socket;

use super::handshake::{Accepting, Dialling, HELLO, Hello, Identity, MAGIC, NONCE, Reply};
use super::keys::Keys;
use super::socket::{recv_now, send_all, send_now, wait_one};
use super::strangers::Refusal;

/// How long a caller may take for its part of the handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A number that nobody has seen.
fn nonce() -> io::Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// A message on its way in.
struct Mailbox {
    bytes: Hello,
    filled: usize,
}

impl Mailbox {
    const EMPTY: Self = Self { bytes: [0; HELLO], filled: 0 };

    /// Takes what has arrived of one message; the message if it is complete.
    fn pull(&mut self, socket: &Socket) -> io::Result<Option<Hello>> {
        match recv_now(socket, &mut self.bytes[self.filled..])? {
            Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Some(count) => self.filled += count,
            None => return Ok(None),
        }
        // What is something else is not waited for.
        let seen = self.filled.min(MAGIC.len());
        if self.bytes[..seen] != MAGIC[..seen] {
            return Err(refused(Refusal::Noise));
        }
        if self.filled < HELLO {
            return Ok(None);
        }
        self.filled = 0;
        Ok(Some(self.bytes))
    }
}

/// The error of a handshake whose other end is wrong: [`ErrorKind::InvalidData`].
fn refused(why: Refusal) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it {why}"))
}

/// The dialler's part of the handshake; [`ErrorKind::InvalidData`] if the other end is wrong.
pub(super) fn offer(
    socket: &Socket,
    keys: &Keys,
    identity: Identity,
    until: Instant,
) -> io::Result<()> {
    let (mut dialling, offer) = Dialling::new(keys, identity, nonce()?);
    send_all(socket, &offer, until)?;
    let mut mailbox = Mailbox::EMPTY;
    loop {
        match mailbox.pull(socket)? {
            None => wait_one(socket.as_fd(), PollFlags::POLLIN, until)?,
            Some(said) => match dialling.hear(keys, &said).map_err(refused)? {
                Some(next) => send_all(socket, &next, until)?,
                None => return Ok(()),
            },
        }
    }
}

/// A caller that is not let in yet.
pub(super) struct Entry {
    accepting: Accepting,
    mailbox: Mailbox,
    /// When it has taken too long.
    pub(super) until: Instant,
}

impl Entry {
    pub(super) fn new(now: Instant) -> io::Result<Self> {
        let accepting = Accepting::new(nonce()?);
        Ok(Self { accepting, mailbox: Mailbox::EMPTY, until: now + PATIENCE })
    }

    /// Deals with what it has said: gives who it is once that is proved, or why it must go.
    pub(super) fn hear(
        &mut self,
        socket: &Socket,
        keys: &Keys,
        expects: impl Fn(&Identity) -> Option<Identity>,
    ) -> Result<Option<Identity>, Refusal> {
        loop {
            let said = match self.mailbox.pull(socket) {
                Ok(Some(said)) => said,
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Refusal::Noise),
                Err(_) => return Err(self.accepting.left(keys)),
            };
            let reply = self.accepting.hear(keys, &said, &expects)?;
            let (Reply::Answer(bytes) | Reply::Welcome(bytes, _)) = &reply;
            // The first bytes of a connection always fit.
            if !matches!(send_now(socket, bytes), Ok(Some(HELLO))) {
                return Err(Refusal::Closed);
            }
            if let Reply::Welcome(_, identity) = reply {
                return Ok(Some(identity));
            }
        }
    }

    /// The one of `entries` to send away when there are too many: the oldest of those who have said
    /// nothing, for ranks speak at once; or else the oldest.
    pub(super) fn to_evict<'a>(entries: impl Iterator<Item = (usize, &'a Self)>) -> Option<usize> {
        let key = |entry: &Self| (entry.accepting.has_offered(), entry.until);
        entries.min_by_key(|(_, entry)| key(entry)).map(|(index, _)| index)
    }
}
