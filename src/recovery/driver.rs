//! What a communicator's state machine of its membership hears and says: messages, deaths and the
//! time. May touch: as `comm`, and membership. Law: what decides is the pure machine alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::membership::{
    Body, Evidence, Input, MESSAGE_BYTES, Member, Message, Outputs, Ranks, Settings, Testament,
    Time, Verdict, decode, encode,
};
use super::reconnect::Door;
use crate::api::Seat;
use crate::error::{Error, Peer, Place, Result};
use crate::health::Links;
use crate::health::control_message::WORDS;

/// What words between survivors are: messages of the machine, or where a rank listens.
const MACHINE: u32 = 1;
pub(super) const DOORS: u32 = 2;
/// A member to a newcomer: all have connected.
pub(super) const WELCOME: u32 = 3;

/// How long to wait for a better explanation, and for an answer; milliseconds.
const SETTINGS: Settings = Settings { grace: 20, patience: 2_000, settling: 2_000, uniform: false };
/// How often it looks for deaths.
const GLANCE: Duration = Duration::from_millis(5);
/// How long survivors may take to connect, at most.
pub(super) const CONNECTING: Duration = Duration::from_secs(10);

/// The machine of one communicator, and what drives it.
#[derive(Debug)]
pub(crate) struct Council {
    member: Member,
    began: Instant,
    /// Of whom evidence was told, and which; with what the rank left?
    told: Vec<Option<(Evidence, bool)>>,
    timer: Option<Time>,
    verdicts: VecDeque<Verdict>,
    /// The machine's last one: it does nothing any more.
    ended: Option<Verdict>,
    /// The caller waits no more, and where it is then.
    abort: Arc<AtomicBool>,
    at: Box<Place>,
    me: Box<Peer>,
    /// Where ranks listen, and for which membership.
    pub(super) doors: Vec<Door>,
    /// Has a member said that this newcomer is one now?
    pub(super) welcome: bool,
}

impl Council {
    /// That of a communicator; if its calls end alike, with the time that a rank may take to tell
    /// how far it is.
    pub(super) fn new(
        seat: &Seat,
        settling: Option<Duration>,
        abort: Arc<AtomicBool>,
        at: Box<Place>,
    ) -> Option<Self> {
        let (me, size) = (seat.rank, seat.peers.len());
        let all = Ranks::first(u32::try_from(size).ok()?)?;
        let own = |time: Duration| Settings {
            settling: Time::try_from(time.as_millis()).unwrap_or(Time::MAX).max(SETTINGS.settling),
            uniform: true,
            ..SETTINGS
        };
        let member = Member::new(me as u32, all, settling.map_or(SETTINGS, own))?;
        let (told, verdicts, doors) = (vec![None; size], VecDeque::new(), Vec::new());
        let (began, timer, ended, welcome) = (Instant::now(), None, None, false);
        let me = Box::new(seat.peers[me].clone());
        Some(Self { member, began, told, timer, verdicts, ended, abort, at, me, doors, welcome })
    }

    /// The caller of `at` is about to wait.
    pub(super) fn is_at(&mut self, at: Box<Place>) {
        self.at = at;
    }

    /// An error, if the caller waits no more.
    pub(super) fn goes_on(&self) -> Result<()> {
        if self.abort.load(Ordering::Relaxed) {
            return Err(Error::Aborted { at: self.at.clone(), by: self.me.clone() });
        }
        Ok(())
    }

    fn now(&self) -> Time {
        Time::try_from(self.began.elapsed().as_millis()).unwrap_or(Time::MAX)
    }

    pub(super) fn time(&self, until: Instant) -> Time {
        Time::try_from(until.saturating_duration_since(self.began).as_millis()).unwrap_or(Time::MAX)
    }

    pub(super) fn step(&mut self, links: &mut Links, from: Option<usize>, input: Input<'_>) {
        let before = self.member.testament();
        let Outputs { replies, sends, verdicts, timer } = self.member.step(self.now(), input);
        let testament = self.member.testament();
        if testament != before {
            // Before anybody can go by what it says.
            let (epoch, slot) = (self.member.membership().0, 0);
            links.leave_will(&encode(&Message { epoch, slot, body: Body::Goodbye(testament) }));
        }
        let replies = replies.into_iter().filter_map(|message| Some((from?, message)));
        let sends = sends.into_iter().map(|(to, message)| (to as usize, message));
        for (to, message) in replies.chain(sends) {
            let mut words = Box::new([0; WORDS]);
            words[..MESSAGE_BYTES].copy_from_slice(&encode(&message));
            links.controls().say(to, (MACHINE, words));
        }
        let lasts =
            |it: &&Verdict| matches!(it, Verdict::QuorumLost { .. } | Verdict::Evicted { .. });
        self.ended = self.ended.or(verdicts.iter().find(lasts).copied());
        self.verdicts.extend(verdicts);
        self.timer = timer.or(self.timer);
    }

    /// Takes what has come, looks who has died and what time it is, or waits a little.
    pub(super) fn turn(&mut self, links: &mut Links) {
        let heard = links.controls().hear();
        let idle = heard.is_empty();
        for (from, (kind, words)) in heard {
            match kind {
                MACHINE => {
                    let message = words.first_chunk().and_then(decode);
                    if let Some(message) = message {
                        self.step(links, Some(from), Input::Message(from as u32, &message));
                    }
                }
                DOORS => self.doors.extend(Door::read(from, &words)),
                WELCOME => self.welcome = true,
                // Of a later version: nobody here speaks it.
                _ => {}
            }
        }
        for rank in 0..self.told.len() {
            self.look_at(links, rank);
        }
        if self.timer.is_some_and(|due| due <= self.now()) {
            self.timer = None;
            self.step(links, None, Input::Tick);
        } else if idle && self.verdicts.is_empty() {
            links.controls().sleep(GLANCE);
        }
    }

    /// Tells the machine of a rank's death, once for each new certainty.
    fn look_at(&mut self, links: &mut Links, rank: usize) {
        let (ended, left) = links.controls().end_of(rank);
        let will = links.will_of(rank);
        // Who took leave without having spoken has voted for nothing.
        let nothing = (left == Some(false)).then(Testament::default);
        let (evidence, testament) = match will {
            Some(will) => (Evidence::Certain, will.map(|will| left_by(&will)).or(nothing)),
            None if left.is_some() => (Evidence::Left, nothing),
            None if ended => (Evidence::Strong, None),
            None => return,
        };
        let told = Some((evidence, testament.is_some()));
        if self.told[rank] < told {
            self.told[rank] = told;
            self.step(links, None, Input::Evidence(rank as u32, evidence, testament));
        }
    }

    /// This rank says goodbye, and what others must know of it.
    pub(crate) fn leave(&mut self, links: &mut Links) {
        self.step(links, None, Input::Leave);
    }

    /// Nobody here has called: what there is to tell a caller is old then.
    pub(super) fn hush(&mut self) {
        self.verdicts.clear();
    }

    /// Is one of these known to have ended?
    pub(super) fn has_lost(&self, members: Ranks) -> bool {
        members.iter().any(|rank| self.told[rank as usize].is_some())
    }

    /// The verdict that `wanted` takes, or the error that another one is.
    pub(super) fn verdict<T>(
        &mut self,
        call: &'static str,
        links: &mut Links,
        until: Instant,
        wanted: impl Fn(&Verdict) -> Option<T>,
    ) -> Result<T> {
        let began = Instant::now();
        // The machine's own deadline comes first.
        let late = until + CONNECTING;
        loop {
            while let Some(verdict) = self.verdicts.pop_front() {
                if let Some(wanted) = wanted(&verdict) {
                    return Ok(wanted);
                }
                if let Some(error) = self.error_of(call, &verdict, began) {
                    return Err(error);
                }
            }
            if let Some(error) = self.ended.and_then(|it| self.error_of(call, &it, began)) {
                return Err(error);
            }
            if Instant::now() > late {
                let missing = Vec::new();
                return Err(Error::NotAll { call, missing, after: began.elapsed() });
            }
            self.goes_on()?;
            self.turn(links);
        }
    }

    /// What a verdict is to a caller that has waited for another one.
    fn error_of(&self, call: &'static str, verdict: &Verdict, began: Instant) -> Option<Error> {
        let ranks = |ranks: Ranks| ranks.iter().map(|rank| rank as usize).collect();
        let size = self.told.len();
        match *verdict {
            Verdict::TimedOut { missing } => {
                Some(Error::NotAll { call, missing: ranks(missing), after: began.elapsed() })
            }
            Verdict::QuorumLost { live } => {
                Some(Error::QuorumLost { call, live: ranks(live), size })
            }
            Verdict::Evicted { epoch } => Some(Error::Evicted { call, epoch }),
            _ => None,
        }
    }
}

/// What a rank that has ended left; a page of nothing is of one that had nothing to leave.
pub(crate) fn left_by(will: &[u8; MESSAGE_BYTES]) -> Testament {
    match decode(will).map(|message| message.body) {
        Some(Body::Goodbye(testament)) => testament,
        _ => Testament::default(),
    }
}
