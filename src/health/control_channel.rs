//! A connection beside the links between two ranks: what a rank failed because of goes over it,
//! past all that waits in those, and what survivors say to each other; and so does the end of a
//! process.
//! May touch: error, OS crates.
//! Law: frames of one size, none of which waits; who sends nothing before its end has died.

mod connection;
mod keepalive;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use super::control_message::{FRAME, Failure, Notice, Waits, Words};
use crate::error::cause::{Blame, Why};
use crate::error::{Error, Result};
use crate::transport::aead::{Seals, TAG};
use crate::transport::{Fault, MESSAGE};
use connection::Control;
use keepalive::prepare;
pub(crate) use keepalive::watch;

/// How often who waits says so; rather a part of the time that a call may take.
const AGAIN: Duration = Duration::from_secs(1);

/// A process may have ended after its last call: how long what it did last may take to show.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Those to all ranks that there are TCP links to.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    me: usize,
    /// Without a sign of a host for so long it is unreachable.
    unreachable: Duration,
    peers: Vec<Option<Control>>,
    /// Has this rank failed?
    failed: bool,
    /// Because of whom another communicator of it has.
    because: Option<Blame>,
    /// The call that it last said it waits in, for whom alone, and when.
    waits: Option<(u64, u64, Instant)>,
    /// Has this rank said anything to survivors?
    has_spoken: bool,
}

impl Controls {
    pub(crate) fn new(me: usize, size: usize, unreachable: Duration) -> Self {
        let peers = (0..size).map(|_| None).collect();
        let (failed, because, waits, has_spoken) = (false, None, None, false);
        Self { me, unreachable, peers, failed, because, waits, has_spoken }
    }

    /// That to `peer`.
    ///
    /// # Errors
    /// If the system refuses a setting.
    pub(crate) fn add(
        &mut self,
        peer: usize,
        (stream, seals): (Socket, Option<Seals>),
    ) -> Result<()> {
        let unreachable = self.unreachable;
        prepare(&stream, unreachable)
            .map_err(|error| Error::io("preparing a control connection", error))?;
        let (frame, filled, said, waits, ended) =
            ([0; FRAME + TAG], 0, None, Waits::default(), None);
        // To say that it waits shall not allocate.
        let unsent = Vec::with_capacity(4 * (FRAME + TAG));
        let (heard, left) = (VecDeque::new(), None);
        let since = Instant::now();
        self.peers[peer] = Some(Control {
            stream,
            unreachable,
            looked: since,
            is_cut: false,
            unsent,
            seals,
            frame,
            filled,
            said,
            left,
            waits,
            since,
            heard,
            ended,
            gone: None,
        });
        Ok(())
    }

    /// Tells all that this rank has failed, and because of whom: has it found that out by itself?
    /// What is said first counts.
    pub(crate) fn give_up(&mut self, blame: Blame, first_hand: bool) {
        if !std::mem::replace(&mut self.failed, true) {
            self.tell(&Notice::GaveUp(Failure { blame, first_hand }));
        }
    }

    /// The same, because of itself.
    pub(crate) fn fail_by_itself(&mut self, why: Why) {
        self.give_up(Blame { culprit: self.me, why }, true);
    }

    /// When this rank leaves, it does so because of another communicator of its.
    pub(crate) fn leaves_for(&mut self, because: Blame) {
        self.because = Some(because);
    }

    /// Tells all, now and then, that this rank waits in a call that may take so long, and for whom
    /// if for one alone. So who does not come is known by its silence. `print` says what it calls,
    /// and `sent` how many slots have gone to a rank.
    pub(crate) fn wait_in(
        &mut self,
        (call, most): (u64, Duration),
        print: u64,
        toward: Option<usize>,
        sent: impl Fn(usize) -> u64,
    ) {
        let toward = toward.map_or(0, |rank| rank as u64 + 1);
        let again = AGAIN.min(most / 8);
        let is_said = self
            .waits
            .is_some_and(|(said, of, at)| (said, of) == (call, toward) && at.elapsed() < again);
        if self.failed || is_said {
            return;
        }
        self.waits = Some((call, toward, Instant::now()));
        for (rank, control) in self.peers.iter_mut().enumerate() {
            let Some(control) = control else { continue };
            let waits = Waits { call, print, sent: sent(rank), toward };
            control.say(&Notice::Waits(waits).encode());
        }
    }

    /// The one of these ranks, if any, that has not said lately that it waits, where this one has
    /// for so long; and the latest call in which it has. Who waits in another call does so for
    /// somebody else.
    pub(crate) fn silent(
        &mut self,
        most: Duration,
        among: impl Fn(usize) -> bool,
    ) -> Option<(usize, u64)> {
        self.read();
        self.peers.iter().enumerate().find_map(|(rank, control)| {
            let control = control.as_ref()?;
            let is_silent = among(rank) && !control.is_heard(most);
            is_silent.then_some((rank, control.waits.call & !MESSAGE))
        })
    }

    /// The rank, if any, that is silent where this one has waited for a message to or from `peer`,
    /// who may wait for another one in turn.
    pub(crate) fn silent_before(
        &mut self,
        peer: usize,
        (call, most): (u64, Duration),
    ) -> Option<(usize, u64)> {
        self.read();
        let mut at = peer;
        for _ in 0..self.peers.len() {
            let control = self.peers.get(at)?.as_ref()?;
            let Waits { call: number, toward, .. } = control.waits;
            match usize::try_from(toward).ok()?.checked_sub(1) {
                _ if !control.is_heard(most) => return Some((at, number & !MESSAGE)),
                Some(next) if number == call => at = next,
                // It is in the call before.
                None if number == call & !MESSAGE => return self.silent(most, |_| true),
                _ => return Some((at, number & !MESSAGE)),
            }
        }
        None
    }

    /// The call of all ranks in which `peer` has said that it waits, past the one of this number,
    /// and how many slots it had sent here by then.
    pub(crate) fn is_past(&self, peer: usize, call: u64) -> Option<(u64, u64)> {
        let waits = self.peers.get(peer)?.as_ref()?.waits;
        (waits.call & MESSAGE == 0 && waits.call > call).then_some((waits.call, waits.sent))
    }

    /// The rank, if any, that calls something else than this one by the same number, or has found
    /// out that this one differs; and in what. `call` is that of this rank, and `ours` says what
    /// it calls by a number.
    pub(crate) fn differs(
        &mut self,
        call: Option<u64>,
        ours: impl Fn(u64) -> Option<u64>,
    ) -> Option<(usize, Fault)> {
        self.read();
        self.peers.iter().enumerate().find_map(|(rank, control)| {
            let control = control.as_ref()?;
            if let Some(Notice::GaveUp(Failure { blame, .. })) = control.said
                && blame.is_within(self.peers.len())
                && let Some(fault) = blame.seen_by(self.me, call.and_then(&ours))
            {
                return Some((blame.culprit, fault));
            }
            let Waits { call: number, print: theirs, .. } = control.waits;
            let ours = ours(number).filter(|&ours| theirs != 0 && ours != theirs)?;
            let field = if call == Some(number) { "fingerprint" } else { "earlier" };
            call.map(|_| (rank, Fault::Mismatch { field, ours, theirs }))
        })
    }

    /// Who has failed because of this rank; rather one that has found that out by itself.
    pub(crate) fn blamed_by(&self) -> Option<(bool, usize)> {
        let all = self.peers.iter().enumerate().filter_map(|(rank, control)| {
            let Some(Notice::GaveUp(failure)) = control.as_ref()?.said else { return None };
            (failure.blame.culprit == self.me).then_some((!failure.first_hand, rank))
        });
        all.min()
    }

    fn tell(&mut self, notice: &Notice) {
        let frame = notice.encode();
        self.peers.iter_mut().flatten().for_each(|control| control.say(&frame));
    }

    /// Says this to another survivor.
    pub(crate) fn say(&mut self, to: usize, words: Words) {
        if let Some(Some(control)) = self.peers.get_mut(to) {
            control.say(&Notice::Says(words).encode());
            self.has_spoken = true;
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

    /// Has the connection to a rank ended; and if it has taken leave, had it spoken with survivors?
    pub(crate) fn end_of(&self, rank: usize) -> (bool, Option<bool>) {
        let control = self.peers.get(rank).and_then(Option::as_ref);
        let ended = control.is_some_and(|control| control.ended.is_some());
        (ended, control.and_then(|control| control.left))
    }

    /// The rank, if any, without which calls can't end: one that another has failed because of, or
    /// whose process or host has ended; and how that is known. `seen` tells of a process's end
    /// also where no connection does.
    pub(crate) fn lost(&mut self, seen: impl Fn(usize) -> bool) -> Option<(usize, Fault)> {
        self.read();
        for (rank, control) in self.peers.iter_mut().enumerate() {
            if let Some(control) = control.as_mut().filter(|it| it.gone.is_none() && seen(rank)) {
                control.gone = Some(Instant::now());
            }
        }
        let ended = |rank| self.ended(rank).filter(|(since, _)| since.elapsed() > LAST_WORDS);
        let mut ranks = 0..self.peers.len();
        self.told().or_else(|| ranks.find_map(|rank| Some((rank, Fault::Lost(ended(rank)?.1)))))
    }

    /// The same, of one whose links have ended, as far as it is known by now.
    pub(crate) fn why(&mut self, rank: usize) -> Option<(usize, Fault)> {
        self.read();
        let left = || match &self.peers.get(rank)?.as_ref()?.said {
            Some(Notice::Goodbye { because: Some(blame), .. }) => {
                (blame.culprit != self.me).then(|| (rank, Fault::GaveUp(Box::new(*blame))))
            }
            _ => None,
        };
        let ended = || Some((rank, Fault::Lost(self.ended(rank)?.1)));
        self.told().or_else(left).or_else(ended)
    }

    /// Is a rank's host out of reach? A link finds that out only if something is to go there.
    pub(crate) fn is_cut(&mut self, rank: usize) -> Option<Fault> {
        let control = self.peers.get_mut(rank)?.as_mut()?;
        control.hear();
        if control.is_cut { Some(Fault::Lost(self.ended(rank)?.1)) } else { None }
    }

    /// Is there one to any rank?
    pub(crate) fn is_any(&self) -> bool {
        self.peers.iter().any(Option::is_some)
    }

    /// Is there one to this rank?
    pub(crate) fn has(&self, rank: usize) -> bool {
        self.peers.get(rank).is_some_and(Option::is_some)
    }

    fn told(&self) -> Option<(usize, Fault)> {
        self.peers.iter().enumerate().find_map(|(rank, control)| {
            let Some(Notice::GaveUp(failure)) = &control.as_ref()?.said else { return None };
            let blame = failure.blame;
            // Who is meant finds out what of by itself.
            (blame.culprit != self.me).then(|| (rank, Fault::GaveUp(Box::new(blame))))
        })
    }

    /// A rank, if any, whose connection has ended without a word.
    pub(crate) fn broken(&self) -> Option<(usize, Fault)> {
        let ended = |rank| Some((rank, Fault::Lost(self.ended(rank)?.1)));
        (0..self.peers.len()).find_map(ended)
    }

    /// When and how a rank has ended that had nothing to say.
    fn ended(&self, rank: usize) -> Option<(Instant, String)> {
        let control = self.peers.get(rank)?.as_ref()?;
        let gone = control.gone.map(|since| (since, "its process ended".to_string()));
        control.ended.clone().or(gone).filter(|_| control.said.is_none())
    }
}

impl Drop for Controls {
    fn drop(&mut self) {
        self.tell(&Notice::Goodbye { because: self.because, has_spoken: self.has_spoken });
        for control in self.peers.iter_mut().flatten() {
            // What is left unread would make the system cut off what was just said.
            control.hear();
            let _ = control.stream.shutdown(Shutdown::Write);
        }
    }
}
