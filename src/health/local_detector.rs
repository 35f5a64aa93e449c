//! Who of a host's ranks lives, and which call each is in: a page of each process, which the others
//! map. May touch: page, region, robust.
//! Law: the kernel marks the page of a process that ends before it gives back any memory, so all
//! others see it at once, however large it was; who ended after its last call was done with it.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::exit_futex;
use super::last_vote::{self, WILL};
pub(crate) use super::status_page::Told;
pub(super) use super::status_page::key_of;
use super::status_page::{MARKS, Own, PREPARED, Page, own};
use crate::error::cause::{Blame, Why};
use crate::error::{Result, Stall};
use crate::memory::mapping::Region;
use crate::transport::Fault;
use crate::transport::descriptor_passing::receive;

/// What a communicator knows of its ranks' lives.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// This rank's page, and its mark there.
    mine: Option<(Arc<Own>, usize)>,
    me: usize,
    key: u64,
    /// The other processes', by rank, as far as they are on this host.
    pub(super) peers: Vec<Option<Page>>,
}

impl Lives {
    /// Those of rank `me` of a communicator of so many, which all know by this number, and the
    /// descriptor that the others map this one's page by.
    ///
    /// # Errors
    /// If there is no memory, or no thread, for the page.
    pub(crate) fn new(me: usize, size: usize, key: u64) -> Result<(Self, Told)> {
        let own = own()?;
        let peers = (0..size).map(|_| None).collect();
        let own_key = key_of(key, me);
        let mine = (0..MARKS).find(|&at| own.page.take(at, own_key));
        let mine = mine.map(|at| (Arc::clone(&own), at));
        Ok((Self { mine, me, key, peers }, Told(own)))
    }

    /// Receives and maps the status page of `peer`, a process of this host that errors call `name`.
    ///
    /// # Errors
    /// If no page comes before the deadline.
    pub(crate) fn receive(
        &mut self,
        peer: usize,
        stream: &UnixStream,
        name: &str,
        deadline: Instant,
    ) -> Result<()> {
        let fd = receive(stream, "page by which to see that it lives", name, deadline)?;
        let page = Page(Arc::new(Region::open(fd.as_fd(), Page::bytes(), name)?));
        self.peers[peer] = Some(page);
        Ok(())
    }

    /// Another rank that is a thread of this process.
    pub(crate) fn add_beside(&mut self, peer: usize) {
        self.peers[peer] = self.mine.as_ref().map(|(own, _)| own.page.clone());
    }

    /// This rank enters the call with this number, of which `print` says what it is; 0 if that is
    /// not known.
    pub(crate) fn enter(&self, sequence: u64, print: u64) {
        if let Some((own, at)) = &self.mine {
            own.page.enter(*at, sequence, print);
        }
    }

    /// It prepares the call with this number: who does not come to that is missed, but messages may
    /// come before the call.
    pub(crate) fn prepare(&self, sequence: u64) {
        self.enter(sequence, PREPARED);
    }

    /// Is it the call with this number that it prepares?
    pub(crate) fn prepares(&self, sequence: u64) -> bool {
        self.mine.as_ref().is_some_and(|(own, at)| own.page.prepares(*at, sequence))
    }

    /// It is in it still, or again.
    pub(crate) fn stay(&self, sequence: u64) {
        self.leave(sequence.saturating_sub(1));
    }

    /// It is done with it.
    pub(crate) fn leave(&self, sequence: u64) {
        if let Some((own, at)) = &self.mine {
            own.page.mark(*at).done.store(sequence, Ordering::Release);
        }
    }

    /// It has failed and comes to no call any more. What is said first counts. Has it found that
    /// out by itself?
    pub(crate) fn fail(&self, blame: &Blame, first_hand: bool) {
        if let Some((own, at)) = &self.mine {
            own.page.mark(*at).fail(blame, first_hand);
        }
    }

    /// The same, because of itself.
    pub(crate) fn fail_by_itself(&self, why: Why) {
        self.fail(&Blame { culprit: self.me, why }, true);
    }

    /// The call that this rank is in.
    pub(crate) fn current(&self) -> Option<u64> {
        let (own, at) = self.mine.as_ref()?;
        let mark = own.page.mark(*at);
        let [entered, done] = [&mark.entered, &mark.done].map(|it| it.load(Ordering::Relaxed));
        (entered > done).then_some(entered)
    }

    /// Is there something to be known of a rank by its page?
    pub(crate) fn knows(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(Option::is_some)
    }

    /// Leaves this to those who come after this rank, whenever it ends.
    pub(crate) fn leave_will(&self, bytes: &[u8; WILL]) {
        let Some((own, at)) = &self.mine else { return };
        last_vote::leave(|word| own.page.will(*at, word), bytes);
    }

    /// Has a rank of this host ended? Then what it left; none if that can't be known.
    pub(crate) fn will_of(&self, peer: usize) -> Option<Option<[u8; WILL]>> {
        let page =
            self.peers.get(peer)?.as_ref().filter(|page| exit_futex::is_dead(page.word()))?;
        let Some(at) = page.find(key_of(self.key, peer)) else { return Some(None) };
        Some(Some(last_vote::read(|word| page.will(at, word))))
    }

    /// The latest call that a rank of this host entered, and that it is done with; none if it has
    /// left, or nothing is known of it.
    fn calls(&self, peer: usize) -> Option<[u64; 2]> {
        let page = self.peers.get(peer)?.as_ref()?;
        let mark = page.mark(page.find(key_of(self.key, peer))?);
        Some([&mark.entered, &mark.done].map(|word| word.load(Ordering::Acquire)))
    }

    /// The rank of this host, if any, that keeps the others from the end of this rank's call: a
    /// process that is stopped, or else who has not called so much yet.
    pub(crate) fn stalled(&self) -> Option<(usize, Stall)> {
        let current = self.current()?;
        let behind = |peer: &usize| {
            let calls = self.calls(*peer)?;
            (calls[1] < current).then_some(calls)
        };
        let stopped = |peer: usize| {
            let calls = behind(&peer)?;
            let pid = self.peers[peer].as_ref()?.pid().load(Ordering::Relaxed);
            is_stopped(pid).then_some((peer, Stall::Paused { entered: calls[0] }))
        };
        let absent = |peer: usize| {
            let [entered, done] = behind(&peer)?;
            // Who is in a call before waits there for somebody else.
            let is_free = entered < current && entered <= done;
            is_free.then_some((peer, Stall::NeverEntered { entered }))
        };
        let ranks = 0..self.peers.len();
        ranks.clone().find_map(stopped).or_else(|| ranks.clone().find_map(absent))
    }

    /// What this rank calls, or has called, by this number; none if it does not know any more.
    pub(crate) fn print(&self, call: u64) -> Option<u64> {
        self.mine.as_ref().and_then(|(own, at)| own.page.print(*at, call))
    }

    /// The rank, if any, that calls something else by the number of this rank's call, or that has
    /// found out that this rank differs from it; and in what.
    pub(crate) fn differs(&self) -> Option<(usize, Fault)> {
        let current = self.current();
        let ours = current.and_then(|call| self.print(call));
        (0..self.peers.len()).find_map(|peer| {
            let page = self.peers[peer].as_ref()?;
            let at = page.find(key_of(self.key, peer))?;
            let told = self.cause(peer).map(|(blame, _)| blame);
            if let Some(told) = told
                && let Some(fault) = told.seen_by(self.me, ours)
            {
                return Some((told.culprit, fault));
            }
            let (ours, theirs) = (ours?, page.print(at, current?)?);
            let fault = Fault::Mismatch { field: "fingerprint", ours, theirs };
            (ours != theirs).then_some((peer, fault))
        })
    }

    /// The call past the one of this number that a rank of this host has entered, if it has.
    pub(crate) fn is_past(&self, peer: usize, call: u64) -> Option<u64> {
        let page = self.peers.get(peer)?.as_ref()?;
        let at = page.find(key_of(self.key, peer))?;
        // Looked at first: it may have left that again.
        let entered = page.mark(at).entered.load(Ordering::Acquire);
        let is_next = entered == call + 1 && page.prepares(at, entered);
        (entered > call && !is_next).then_some(entered)
    }

    /// What a rank has failed because of, and whether it has found that out by itself.
    fn cause(&self, peer: usize) -> Option<(Blame, bool)> {
        let page = self.peers.get(peer)?.as_ref()?;
        let cause = page.mark(page.find(key_of(self.key, peer))?).cause()?;
        cause.0.is_within(self.peers.len()).then_some(cause)
    }

    /// A rank, if any, that has failed and without which this rank's call can't end; and because
    /// of whom it has.
    pub(crate) fn blamed(&self) -> Option<(usize, Fault)> {
        let current = self.current()?;
        (0..self.peers.len()).find_map(|peer| {
            let (blame, _) = self.cause(peer)?;
            // Who is meant finds out what of by itself.
            let counts = blame.culprit != self.me && self.calls(peer)?[1] < current;
            counts.then(|| (peer, Fault::GaveUp(Box::new(blame))))
        })
    }

    /// Who has failed because of this rank, rather one that has found that out by itself; and which
    /// this one is.
    pub(crate) fn blamed_by(&self) -> (Option<(bool, usize)>, usize) {
        let by = (0..self.peers.len()).filter_map(|peer| {
            let (blame, first_hand) = self.cause(peer)?;
            (blame.culprit == self.me).then_some((!first_hand, peer))
        });
        (by.min(), self.me)
    }

    /// The rank, if any, that has ended and without which this rank's call can't; and where it was.
    pub(crate) fn dead(&self) -> Option<(usize, String)> {
        let current = self.current()?;
        (0..self.peers.len()).find_map(|peer| {
            let page = self.peers[peer].as_ref()?;
            if !exit_futex::is_dead(page.word()) {
                return None;
            }
            let [entered, done] = self.calls(peer)?;
            // Who ended after a failure is not its cause.
            if page.mark(page.find(key_of(self.key, peer))?).has_failed() {
                return None;
            }
            let evidence = match entered.cmp(&current) {
                _ if done >= current => return None,
                std::cmp::Ordering::Less => format!("its process ended before call #{current}"),
                _ => format!("its process ended in call #{entered}"),
            };
            Some((peer, evidence))
        })
    }

    /// Why a rank that is missed outside calls is: because of whom it has failed, or that it or
    /// else another one has ended, or has failed.
    pub(crate) fn missed(&self, peer: usize) -> Option<(usize, Fault)> {
        let gave_up = |peer: usize| {
            let (blame, _) = self.cause(peer)?;
            (blame.culprit != self.me).then(|| (peer, Fault::GaveUp(Box::new(blame))))
        };
        let dead = |peer: usize| {
            let page = self.peers.get(peer)?.as_ref()?;
            let is_first = self.cause(peer).is_none() && exit_futex::is_dead(page.word());
            // Who has left before is nobody's cause.
            page.find(key_of(self.key, peer)).filter(|_| is_first)?;
            Some((peer, Fault::Lost("its process ended".into())))
        };
        let mut ranks = 0..self.peers.len();
        let own = gave_up(peer).or_else(|| dead(peer));
        own.or_else(|| ranks.clone().find_map(dead)).or_else(|| ranks.find_map(gave_up))
    }

    /// A rank of this host whose process is stopped: rather this one.
    pub(crate) fn paused(&self, peer: usize) -> Option<(usize, Stall)> {
        let all = std::iter::once(peer).chain(0..self.peers.len());
        all.into_iter().find_map(|peer| {
            let pid = self.peers.get(peer)?.as_ref()?.pid().load(Ordering::Relaxed);
            let [entered, _] = self.calls(peer)?;
            is_stopped(pid).then_some((peer, Stall::Paused { entered }))
        })
    }
}

/// Is a process of this host stopped, by a signal or a debugger?
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may hold anything, brackets too.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

impl Drop for Lives {
    /// Who has left is missed by nobody; what it failed because of others may still ask.
    fn drop(&mut self) {
        if let Some((own, at)) = self.mine.take() {
            let mark = own.page.mark(at);
            if !mark.has_failed() {
                mark.key.store(0, Ordering::Release);
            }
            mark.taken.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::cause::Difference;

    /// Ranks of one communicator, in this process.
    fn both(key: u64) -> [Lives; 2] {
        [0, 1].map(|me| {
            let (mut lives, _) = Lives::new(me, 2, key).unwrap();
            lives.add_beside(1 - me);
            lives
        })
    }

    #[test]
    fn who_calls_something_else_is_known_as_long_as_it_says_so() {
        let [one, other] = both(0x1234_5678);
        for call in 1..=20 {
            one.enter(call, 100 + call);
            assert!(one.differs().is_none());
            one.leave(call);
        }
        other.enter(14, 114);
        assert!(other.differs().is_none(), "the same call");
        other.enter(14, 7);
        let Some((0, Fault::Mismatch { field: "fingerprint", ours, theirs })) = other.differs()
        else {
            panic!("not known")
        };
        assert_eq!((ours, theirs), (7, 114));
        // Of the call that is as far back as there are places nothing is said any more.
        other.enter(13, 7);
        assert!(other.differs().is_none());
        other.enter(14, 0);
        assert!(other.differs().is_none(), "what it calls is not known yet");
    }

    #[test]
    fn who_prepares_a_call_is_not_past_the_messages_before_it() {
        let [one, other] = both(0x3456_789A);
        other.enter(3, 7);
        one.prepare(4);
        assert!(one.prepares(4) && one.current() == Some(4));
        assert_eq!((other.is_past(0, 3), other.is_past(0, 2)), (None, Some(4)));
        one.enter(3, 0);
        assert_eq!(other.is_past(0, 3), None, "the messages themselves");
        one.prepare(4);
        other.enter(4, 7);
        assert!(other.differs().is_none(), "it has not said yet what it calls");
        one.enter(4, 7);
        assert!(!one.prepares(4));
        assert_eq!((other.is_past(0, 3), other.is_past(0, 4)), (Some(4), None));
    }

    #[test]
    fn who_found_out_tells_the_other_in_what() {
        let [one, other] = both(0x8765_4321);
        one.enter(3, 5);
        other.enter(3, 5);
        let difference = Difference { with: 1, field: "memory", ours: 1, theirs: 0 };
        let blame = Blame { culprit: 0, why: Why::Differs(difference) };
        one.fail(&blame, true);
        // What is said first counts.
        one.fail(&Blame::lost(1), true);
        let Some((0, Fault::Mismatch { field: "memory", ours: 0, theirs: 1 })) = other.differs()
        else {
            panic!("not told")
        };
        let blamed = |(by, fault): (usize, Fault)| (by, format!("{fault:?}"));
        assert!(one.differs().is_none());
        assert_eq!(
            other.blamed().map(blamed),
            Some((0, format!("{:?}", Fault::GaveUp(Box::new(blame)))))
        );
    }
}
