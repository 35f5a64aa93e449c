//! Who may come in: the receivers' part of the handshake, with every caller at once.
//! May touch: handshake, socket.
//! Law: a stranger takes a place in a bounded list for two seconds at most, and nothing else.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::handshake::{HELLO, Identity, Stage};
use super::peers::LinkKind;
use super::socket::{recv_now, same_user, send_now, wait};

/// How long a caller may take for its part of the handshake.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many callers may be in their handshake beside those that are expected.
const MAX_CALLERS: usize = 64;

/// Who knocks, and who was let in.
pub(super) struct Door<'a> {
    expected: &'a [Identity],
    pub(super) taken: Vec<Option<Socket>>,
    callers: Vec<Caller>,
    pub(super) strangers: usize,
}

/// A connection in its handshake.
struct Caller {
    socket: Socket,
    kind: LinkKind,
    stage: Stage,
    bytes: [u8; HELLO],
    filled: usize,
    until: Instant,
}

impl<'a> Door<'a> {
    /// For these streams, and nobody else.
    pub(super) fn new(expected: &'a [Identity]) -> Self {
        let taken = expected.iter().map(|_| None).collect();
        Self { expected, taken, callers: Vec::new(), strangers: 0 }
    }

    /// Waits for news and deals with it; false when time is over or the dialling failed.
    pub(super) fn turn(
        &mut self,
        listeners: &[(&Socket, LinkKind)],
        cancelled: &UnixStream,
        until: Instant,
    ) -> io::Result<bool> {
        let reading = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![reading(cancelled.as_fd())];
        fds.extend(self.callers.iter().map(|caller| reading(caller.socket.as_fd())));
        fds.extend(listeners.iter().map(|(listener, _)| reading(listener.as_fd())));
        let soonest = self.callers.iter().map(|caller| caller.until).min();
        wait(&mut fds, Some(soonest.map_or(until, |soonest| soonest.min(until))))?;
        let news: Vec<bool> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
        if news[0] || Instant::now() >= until {
            return Ok(false);
        }
        let mut spoke = news[1..].iter().copied();
        let callers = std::mem::take(&mut self.callers);
        for caller in callers {
            let spoke = spoke.next().unwrap_or(false);
            match spoke {
                true => self.hear(caller),
                false if caller.until <= Instant::now() => self.strangers += 1,
                false => self.callers.push(caller),
            }
        }
        for (&(listener, kind), knocks) in listeners.iter().zip(spoke) {
            if knocks {
                self.welcome(listener, kind)?;
            }
        }
        Ok(true)
    }

    fn welcome(&mut self, listener: &Socket, kind: LinkKind) -> io::Result<()> {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) => match error.kind() {
                // The caller has gone again.
                ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {
                    return Ok(());
                }
                _ => return Err(error),
            },
        };
        if kind == LinkKind::Shm && same_user(&socket).is_err() {
            self.strangers += 1;
            return Ok(());
        }
        if self.callers.len() >= MAX_CALLERS + 2 * self.expected.len() {
            self.callers.remove(0);
            self.strangers += 1;
        }
        let until = Instant::now() + PATIENCE;
        let (stage, bytes, filled) = (Stage::Offer, [0; HELLO], 0);
        self.callers.push(Caller { socket, kind, stage, bytes, filled, until });
        Ok(())
    }

    /// Goes on with a caller that has spoken; one that does not belong here is dropped.
    fn hear(&mut self, mut caller: Caller) {
        match recv_now(&caller.socket, &mut caller.bytes[caller.filled..]) {
            Ok(Some(count)) if count > 0 => caller.filled += count,
            Ok(None) => return self.callers.push(caller),
            _ => return self.strangers += 1,
        }
        if caller.filled < HELLO {
            return self.callers.push(caller);
        }
        caller.filled = 0;
        let place = match Identity::decode(&caller.bytes, caller.stage) {
            Ok(stream) if stream.kind == caller.kind => self.place_of(&stream),
            _ => None,
        };
        let answer = match caller.stage {
            Stage::Offer => Stage::Answer,
            _ => Stage::Welcome,
        };
        let said = place.is_some_and(|place| {
            let bytes = self.expected[place].encode(answer);
            matches!(send_now(&caller.socket, &bytes), Ok(Some(HELLO)))
        });
        match (place, answer) {
            (Some(place), Stage::Welcome) if said => {
                let Caller { socket, kind, .. } = caller;
                let nodelay = kind == LinkKind::Tcp && socket.set_tcp_nodelay(true).is_err();
                self.taken[place] = (!nodelay).then_some(socket);
            }
            (Some(_), _) if said => {
                caller.stage = Stage::Confirm;
                self.callers.push(caller);
            }
            _ => self.strangers += 1,
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
    use super::*;

    /// What the door says to `words`, one after the other.
    fn call(door: &mut Door<'_>, words: &[[u8; HELLO]]) -> Vec<Option<Identity>> {
        let (dialler, socket) =
            Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let (stage, bytes, filled) = (Stage::Offer, [0; HELLO], 0);
        let until = Instant::now() + PATIENCE;
        door.callers.push(Caller { socket, kind: LinkKind::Shm, stage, bytes, filled, until });
        let mut answers = Vec::new();
        for (word, stage) in words.iter().zip([Stage::Answer, Stage::Welcome]) {
            let _gone = send_now(&dialler, word);
            if let Some(caller) = door.callers.pop() {
                door.hear(caller);
            }
            let mut bytes = [0; HELLO];
            let heard = matches!(recv_now(&dialler, &mut bytes), Ok(Some(HELLO)));
            answers.push(Identity::decode(&bytes, stage).ok().filter(|_| heard));
        }
        answers
    }

    #[test]
    fn only_the_expected_come_in_and_only_once() {
        let kind = LinkKind::Shm;
        let right = Identity { job: 7, epoch: 0, from: 1, to: 0, kind, index: 0, count: 1 };
        let expected = [right];
        let mut door =
            Door { expected: &expected, taken: vec![None], callers: Vec::new(), strangers: 0 };
        let wrong = [
            Identity { job: 8, ..right },
            Identity { epoch: 1, ..right },
            Identity { from: 2, ..right },
            Identity { to: 1, ..right },
            Identity { index: 1, ..right },
            Identity { count: 2, ..right },
            Identity { kind: LinkKind::Tcp, ..right },
        ];
        for wrong in wrong {
            assert_eq!(call(&mut door, &[wrong.encode(Stage::Offer)]), [None]);
            // Nor may it change its mind.
            let words = [right.encode(Stage::Offer), wrong.encode(Stage::Confirm)];
            assert_eq!(call(&mut door, &words), [Some(right), None]);
        }
        assert_eq!(call(&mut door, &[right.encode(Stage::Confirm)]), [None]);
        assert_eq!(door.strangers, 15);
        assert!(door.taken[0].is_none() && door.callers.is_empty());
        let words = [right.encode(Stage::Offer), right.encode(Stage::Confirm)];
        assert_eq!(call(&mut door, &words), [Some(right), Some(right)]);
        assert!(door.taken[0].is_some());
        assert_eq!(call(&mut door, &words), [None, None], "a second one is refused");
    }
}
