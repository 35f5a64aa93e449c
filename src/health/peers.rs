//! The peers of one rank: the links to them, and the failure detector's knowledge of them. Each
//! question (dead? mismatched? stalled? cause?) goes to all sources here, in one order of trust.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::control_channel::Controls;
use super::last_vote::WILL;
use super::local_detector::Lives;
use super::process_table::Launched;
use crate::error::Stall;
use crate::error::cause::{Blame, Why};
use crate::transport::{Fault, Frame, LinkSet, MESSAGE};

/// After how long a rank tells others that it waits, and in what call: those that differ find out
/// by it.
const WAITS: Duration = Duration::from_millis(20);
/// What ended a rank is told by it before its links end: how long that may take to come.
pub(crate) const SHORTLY: Duration = Duration::from_millis(50);

/// The links to a rank's peers, and the failure detector's sources.
#[derive(Debug, Default)]
pub struct Links {
    pub(crate) links: LinkSet,
    /// Who of the host's ranks lives.
    lives: Lives,
    /// The connections beside TCP links.
    controls: Controls,
    /// What their launcher has seen.
    pub(crate) launched: Launched,
}

impl Deref for Links {
    type Target = LinkSet;

    fn deref(&self) -> &LinkSet {
        &self.links
    }
}

impl DerefMut for Links {
    fn deref_mut(&mut self) -> &mut LinkSet {
        &mut self.links
    }
}

/// Do two calls differ by what nobody but they can tell?
fn like(fault: &Fault, is_alike: impl Fn(u64, u64) -> bool) -> bool {
    match *fault {
        Fault::Mismatch { field: "fingerprint", ours, theirs } => is_alike(ours, theirs),
        _ => false,
    }
}

impl Links {
    /// No links yet, in a world of `size` ranks.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self { links: LinkSet::new(size), ..Self::default() }
    }

    /// What is known of the lives of this host's ranks, and of the calls that they are in.
    pub(crate) fn set_lives(&mut self, lives: Lives, launched: Launched) {
        (self.lives, self.launched) = (lives, launched);
    }

    /// The connections beside TCP links.
    pub(crate) fn set_controls(&mut self, controls: Controls) {
        self.controls = controls;
    }

    /// Leaves this to those who come after this rank, whenever it ends.
    pub(crate) fn leave_will(&self, will: &[u8; WILL]) {
        self.lives.leave_will(will);
        self.launched.leave_will(will);
    }

    /// Is it certain that a rank has ended? Then what it left; none if that can't be known.
    pub(crate) fn will_of(&self, rank: usize) -> Option<Option<[u8; WILL]>> {
        let seen = self.lives.will_of(rank);
        if let Some(Some(_)) = seen { seen } else { self.launched.will_of(rank).or(seen) }
    }

    /// Those.
    pub(crate) fn controls(&mut self) -> &mut Controls {
        &mut self.controls
    }

    /// Who, if that is known, keeps this rank from the end of its call, in which it has waited for
    /// long, of so long at most; in that of a message with this number for `peer`.
    pub(crate) fn stalled(
        &mut self,
        (peer, message): (usize, u64),
        most: Duration,
    ) -> Option<(usize, Stall)> {
        let unheard = |(rank, waited)| (rank, Stall::Silent { waited });
        if self.lives.current().is_none() {
            let paused = self.lives.paused(peer);
            let mut silent = || self.controls.silent_before(peer, (message, most));
            return paused.or_else(|| silent().map(unheard));
        }
        let stalled = self.lives.stalled();
        stalled.or_else(|| self.controls.silent(most, |_| true).map(unheard))
    }

    /// The same, of a call in which it waits for these ranks alone.
    pub(crate) fn stalled_of(&mut self, ranks: &[usize], most: Duration) -> Option<(usize, Stall)> {
        self.lives.current()?;
        let among = |rank: usize| ranks.contains(&rank);
        let unheard = |(rank, waited)| (rank, Stall::Silent { waited });
        let stalled = self.lives.stalled().filter(|it| among(it.0));
        stalled.or_else(|| self.controls.silent(most, among).map(unheard))
    }

    /// This rank has waited in its call for so long, of so long at most; if that is none of all
    /// ranks, in a message with this number for that rank.
    pub(crate) fn wait_on(
        &mut self,
        (waited, most): (Duration, Duration),
        message: Option<(u64, usize)>,
    ) {
        if waited <= WAITS.min(most / 4) {
            return;
        }
        let Self { lives, controls, links, .. } = self;
        let sent = |rank: usize| links.sent(rank);
        match (lives.current(), message) {
            // Messages may come before that.
            (Some(call), _) if lives.prepares(call) => {
                controls.wait_in(((call - 1) | MESSAGE, most), 0, None, sent);
            }
            (Some(call), _) => {
                let print = lives.print(call).unwrap_or(0);
                controls.wait_in((call, most), print, None, sent);
            }
            (None, Some((call, peer))) => controls.wait_in((call, most), 0, Some(peer), sent),
            (None, None) => {}
        }
    }

    /// Who is the cause that this rank's call can't end: who is dead, makes another call, or has
    /// failed because of whom. `call` is what all its slots say, if they are alike.
    pub(crate) fn cause(
        &mut self,
        call: Option<&Frame>,
        is_alike: impl Fn(u64, u64) -> bool,
    ) -> Option<(usize, Fault)> {
        let lost = |(peer, evidence)| (peer, Fault::Lost(evidence));
        let dead = self.lives.dead().map(lost);
        let other = dead.or_else(|| self.differs().filter(|(_, fault)| !like(fault, &is_alike)));
        let other = other.or_else(|| self.links.other_call(call));
        let blamed = other.or_else(|| self.lives.blamed());
        let in_call = self.lives.current().is_some();
        let Self { controls, launched, .. } = self;
        let seen = |rank| launched.ended(rank).is_some();
        blamed.or_else(|| if in_call { controls.lost(seen) } else { None })
    }

    /// The rank, if any, that makes another call than this one, as far as marks and connections
    /// tell; and in what they differ.
    fn differs(&mut self) -> Option<(usize, Fault)> {
        let Self { lives, controls, .. } = self;
        let call = lives.current();
        lives.differs().or_else(|| controls.differs(call, |number| lives.print(number)))
    }

    /// Can the message of this number from `peer`, or to it, still come or be taken? Not if that
    /// one is in a call of all ranks past it, and all that it sent before was taken.
    ///
    /// # Errors
    /// If it can't: the two differ.
    pub(crate) fn is_due(&mut self, message: u64, peer: usize, from: bool) -> Result<(), Fault> {
        let call = message & !MESSAGE;
        let seen = self.lives.is_past(peer, call).map(|entered| (entered, 0));
        let Some((theirs, sent)) = seen.or_else(|| self.controls.is_past(peer, call)) else {
            return Ok(());
        };
        // The links are asked after the peer's call, so that a message sent before is seen.
        let comes = match from {
            true => self.links.message_may_come(peer, sent),
            false => self.links.message_may_go(peer)?,
        };
        let field = "sequence";
        if comes { Ok(()) } else { Err(Fault::Mismatch { field, ours: message, theirs }) }
    }

    /// Says, once, that this rank has failed, and because of whom: has it found that out by itself?
    pub(crate) fn blame(&mut self, blame: Blame, first_hand: bool) {
        self.lives.fail(&blame, first_hand);
        self.controls.give_up(blame, first_hand);
    }

    /// The same, because of itself.
    pub(crate) fn fail(&mut self, why: Why) {
        self.lives.fail_by_itself(why);
        self.controls.fail_by_itself(why);
    }

    /// A link to or from one of `peers` has ended: the first cause of it, once it is known, or
    /// after a while what is. Of those that this rank has no link to others may tell.
    pub(crate) fn why_ended(&mut self, peers: &[usize], most: Duration) -> Option<(usize, Fault)> {
        let began = Instant::now();
        let lost = |(peer, evidence)| (peer, Fault::Lost(evidence));
        while self.controls.is_any() || peers.iter().any(|&peer| self.lives.knows(peer)) {
            let known = match self.lives.current() {
                Some(_) => {
                    let dead = self.lives.dead().map(lost).or_else(|| self.differs());
                    dead.or_else(|| self.lives.blamed())
                }
                None => {
                    let missed = || peers.iter().find_map(|&peer| self.lives.missed(peer));
                    missed().or_else(|| self.differs())
                }
            };
            let mut why = || peers.iter().find_map(|&peer| self.controls.why(peer));
            if let Some(cause) = known.or_else(&mut why) {
                return Some(cause);
            }
            if began.elapsed() > most {
                break;
            }
            std::thread::sleep(SHORTLY / 20);
        }
        // It may be this one that others have lost, by a connection that ended.
        let (by, me) = self.lives.blamed_by();
        let by = by.into_iter().chain(self.controls.blamed_by()).min();
        // Who lost it at first hand may have had no other way to say so.
        let broken = || self.controls.broken();
        if let Some(broken) = broken().filter(|_| by.is_none_or(|(hearsay, _)| hearsay)) {
            return Some(broken);
        }
        let by = by?;
        Some((by.1, Fault::GaveUp(Box::new(Blame::lost(me)))))
    }

    /// That.
    pub(crate) fn lives(&self) -> &Lives {
        &self.lives
    }

    /// When this rank leaves, it does so because of another communicator of its.
    pub(crate) fn leaves_for(&mut self, because: Blame) {
        self.lives.fail(&because, false);
        self.controls.leaves_for(because);
    }
}
