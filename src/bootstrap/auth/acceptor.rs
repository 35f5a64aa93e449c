//! Handshakes over sockets: the dialler's, which waits, and the acceptor's, which never does.
//! May touch: handshake, socket. Law: a caller costs a fixed piece of memory and two seconds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use socket2::Socket;

use super::handshake::{
    Accepting, Agreed, Dialling, HELLO, Hello, Identity, MAGIC, Message, Reply, Side,
};
use super::keys::{Ephemeral, Keys};
use super::rejected::Refusal;
use crate::bootstrap::socket::{recv_now, send_all, send_now, wait_unless};
use crate::transport::aead::Seals;

/// How long a caller may take for its part of the handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// What a stream that is open is sealed by, if it is.
pub(crate) type Sealing = Option<Seals>;

/// That of one end.
fn sealing(
    keys: &Keys,
    side: Side,
    mine: Ephemeral,
    agreed: &Agreed,
    stream: &Identity,
) -> Result<Sealing, Refusal> {
    if !stream.sealed {
        return Ok(None);
    }
    keys.seals(side, mine, agreed).map(Some).ok_or(Refusal::Unproved)
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

fn no_chance() -> io::Error {
    io::Error::other("the system has no random numbers")
}

/// The dialler's part of the handshake; [`ErrorKind::InvalidData`] if the other end is wrong.
pub(crate) fn offer(
    socket: &Socket,
    keys: &Keys,
    identity: Identity,
    until: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<Sealing> {
    let mine = Ephemeral::draw().ok_or_else(no_chance)?;
    let (mut dialling, offer) = Dialling::new(keys, identity, mine.nonce);
    send_all(socket, &offer, until)?;
    let mut mailbox = Mailbox::EMPTY;
    loop {
        match mailbox.pull(socket)? {
            None => wait_unless(cancelled, (socket.as_fd(), PollFlags::POLLIN), until)?,
            Some(said) => match dialling.hear(keys, &said).map_err(refused)? {
                Some(next) => send_all(socket, &next, until)?,
                None => {
                    let (side, agreed) = (Side::Dialler, dialling.agreed());
                    return sealing(keys, side, mine, &agreed, &identity).map_err(refused);
                }
            },
        }
    }
}

/// A caller that is not let in yet.
pub(crate) struct Entry {
    /// Once it has said something.
    accepting: Option<(Accepting, Ephemeral)>,
    mailbox: Mailbox,
    /// Its host, if it comes over TCP.
    from: Option<IpAddr>,
    /// When it has taken too long.
    pub(crate) until: Instant,
}

impl Entry {
    pub(crate) fn new(socket: &Socket, now: Instant) -> Self {
        let from = socket.peer_addr().ok().and_then(|peer| Some(peer.as_socket()?.ip()));
        Self { accepting: None, mailbox: Mailbox::EMPTY, from, until: now + PATIENCE }
    }

    /// Deals with what it has said: gives who it is once that is proved, and what the stream is
    /// sealed by; or why it must go.
    pub(crate) fn hear(
        &mut self,
        socket: &Socket,
        keys: &Keys,
        expects: impl Fn(&Identity) -> Option<Identity>,
    ) -> Result<Option<(Identity, Sealing)>, Refusal> {
        self.hear_drawing(socket, keys, expects, Ephemeral::draw)
    }

    /// [`Self::hear`] with another source of keys.
    fn hear_drawing(
        &mut self,
        socket: &Socket,
        keys: &Keys,
        expects: impl Fn(&Identity) -> Option<Identity>,
        draw: impl Fn() -> Option<Ephemeral>,
    ) -> Result<Option<(Identity, Sealing)>, Refusal> {
        loop {
            let said = match self.mailbox.pull(socket) {
                Ok(Some(said)) => said,
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Refusal::Noise),
                Err(_) => return Err(self.left(keys)),
            };
            let (mut accepting, mine) = match self.accepting.take() {
                Some(begun) => begun,
                None => {
                    // A key takes far longer than this look at who asks for one.
                    Message::offer(&said, &expects)?;
                    let mine = draw().ok_or(Refusal::NoRoom)?;
                    (Accepting::new(mine.nonce), mine)
                }
            };
            let reply = accepting.hear(keys, &said, &expects)?;
            let (Reply::Answer(bytes) | Reply::Welcome(bytes, _)) = &reply;
            // The first bytes of a connection always fit.
            if !matches!(send_now(socket, bytes), Ok(Some(HELLO))) {
                return Err(Refusal::Closed);
            }
            if let Reply::Welcome(_, identity) = reply {
                let agreed = accepting.agreed().ok_or(Refusal::Order)?;
                let sealing = sealing(keys, Side::Acceptor, mine, &agreed, &identity)?;
                return Ok(Some((identity, sealing)));
            }
            self.accepting = Some((accepting, mine));
        }
    }

    /// Why it has gone.
    fn left(&self, keys: &Keys) -> Refusal {
        self.accepting.as_ref().map_or(Refusal::Closed, |(accepting, _)| accepting.left(keys))
    }

    /// Has it said anything that makes sense?
    fn has_offered(&self) -> bool {
        self.accepting.as_ref().is_some_and(|(accepting, _)| accepting.has_offered())
    }

    /// The one of `entries` to send away when there are too many: of those who have said nothing,
    /// for ranks speak at once, or else of all; of the host that most of them come from, so that no
    /// host can crowd out another; the oldest.
    pub(crate) fn to_evict<'a>(
        entries: impl Iterator<Item = (usize, &'a Self)> + Clone,
    ) -> Option<usize> {
        let mut hosts = BTreeMap::new();
        entries.clone().for_each(|(_, entry)| *hosts.entry(entry.from).or_insert(0_usize) += 1);
        let key = |entry: &Self| {
            (entry.has_offered(), Reverse(hosts.get(&entry.from).copied()), entry.until)
        };
        entries.min_by_key(|(_, entry)| key(entry)).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    #[test]
    fn a_key_is_drawn_for_an_expected_offer_alone() {
        let keys = Keys::new(None, 7);
        let (_, right) = Dialling::new(&keys, Identity::of_store(7, 1), [5; 32]);
        let (_, other) = Dialling::new(&keys, Identity::of_store(8, 1), [5; 32]);
        let tagged = |mut offer: Hello| {
            offer[HELLO - 1] = 1;
            offer
        };
        let mut noise = [0; HELLO];
        noise[..MAGIC.len()].copy_from_slice(&MAGIC);
        for (offer, drawn) in [(noise, 0), (other, 0), (tagged(right), 0), (right, 1)] {
            let (theirs, ours) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
            send_now(&theirs, &offer).unwrap();
            let draws = std::cell::Cell::new(0);
            let draw = || {
                draws.set(draws.get() + 1);
                Ephemeral::draw()
            };
            let expects = |said: &Identity| (said.job == 7).then_some(*said);
            let mut entry = Entry::new(&ours, Instant::now());
            let heard = entry.hear_drawing(&ours, &keys, expects, draw);
            assert_eq!((heard.is_ok(), draws.get()), (drawn == 1, drawn), "{offer:x?}");
        }
    }

    #[test]
    fn the_oldest_of_the_host_that_most_come_from_is_sent_away() {
        let now = Instant::now();
        let entry = |host: u8, age: u64| Entry {
            accepting: None,
            mailbox: Mailbox::EMPTY,
            from: Some([127, 0, 0, host].into()),
            until: now - Duration::from_millis(age),
        };
        let sent_away = |entries: &[Entry]| Entry::to_evict(entries.iter().enumerate());
        let all = [entry(1, 9), entry(2, 3), entry(2, 4), entry(2, 2), entry(3, 8)];
        assert_eq!(sent_away(&all), Some(2));
        assert_eq!(sent_away(&[entry(1, 1), entry(2, 2), entry(3, 0)]), Some(1));
        assert_eq!(sent_away(&[]), None);
    }
}
