//! Who may come in: the receivers' part of the handshake, with every caller at once.
//! May touch: entry, handshake, socket, strangers.
//! Law: a stranger takes a place in a bounded list for two seconds at most, and nothing else.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::acceptor::{Entry, Sealing};
use super::handshake::{Identity, Role};
use super::keys::Keys;
use super::rejected::{Refusal, Strangers};
use crate::bootstrap::socket::{Knock, accept, room_for, same_user, wait};

/// How many callers may be in their handshake in a small world; twice what is expected in others.
const MAX_CALLERS: usize = 64;
/// How many are taken from a listener before those that are here are heard again.
const AT_ONCE: usize = 32;

/// Who knocks, and who was let in.
pub(crate) struct Door<'a> {
    pub(crate) expected: &'a [Identity],
    keys: &'a Keys,
    pub(crate) taken: Vec<Option<(Socket, Sealing)>>,
    callers: Vec<Caller>,
    most_callers: usize,
    pub(crate) strangers: Strangers,
}

/// A connection in its handshake.
struct Caller {
    socket: Socket,
    role: Role,
    entry: Entry,
}

impl<'a> Door<'a> {
    /// For these streams, and nobody else; meanwhile so many others are dialled.
    pub(crate) fn new(expected: &'a [Identity], keys: &'a Keys, dialled: usize) -> Self {
        let taken = expected.iter().map(|_| None).collect();
        let most = MAX_CALLERS.max(2 * expected.len());
        let most_callers = room_for(most, expected.len() + dialled);
        let me = expected.first().map_or(0, |stream| stream.to);
        let strangers = Strangers::at(format!("rank {me}"));
        Self { expected, keys, taken, callers: Vec::new(), most_callers, strangers }
    }

    /// Waits for news and deals with it; false when time is over or the dialling failed.
    pub(crate) fn turn(
        &mut self,
        listeners: &[(&Socket, Role)],
        cancelled: &UnixStream,
        until: Instant,
    ) -> io::Result<bool> {
        let reading = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![reading(cancelled.as_fd())];
        fds.extend(self.callers.iter().map(|caller| reading(caller.socket.as_fd())));
        fds.extend(listeners.iter().map(|(listener, _)| reading(listener.as_fd())));
        let soonest = self.callers.iter().map(|caller| caller.entry.until).min();
        wait(&mut fds, Some(soonest.map_or(until, |soonest| soonest.min(until))))?;
        let news: Vec<bool> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
        let now = Instant::now();
        if news[0] || now >= until {
            return Ok(false);
        }
        let mut spoke = news[1..].iter().copied();
        let callers = std::mem::take(&mut self.callers);
        for caller in callers {
            let spoke = spoke.next().unwrap_or(false);
            match spoke {
                true => self.hear(caller),
                false if caller.entry.until <= now => {
                    self.strangers.turn_away(Refusal::Late, now);
                }
                false => self.callers.push(caller),
            }
        }
        for (&(listener, role), knocks) in listeners.iter().zip(spoke) {
            for _ in 0..if knocks { AT_ONCE } else { 0 } {
                if !self.welcome(listener, role)? {
                    break;
                }
            }
        }
        Ok(true)
    }

    /// Takes one caller from a listener; false if nobody is there.
    fn welcome(&mut self, listener: &Socket, role: Role) -> io::Result<bool> {
        let socket = match accept(listener)? {
            Knock::Caller(socket) => socket,
            Knock::Nobody => return Ok(false),
            // Another one's descriptor may be had; if nobody is here, it is we who have too few.
            Knock::NoRoom(_) if self.evict(Refusal::NoRoom) => return Ok(true),
            Knock::NoRoom(error) => return Err(error),
        };
        let now = Instant::now();
        if role == Role::Shm && same_user(&socket).is_err() {
            self.strangers.turn_away(Refusal::User, now);
            return Ok(true);
        }
        if self.callers.len() >= self.most_callers {
            self.evict(Refusal::Crowded);
        }
        let entry = Entry::new(&socket, now);
        self.callers.push(Caller { socket, role, entry });
        Ok(true)
    }

    /// Sends one caller away, if there is one.
    fn evict(&mut self, why: Refusal) -> bool {
        let entries = self.callers.iter().map(|caller| &caller.entry).enumerate();
        let Some(index) = Entry::to_evict(entries) else { return false };
        self.callers.swap_remove(index);
        self.strangers.turn_away(why, Instant::now());
        true
    }

    /// Goes on with a caller that has spoken; one that does not belong here is dropped.
    fn hear(&mut self, mut caller: Caller) {
        let expects = |stream: &Identity| {
            // One that is to be sealed, or not to be, where this end would not, hears of it.
            let mine = [stream.sealed, !stream.sealed].map(|sealed| Identity { sealed, ..*stream });
            let mine = mine.into_iter().find(|mine| self.place_of(mine).is_some());
            mine.filter(|_| stream.role == caller.role)
        };
        match caller.entry.hear(&caller.socket, self.keys, expects) {
            Ok(None) => self.callers.push(caller),
            Ok(Some((stream, sealing))) => {
                let Caller { socket, role, .. } = caller;
                let nodelay = role == Role::Tcp && socket.set_tcp_nodelay(true).is_err();
                if let Some(place) = self.place_of(&stream).filter(|_| !nodelay) {
                    self.taken[place] = Some((socket, sealing));
                }
            }
            Err(why) => self.strangers.turn_away(why, Instant::now()),
        }
    }

    /// The place of a stream that is expected and not there yet.
    fn place_of(&self, stream: &Identity) -> Option<usize> {
        let place = self.expected.iter().position(|expected| expected == stream)?;
        self.taken[place].is_none().then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{Dialling, HELLO};
    use super::*;
    use crate::bootstrap::socket::{recv_now, send_now};
    use crate::config::Secret;

    /// Does the door let in who knocks as `stream`?
    fn call(door: &mut Door<'_>, keys: &Keys, stream: Identity) -> bool {
        let (dialler, socket) =
            Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let entry = Entry::new(&socket, Instant::now());
        door.callers.push(Caller { socket, role: Role::Shm, entry });
        let (mut dialling, mut word) = Dialling::new(keys, stream, [5; 32]);
        loop {
            send_now(&dialler, &word).unwrap();
            let caller = door.callers.pop().unwrap();
            door.hear(caller);
            let mut bytes = [0; HELLO];
            if !matches!(recv_now(&dialler, &mut bytes), Ok(Some(HELLO))) {
                return false;
            }
            match dialling.hear(keys, &bytes) {
                Ok(Some(next)) => word = next,
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    #[test]
    fn only_the_expected_come_in_and_only_once() {
        let role = Role::Shm;
        let (job, sealed) = (7, false);
        let right = Identity { job, epoch: 0, from: 1, to: 0, role, index: 0, count: 1, sealed };
        let (expected, secret) = ([right], Secret::from(&[3; 32]));
        let keys = Keys::new(Some(&secret), right.job);
        let mut door = Door::new(&expected, &keys, 0);
        let wrong = [
            Identity { job: 8, ..right },
            Identity { epoch: 1, ..right },
            Identity { from: 2, ..right },
            Identity { to: 1, ..right },
            Identity { index: 1, ..right },
            Identity { count: 2, ..right },
            Identity { role: Role::Tcp, ..right },
            Identity { role: Role::Store, ..right },
        ];
        for wrong in wrong {
            assert!(!call(&mut door, &keys, wrong), "{wrong:?}");
        }
        assert_eq!(door.strangers.total(), wrong.len() as u64);
        let stranger = Keys::new(Some(&Secret::from(&[4; 32])), right.job);
        let sealed = Identity { sealed: true, ..right };
        for (keys, stream) in [(&stranger, right), (&Keys::new(None, 7), right), (&keys, sealed)] {
            assert!(!call(&mut door, keys, stream));
            // Who has gone is noticed when it is looked at.
            let caller = door.callers.pop().unwrap();
            door.hear(caller);
        }
        assert!(door.taken[0].is_none() && door.callers.is_empty());
        assert!(call(&mut door, &keys, right));
        assert!(door.taken[0].is_some());
        assert!(!call(&mut door, &keys, right), "a second one is refused");
    }
}
