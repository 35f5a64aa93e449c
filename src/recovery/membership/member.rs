//! The state machine: inputs, outputs, and the state between.
//! Law: a step depends on the state, the given time and the input, and on nothing else.

use std::collections::BTreeMap;

use super::message::{Body, Call, Cause, Evidence, LastVotes, Message, Value};
use super::ranks::Ranks;
use super::slot::{Agreement, SETTLE};
use super::spread::KnownFacts;
use super::verdict::Verdict;

/// A time in any unit, from any beginning; all times of one machine are of one clock.
pub type Time = u64;

/// The settings, which are equal at all members of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long to wait for a better explanation after a connection has ended.
    pub grace: Time,
    /// How long a rank may take to answer a message before it is suspected.
    pub answer_timeout: Time,
    /// How long a rank may take to report its operations after a revocation.
    pub settling: Time,
    /// Every operation ends alike at all ranks: `Ok` waits until all have the result.
    pub uniform: bool,
}

/// An input of the state machine.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A message arrived, in the order of its sender. Messages to an earlier process of this rank
    /// must not come in here.
    Message(u32, &'a Message),
    /// There is evidence that these ranks are lost; for a certain death with the rank's last vote,
    /// from [`Member::last_votes`] there. A dead rank of unknown last vote counts as merely
    /// suspected for the quorum.
    Evidence(&'a [(u32, Evidence, Option<LastVotes>)]),
    /// The program revokes the epoch.
    Revoke,
    /// The program agrees on the bitwise AND of the `flags` of all callers.
    Agree {
        /// The flags of this rank.
        flags: u64,
        /// The deadline for ranks that do not call; `None` waits for ever.
        deadline: Option<Time>,
    },
    /// The program wants the next epoch, without dead ranks. All its operations must have ended.
    Change {
        /// The deadline for ranks that do not call; `None` waits for ever.
        deadline: Option<Time>,
        /// At the deadline, ranks that have not called are evicted, and the call does not time out.
        evict_missing: bool,
    },
    /// The program says whether this rank has its links to all members of an epoch, which a change
    /// has made. They go on outside this machine once all have said so.
    Close {
        /// The epoch; one before the current one is undone.
        epoch: u32,
        /// This rank has its links.
        is_linked: bool,
        /// The deadline for ranks that do not call; `None` waits for ever.
        deadline: Option<Time>,
        /// At the deadline, the epoch is undone without ranks that have not called, and the call
        /// does not time out.
        evict_missing: bool,
    },
    /// The program waits no longer for the end of its call.
    Withdraw,
    /// An operation begins. Numbers go up by one over all epochs, from 1.
    Begin(u64),
    /// The results of an operation and of all before it are complete here. Peers may be told only
    /// if the epoch is not revoked after this step: results of a revoked member do not count.
    Full(u64),
    /// An operation may return `Ok`. In uniform mode, all members are known to have its result.
    Passed(u64),
    /// The program drops the communicator.
    Leave,
    /// Time has passed.
    Tick,
}

/// The outputs of a step, to be carried out in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Messages to the process from which this step's message came, member or not.
    pub replies: Vec<Message>,
    /// Messages to members.
    pub sends: Vec<(u32, Message)>,
    /// Reports to the program.
    pub verdicts: Vec<Verdict>,
    /// The time of the next tick, if it has changed. Additional ticks do no harm.
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
    pub(super) state: State,
    /// Ranks that will not act again.
    pub(super) gone: Ranks,
    /// The ranks of `gone` that said goodbye.
    pub(super) left: Ranks,
    /// Ranks that this one believes lost.
    pub(super) suspected: Ranks,
    /// The last votes of this rank, and those of ranks that are gone and have voted.
    pub(super) own_votes: LastVotes,
    pub(super) dead_votes: BTreeMap<u32, LastVotes>,
    /// The ranks that are gone and never voted.
    pub(super) never_voted: Ranks,
    pub(super) progress: Progress,
    pub(super) slots: BTreeMap<u32, Agreement>,
    /// The number of agreements of the program that have ended in this epoch.
    pub(super) calls: u32,
    /// The members of this epoch go on with it outside this machine.
    pub(super) is_closed: bool,
    pub(super) pending: Option<Pending>,
    /// A connection has ended: until this time another member may report a better cause.
    pub(super) grace: Option<(Time, Cause)>,
    /// The live ranks are no quorum: until this time better evidence may make them one.
    pub(super) quorum_deadline: Option<Time>,
    /// The time since which the current call has had no quorum.
    pub(super) quorum_lost: Time,
    /// The ranks that this one has asked for the ends that they know of.
    pub(super) asked_for_ends: Ranks,
    /// Of them, those that have answered.
    pub(super) answered: Ranks,
    /// The decision that began this epoch, and its slot, for members that missed it.
    pub(super) origin: Option<(u32, Value)>,
    /// No call of the program has waited for that decision, so it answers the next change.
    pub(super) is_unclaimed: bool,
    /// The members that asked this one for ends.
    pub(super) ends_asked_by: Ranks,
    /// The facts that neighbours know, and whether there is something to tell them.
    pub(super) known_facts: BTreeMap<u32, KnownFacts>,
    pub(super) has_news: bool,
    /// Messages of later epochs.
    pub(super) parked: Vec<(u32, Message)>,
    pub(super) out: Outputs,
    announced_tick: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Healthy,
    Revoked(Cause),
    Ended,
}

/// The numbers of the last operation that began, that is complete here, and that counts as done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) begun: u64,
    pub(super) full: u64,
    pub(super) done: u64,
}

impl Progress {
    /// The number of the first operation that does not count as done.
    pub(super) const fn next(self) -> u64 {
        self.done.saturating_add(1)
    }
}

/// A call of the program that waits for an agreement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) slot: u32,
    pub(super) call: Call,
    pub(super) deadline: Option<Time>,
    pub(super) evict_missing: bool,
    /// When this rank asks all members for their calls, in time for the deadline.
    pub(super) ask_at: Option<Time>,
}

impl Member {
    /// A member of the first epoch, 0; `None` if `me` is not among `members`.
    #[must_use]
    pub fn new(me: u32, members: Ranks, settings: Settings) -> Option<Self> {
        members.contains(me).then(|| Self {
            me,
            settings,
            now: 0,
            epoch: 0,
            members,
            state: State::Healthy,
            gone: Ranks::NONE,
            left: Ranks::NONE,
            suspected: Ranks::NONE,
            own_votes: LastVotes::default(),
            dead_votes: BTreeMap::new(),
            never_voted: Ranks::NONE,
            progress: Progress::default(),
            slots: BTreeMap::new(),
            calls: 0,
            is_closed: false,
            pending: None,
            grace: None,
            quorum_deadline: None,
            quorum_lost: 0,
            asked_for_ends: Ranks::NONE,
            answered: Ranks::NONE,
            origin: None,
            is_unclaimed: false,
            ends_asked_by: Ranks::NONE,
            known_facts: BTreeMap::new(),
            has_news: false,
            parked: Vec::new(),
            out: Outputs::default(),
            announced_tick: None,
        })
    }

    /// Handles one input at time `now`.
    pub fn step(&mut self, now: Time, input: Input<'_>) -> Outputs {
        self.now = now;
        if self.state != State::Ended {
            self.take(input);
            self.spread();
        }
        let due = self.due();
        if due != self.announced_tick {
            self.announced_tick = due;
            self.out.timer = due;
        }
        core::mem::take(&mut self.out)
    }

    fn take(&mut self, input: Input<'_>) {
        match input {
            Input::Message(from, message) => self.receive(from, message),
            Input::Evidence(found) => self.evidence(found),
            Input::Revoke => self.revoke_by_call(),
            Input::Agree { flags, deadline } => self.call_agree(flags, deadline),
            Input::Change { deadline, evict_missing } => self.call_change(deadline, evict_missing),
            // A later change has undone that epoch.
            Input::Close { epoch, .. } if epoch < self.epoch => {
                self.tell(Verdict::Undone { epoch, missing: Ranks::NONE });
            }
            Input::Close { is_linked, deadline, evict_missing, .. } => {
                self.call_close(is_linked, deadline, evict_missing);
            }
            Input::Withdraw => self.withdraw(),
            Input::Begin(sequence) => self.begin(sequence),
            Input::Full(sequence) => self.full(sequence),
            Input::Passed(sequence) => self.passed(sequence),
            Input::Leave => self.end(None),
            Input::Tick => self.tick(),
        }
    }

    /// The number of the epoch, and its members.
    #[must_use]
    pub const fn membership(&self) -> (u32, &Ranks) {
        (self.epoch, &self.members)
    }

    /// The last vote of this rank, which survivors must know after its death. To be published
    /// before the messages of the step that changed it are sent.
    #[must_use]
    pub const fn last_votes(&self) -> &LastVotes {
        &self.own_votes
    }

    /// The cause for which the epoch is revoked, if it is.
    #[must_use]
    pub const fn revoked(&self) -> Option<Cause> {
        match self.state {
            State::Revoked(cause) => Some(cause),
            State::Healthy | State::Ended => None,
        }
    }

    /// The members that will not act again, by what this rank has seen or learned.
    #[must_use]
    pub const fn gone(&self) -> &Ranks {
        &self.gone
    }

    /// The lowest member that this rank believes alive, which leads.
    #[must_use]
    pub fn leader(&self) -> u32 {
        self.live().lowest().unwrap_or(self.me)
    }

    /// The members that said goodbye. A call that still needs them will not end by itself.
    #[must_use]
    pub fn left(&self) -> Ranks {
        &self.left & &self.members
    }

    /// Changes how long a rank may take to report its operations after a revocation, from the next
    /// step on. Members should change it alike: the shortest time decides who is suspected.
    pub const fn set_settling(&mut self, time: Time) {
        self.settings.settling = time;
    }

    /// The time until which to wait for an answer about this slot.
    pub(super) const fn answer_due(&self, slot: u32) -> Time {
        let Settings { answer_timeout, settling, .. } = self.settings;
        self.after(if slot == SETTLE { settling } else { answer_timeout })
    }

    /// The current time plus `time`.
    pub(super) const fn after(&self, time: Time) -> Time {
        self.now.saturating_add(time)
    }

    /// The members that this rank believes alive, itself included.
    pub(super) fn live(&self) -> Ranks {
        &(&self.members - &self.gone) - &self.suspected
    }

    pub(super) fn tell(&mut self, verdict: Verdict) {
        self.out.verdicts.push(verdict);
    }

    pub(super) fn send(&mut self, to: u32, slot: u32, body: Body) {
        self.out.sends.push((to, Message { epoch: self.epoch, slot, body }));
    }

    /// Sends a message to all of `ranks` that are not gone, except this one.
    pub(super) fn broadcast(&mut self, ranks: &Ranks, slot: u32, body: &Body) {
        for rank in (ranks - &self.gone).without(self.me).iter() {
            self.send(rank, slot, body.clone());
        }
    }

    /// Ends this member with a goodbye, after which no rank needs to wait for it.
    pub(super) fn end(&mut self, verdict: Option<Verdict>) {
        if self.state == State::Ended {
            return;
        }
        self.spread();
        self.broadcast(&self.members.clone(), 0, &Body::Goodbye(self.own_votes.clone()));
        self.state = State::Ended;
        // Nothing goes on in the rest of the step.
        self.slots.clear();
        (self.pending, self.grace, self.quorum_deadline) = (None, None, None);
        self.out.verdicts.extend(verdict);
    }

    /// The time of the next tick.
    fn due(&self) -> Option<Time> {
        if self.state == State::Ended {
            return None;
        }
        let alarms = self.slots.values().filter_map(|slot| slot.alarm);
        let grace = self.grace.map(|(until, _)| until);
        let call = self.pending.into_iter();
        let of_call = call.flat_map(|pending| [pending.ask_at, pending.deadline]).flatten();
        let quorum = self.quorum_deadline.filter(|_| self.open_slots().iter().any(Option::is_some));
        alarms.chain(grace).chain(of_call).chain(quorum).min()
    }

    fn tick(&mut self) {
        let now = self.now;
        if let Some((_, cause)) = self.grace.take_if(|(until, _)| *until <= now) {
            self.revoke(cause);
            self.advance_all();
        }
        let late = |slot: &Agreement| slot.alarm.is_some_and(|alarm| alarm <= now);
        let rung: Vec<u32> =
            self.slots.iter().filter(|(_, slot)| late(slot)).map(|(&at, _)| at).collect();
        for slot in rung {
            self.alarm(slot);
        }
        if self.pending.is_some_and(|call| call.ask_at.is_some_and(|time| time <= now)) {
            self.ask_all();
        }
        if self.quorum_deadline.is_some_and(|until| until <= now) {
            self.end_without_quorum();
        }
        if self.pending.is_some_and(|call| call.deadline.is_some_and(|until| until <= now)) {
            self.deadline();
        }
    }
}
