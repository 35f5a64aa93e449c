//! The machine: what goes in, what comes out, and the state between. May touch: the room. Law: a
//! step depends on the state, the time it is told and the input, and on nothing else.

use std::collections::BTreeMap;

use super::message::{Body, Cause, Evidence, Message, Recovery, Testament, Value};
use super::ranks::Ranks;
use super::slot::{SETTLE, Slot};

/// A time, in any unit and from any beginning; all of one machine's are of one clock.
pub type Time = u64;

/// What all members of a communicator set alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long to wait for a better explanation after a connection ended.
    pub grace: Time,
    /// How long a rank that must answer at once may take; then it is suspected.
    pub patience: Time,
    /// How long one may take that has to say how far its operations are, when an epoch is revoked.
    pub settling: Time,
    /// Does every operation end alike at all ranks? Then `Ok` waits until all have the result.
    pub uniform: bool,
}

/// What happens to a member.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A message came, in the order in which its sender sent it. What was sent to an earlier
    /// process of this rank must not come in here.
    Message(u32, &'a Message),
    /// There is evidence that a rank is lost; of a certain death with what [`Member::testament`]
    /// last was at that rank. Where that is not known, the death counts as suspected only when it
    /// comes to who may decide.
    Evidence(u32, Evidence, Option<Testament>),
    /// The caller revokes the epoch.
    Revoke,
    /// The caller agrees on the bitwise and of all callers' `flags`.
    Agree {
        /// What it says.
        flags: u64,
        /// Until when to wait for those that do not call; `None`: for ever.
        deadline: Option<Time>,
    },
    /// The caller wants the next epoch: without the dead, with those `joiners` that all callers
    /// name. All operations that it began must have ended.
    Change {
        /// Who is ready to join; known to be alive.
        joiners: Ranks,
        /// Until when to wait for those that do not call; `None`: for ever.
        deadline: Option<Time>,
        /// Are those that have not called by then left behind, instead of timing out?
        evict_missing: bool,
    },
    /// An operation begins. Numbers go up by one, over all epochs; the first is 1.
    Begin(u64),
    /// The whole result of an operation is here, and of all before it. Others may be told only if
    /// the epoch is not revoked after this step: what a revoked member has is not counted.
    Full(u64),
    /// An operation may return `Ok`. In uniform mode: all members are known to be full.
    Passed(u64),
    /// The caller leaves.
    Leave,
    /// Time has passed.
    Tick,
}

/// What the caller is told. After `QuorumLost`, `Evicted` and leaving the machine does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The epoch is revoked, and this is the first cause known here.
    Revoked(Cause),
    /// The operation succeeded.
    Ok(u64),
    /// The operation did not; in uniform mode, at no member.
    Failed(u64),
    /// An agreement has ended.
    Agreed {
        /// Its number in the epoch.
        slot: u32,
        /// The bitwise and of the flags of `members`.
        flags: u64,
        /// Whose flags those are.
        members: Ranks,
    },
    /// A new epoch began.
    Membership {
        /// Its number.
        epoch: u32,
        /// Who belongs to it.
        members: Ranks,
        /// Who of them is new, and may need state.
        joined: Ranks,
        /// How far operations had come; the next one has the number `high + 1`.
        recovery: Recovery,
        /// The best explanation any member had for the end of the last epoch.
        cause: Option<Cause>,
    },
    /// The deadline passed; the same call may be made again.
    TimedOut {
        /// Who has not called.
        missing: Ranks,
    },
    /// Those that are left may not decide, for the others may be alive.
    QuorumLost {
        /// Who is left, as far as this rank knows.
        live: Ranks,
    },
    /// The others went on without this rank.
    Evicted {
        /// The epoch it does not belong to, or cannot go on with.
        epoch: u32,
    },
}

/// What a step asks for, to be done in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Messages to where this step's message came from, whoever is there.
    pub replies: Vec<Message>,
    /// Messages to members and joiners.
    pub sends: Vec<(u32, Message)>,
    /// What to tell the caller.
    pub verdicts: Vec<Verdict>,
    /// When a tick is due, if that has changed. A tick too many does no harm.
    pub timer: Option<Time>,
}

/// One rank's part in a membership.
#[derive(Clone, Debug)]
pub struct Member {
    pub(super) me: u32,
    pub(super) settings: Settings,
    pub(super) now: Time,
    pub(super) epoch: u32,
    pub(super) members: Ranks,
    /// In which epoch those came who did not come in the first.
    pub(super) born: BTreeMap<u32, u32>,
    pub(super) state: State,
    /// Who will not act again; those of them who said so; whom this rank believes lost.
    pub(super) gone: Ranks,
    pub(super) left: Ranks,
    pub(super) doubted: Ranks,
    /// What this rank leaves behind when it ends, and what those that are gone left.
    pub(super) testament: Testament,
    pub(super) wills: BTreeMap<u32, Testament>,
    pub(super) work: Work,
    pub(super) slots: BTreeMap<u32, Slot>,
    /// How many agreements of callers have ended in this epoch.
    pub(super) calls: u32,
    pub(super) pending: Option<Pending>,
    /// A connection ended, and until then somebody may know better why.
    pub(super) grace: Option<(Time, Cause)>,
    /// Until then there may be news that leaves those here a quorum.
    pub(super) linger: Option<Time>,
    /// What began this epoch, and its slot, for those who missed it.
    pub(super) origin: Option<(u32, Value)>,
    /// Messages of later epochs.
    pub(super) parked: Vec<(u32, Message)>,
    pub(super) out: Outputs,
    announced: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Joining,
    Healthy,
    Revoked(Cause),
    Ended,
}

/// The numbers of the last operation that began, is full, and returned `Ok` or counts as done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) begun: u64,
    pub(super) full: u64,
    pub(super) done: u64,
}

impl Work {
    /// The number of the first operation that does not count as done.
    pub(super) const fn next(self) -> u64 {
        self.done.saturating_add(1)
    }
}

/// A caller that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) slot: u32,
    pub(super) deadline: Option<Time>,
    pub(super) evict_missing: bool,
}

impl Member {
    /// A member of the first epoch, 0; `None` if `me` is not of `members`.
    #[must_use]
    pub fn new(me: u32, members: Ranks, settings: Settings) -> Option<Self> {
        members.contains(me).then(|| Self::made(me, members, settings, State::Healthy))
    }

    /// One who is not a member until others admit it; `None` if `me` can be no member.
    #[must_use]
    pub fn joining(me: u32, settings: Settings) -> Option<Self> {
        let possible = me < Ranks::CAPACITY;
        possible.then(|| Self::made(me, Ranks::NONE, settings, State::Joining))
    }

    fn made(me: u32, members: Ranks, settings: Settings, state: State) -> Self {
        Self {
            me,
            settings,
            now: 0,
            epoch: 0,
            members,
            born: BTreeMap::new(),
            state,
            gone: Ranks::NONE,
            left: Ranks::NONE,
            doubted: Ranks::NONE,
            testament: Testament::default(),
            wills: BTreeMap::new(),
            work: Work::default(),
            slots: BTreeMap::new(),
            calls: 0,
            pending: None,
            grace: None,
            linger: None,
            origin: None,
            parked: Vec::new(),
            out: Outputs::default(),
            announced: None,
        }
    }

    /// Takes what happened at `now` into account.
    pub fn step(&mut self, now: Time, input: Input<'_>) -> Outputs {
        self.now = now;
        if self.state != State::Ended {
            self.take(input);
        }
        let due = self.due();
        if due != self.announced {
            self.announced = due;
            self.out.timer = due;
        }
        core::mem::take(&mut self.out)
    }

    fn take(&mut self, input: Input<'_>) {
        match input {
            Input::Message(from, message) => self.receive(from, message),
            Input::Evidence(rank, evidence, testament) => {
                self.evidence(rank, evidence, testament);
            }
            Input::Revoke => self.revoke_by_call(),
            Input::Agree { flags, deadline } => self.call_agree(flags, deadline),
            Input::Change { joiners, deadline, evict_missing } => {
                self.call_change(joiners, deadline, evict_missing);
            }
            Input::Begin(sequence) => self.begin(sequence),
            Input::Full(sequence) => self.full(sequence),
            Input::Passed(sequence) => self.passed(sequence),
            Input::Leave => self.end(None),
            Input::Tick => self.tick(),
        }
    }

    /// The epoch, and who belongs to it.
    #[must_use]
    pub const fn membership(&self) -> (u32, Ranks) {
        (self.epoch, self.members)
    }

    /// What others must know of this rank when it has died. To be where they can read it before
    /// the messages of the step that changed it are sent.
    #[must_use]
    pub const fn testament(&self) -> Testament {
        self.testament
    }

    /// Why the epoch is revoked, if it is.
    #[must_use]
    pub const fn revoked(&self) -> Option<Cause> {
        match self.state {
            State::Revoked(cause) => Some(cause),
            State::Joining | State::Healthy | State::Ended => None,
        }
    }

    /// The members that said goodbye: what still needs them will not end by itself.
    #[must_use]
    pub fn left(&self) -> Ranks {
        self.left & self.members
    }

    /// Until when to wait for an answer about this slot.
    pub(super) const fn later(&self, slot: u32) -> Time {
        let Settings { patience, settling, .. } = self.settings;
        self.after(if slot == SETTLE { settling } else { patience })
    }

    /// This long from now.
    pub(super) const fn after(&self, time: Time) -> Time {
        self.now.saturating_add(time)
    }

    /// Whom this rank believes alive, itself included.
    pub(super) fn live(&self) -> Ranks {
        self.members - self.gone - self.doubted
    }

    pub(super) fn tell(&mut self, verdict: Verdict) {
        self.out.verdicts.push(verdict);
    }

    pub(super) fn send(&mut self, to: u32, slot: u32, body: Body) {
        self.out.sends.push((to, Message { epoch: self.epoch, slot, body }));
    }

    /// To all of `ranks` that can still hear, but for this one.
    pub(super) fn broadcast(&mut self, ranks: Ranks, slot: u32, body: Body) {
        for rank in (ranks - self.gone).without(self.me).iter() {
            self.send(rank, slot, body);
        }
    }

    /// Ends this member's part; whoever hears the goodbye need not wait for it.
    pub(super) fn end(&mut self, verdict: Option<Verdict>) {
        self.broadcast(self.members, 0, Body::Goodbye(self.testament));
        self.state = State::Ended;
        self.out.verdicts.extend(verdict);
    }

    /// When the next tick is due.
    fn due(&self) -> Option<Time> {
        if self.state == State::Ended {
            return None;
        }
        let alarms = self.slots.values().filter_map(|slot| slot.alarm);
        let grace = self.grace.map(|(until, _)| until);
        let deadline = self.pending.and_then(|pending| pending.deadline);
        alarms.chain(grace).chain(deadline).chain(self.linger).min()
    }

    fn tick(&mut self) {
        let now = self.now;
        if let Some((_, cause)) = self.grace.take_if(|(until, _)| *until <= now) {
            self.revoke(cause, None);
        }
        let late = |slot: &Slot| slot.alarm.is_some_and(|alarm| alarm <= now);
        let rung: Vec<u32> =
            self.slots.iter().filter(|(_, slot)| late(slot)).map(|(&at, _)| at).collect();
        for slot in rung {
            self.alarm(slot);
        }
        if self.pending.is_some_and(|call| call.deadline.is_some_and(|until| until <= now)) {
            self.deadline();
        }
        if self.linger.is_some_and(|until| until <= now) {
            self.give_up();
        }
    }
}
