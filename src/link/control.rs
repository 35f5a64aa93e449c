//! A connection beside the links between two ranks: what a rank failed because of goes over it,
//! past all that waits in those, and what survivors say to each other; and so does the end of a
//! process.
//! May touch: error, OS crates.
//! Law: frames of one size, none of which waits; who sends nothing before its end has died.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Socket, TcpKeepalive};

use super::Fault;
use super::notice::{FRAME, Notice, Words};
use crate::error::{Error, Result};

/// Frames of a rank that nobody has read yet: who sends more has lost its mind.
const MOST: usize = 4096;

/// Without a sign of the other host for so long it is unreachable.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// How often it is asked for one, and how often in vain.
const ASK: Duration = Duration::from_secs(1);
const IN_VAIN: u32 = 4;
/// A process may have ended after its last call: how long what it did last may take to show.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// The connection to one rank.
#[derive(Debug)]
struct Control {
    stream: Socket,
    /// What the system had no room for: who is at the other end has read nothing for long.
    unsent: Vec<u8>,
    /// What of a frame has come.
    frame: [u8; FRAME],
    filled: usize,
    said: Option<Notice>,
    /// The latest call that it waits in, for so long that it says so.
    waits: u64,
    /// What it said to this survivor, that nobody has read.
    heard: VecDeque<Words>,
    /// When it ended, and how.
    ended: Option<(Instant, String)>,
}

impl Control {
    /// Sends a frame, without waiting: what finds no room goes before the next one, or when this
    /// rank looks for what has come. Who does not get it is gone.
    fn say(&mut self, frame: &[u8; FRAME]) {
        self.unsent.extend(frame);
        self.send();
    }

    fn send(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(bytes) => drop(self.unsent.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// Takes what has come, without waiting.
    fn hear(&mut self) {
        self.send();
        while self.ended.is_none() {
            let end = match self.stream.read(&mut self.frame[self.filled..]) {
                Ok(0) => "its process ended".into(),
                Ok(bytes) => {
                    self.filled = (self.filled + bytes) % FRAME;
                    if self.filled > 0 {
                        continue;
                    }
                    match Notice::decode(&self.frame) {
                        None => "it sent what nobody understands".into(),
                        Some(Notice::Says(_)) if self.heard.len() >= MOST => {
                            "it says too much".into()
                        }
                        Some(Notice::Says(words)) => {
                            self.heard.push_back(words);
                            continue;
                        }
                        Some(Notice::Waits(call)) => {
                            self.waits = call;
                            continue;
                        }
                        notice => {
                            // What it said first counts.
                            self.said = self.said.take().or(notice);
                            continue;
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    format!("its host is unreachable: no sign of it for {UNREACHABLE:.0?}")
                }
                Err(error) => format!("its process or host ended: {error}"),
            };
            self.ended = Some((Instant::now(), end));
        }
    }
}

/// Those to all ranks that there are TCP links to.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    me: usize,
    peers: Vec<Option<Control>>,
    /// Has this rank failed?
    failed: bool,
    /// The call that it last said it waits in.
    waits: u64,
}

impl Controls {
    pub(crate) fn new(me: usize, size: usize) -> Self {
        Self { me, peers: (0..size).map(|_| None).collect(), failed: false, waits: 0 }
    }

    /// That to `peer`.
    ///
    /// # Errors
    /// If the system refuses a setting.
    pub(crate) fn add(&mut self, peer: usize, stream: Socket) -> Result<()> {
        prepare(&stream).map_err(|error| Error::io("preparing a control connection", error))?;
        let (frame, filled, said, waits, ended) = ([0; FRAME], 0, None, 0, None);
        let (unsent, heard) = (Vec::new(), VecDeque::new());
        self.peers[peer] =
            Some(Control { stream, unsent, frame, filled, said, waits, heard, ended });
        Ok(())
    }

    /// Tells all that this rank has failed because of `culprit`. What is said first counts.
    pub(crate) fn give_up(&mut self, culprit: usize) {
        if !std::mem::replace(&mut self.failed, true) {
            self.tell(&Notice::GaveUp(culprit as u64));
        }
    }

    /// The same, because of itself.
    pub(crate) fn fail(&mut self) {
        self.give_up(self.me);
    }

    /// Tells all, once, that this rank waits in a call. So who does not come is known by its
    /// silence.
    pub(crate) fn wait_in(&mut self, call: u64) {
        if self.waits != call && !self.failed {
            self.waits = call;
            self.tell(&Notice::Waits(call));
        }
    }

    /// The rank, if any, that has not said so, of a call in which this one has waited for long; and
    /// the latest in which it has.
    pub(crate) fn silent(&mut self, call: u64) -> Option<(usize, u64)> {
        self.read();
        self.peers.iter().enumerate().find_map(|(rank, control)| {
            let waits = control.as_ref()?.waits;
            (waits < call).then_some((rank, waits))
        })
    }

    fn tell(&mut self, notice: &Notice) {
        let frame = notice.encode();
        self.peers.iter_mut().flatten().for_each(|control| control.say(&frame));
    }

    /// Says this to another survivor.
    pub(crate) fn say(&mut self, to: usize, words: Words) {
        if let Some(Some(control)) = self.peers.get_mut(to) {
            control.say(&Notice::Says(words).encode());
        }
    }

    /// Takes what has come, so that there is room for more, also for a rank that never waits.
    pub(crate) fn read(&mut self) {
        self.peers.iter_mut().flatten().for_each(Control::hear);
    }

    /// What other survivors have said, each in order.
    pub(crate) fn hear(&mut self) -> Vec<(usize, Words)> {
        let mut heard = Vec::new();
        for (rank, control) in self.peers.iter_mut().enumerate() {
            let Some(control) = control else { continue };
            control.hear();
            heard.extend(control.heard.drain(..).map(|words| (rank, words)));
        }
        heard
    }

    /// Sleeps until something comes, or `limit` has passed.
    pub(crate) fn sleep(&self, limit: Duration) {
        let open = self.peers.iter().flatten().filter(|control| control.ended.is_none());
        let mut fds: Vec<_> =
            open.map(|control| PollFd::new(control.stream.as_fd(), PollFlags::POLLIN)).collect();
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        // Whatever it was, the caller looks.
        let _ = poll(&mut fds, limit);
    }

    /// Has the connection to a rank ended, and has the rank taken leave?
    pub(crate) fn end_of(&self, rank: usize) -> (bool, bool) {
        let control = self.peers.get(rank).and_then(Option::as_ref);
        let ended = control.is_some_and(|control| control.ended.is_some());
        (ended, control.is_some_and(|control| control.said == Some(Notice::Goodbye)))
    }

    /// The rank, if any, without which calls can't end: one that another has failed because of, or
    /// whose process or host has ended; and how that is known.
    pub(crate) fn lost(&mut self) -> Option<(usize, Fault)> {
        self.read();
        let ended = |rank| self.ended(rank).filter(|(since, _)| since.elapsed() > LAST_WORDS);
        let mut ranks = 0..self.peers.len();
        self.told().or_else(|| ranks.find_map(|rank| Some((rank, Fault::Lost(ended(rank)?.1)))))
    }

    /// The same, of one whose links have ended, as far as it is known by now.
    pub(crate) fn why(&mut self, rank: usize) -> Option<(usize, Fault)> {
        self.read();
        self.told().or_else(|| Some((rank, Fault::Lost(self.ended(rank)?.1))))
    }

    /// Is there one to this rank?
    pub(crate) fn has(&self, rank: usize) -> bool {
        self.peers.get(rank).is_some_and(Option::is_some)
    }

    fn told(&self) -> Option<(usize, Fault)> {
        self.peers.iter().enumerate().find_map(|(rank, control)| {
            let Some(Notice::GaveUp(culprit)) = &control.as_ref()?.said else { return None };
            let culprit = usize::try_from(*culprit).unwrap_or(usize::MAX);
            // Who is meant finds out what of by itself.
            (culprit != self.me).then_some((rank, Fault::GaveUp(culprit)))
        })
    }

    /// When and how a rank has ended that had nothing to say.
    fn ended(&self, rank: usize) -> Option<(Instant, String)> {
        let control = self.peers.get(rank)?.as_ref()?;
        control.ended.clone().filter(|_| control.said.is_none())
    }
}

impl Drop for Controls {
    fn drop(&mut self) {
        if !self.failed {
            self.tell(&Notice::Goodbye);
        }
        for control in self.peers.iter_mut().flatten() {
            // What is left unread would make the system cut off what was just said.
            control.hear();
            let _ = control.stream.shutdown(Shutdown::Write);
        }
    }
}

fn prepare(stream: &Socket) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    if stream.domain()? == Domain::UNIX {
        return Ok(());
    }
    let keepalive = TcpKeepalive::new().with_time(ASK).with_interval(ASK).with_retries(IN_VAIN);
    stream.set_tcp_keepalive(&keepalive)?;
    // Keepalives are not sent while bytes are under way: those have this long.
    stream.set_tcp_user_timeout(Some(UNREACHABLE))?;
    stream.set_tcp_nodelay(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> [Controls; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let mut both = [Controls::new(0, 3), Controls::new(1, 3)];
        both[0].add(1, one.into()).unwrap();
        both[1].add(0, other.into()).unwrap();
        both
    }

    fn soon(controls: &mut Controls) -> (usize, String) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some((rank, fault)) = controls.lost() {
                return (rank, format!("{fault:?}"));
            }
            assert!(Instant::now() < until, "nothing is heard");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_first_cause_is_told_though_its_teller_leaves() {
        let [mut one, mut other] = pair();
        one.give_up(2);
        one.give_up(1);
        drop(one);
        assert_eq!(soon(&mut other), (0, "GaveUp(2)".into()));
    }

    #[test]
    fn nothing_is_lost_on_who_does_not_listen() {
        let [mut one, mut other] = pair();
        for call in 1..=50_000 {
            one.wait_in(call);
        }
        one.give_up(2);
        // It goes on its way whenever this rank looks.
        let until = Instant::now() + Duration::from_secs(20);
        while other.told().is_none() {
            assert!(one.lost().is_none() && Instant::now() < until);
            other.read();
        }
        assert_eq!(other.peers[0].as_ref().unwrap().waits, 50_000);
        assert_eq!(soon(&mut other), (0, "GaveUp(2)".into()));
    }

    #[test]
    fn who_ends_without_a_word_has_died_and_who_takes_leave_has_not() {
        let [one, mut other] = pair();
        // As the kernel does it.
        one.peers[1].as_ref().unwrap().stream.shutdown(Shutdown::Both).unwrap();
        assert!(soon(&mut other).1.contains("process"), "{other:?}");
        let [one, mut other] = pair();
        drop(one);
        while other.peers[0].as_ref().unwrap().ended.is_none() {
            assert!(other.lost().is_none());
        }
        std::thread::sleep(LAST_WORDS * 2);
        assert!(other.lost().is_none());
    }

    #[test]
    fn every_byte_of_a_frame_is_looked_at() {
        let words = (3, Box::new(std::array::from_fn(|at| at as u8)));
        for notice in [Notice::GaveUp(7), Notice::Goodbye, Notice::Waits(9), Notice::Says(words)] {
            let frame = notice.encode();
            assert_eq!(Notice::decode(&frame), Some(notice.clone()));
            for at in 0..FRAME {
                let mut other = frame;
                other[at] ^= 0x40;
                assert_ne!(Notice::decode(&other), Some(notice.clone()), "byte {at}");
            }
        }
    }
}
