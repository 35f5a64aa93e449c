//! The membership driver: it feeds messages, deaths and the time to the membership's state machine,
//! and carries out what the machine asks for.
//! Law: all decisions are the machine's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::RankInfo;
use super::losses::{LossReport, note_unreachable};
use super::recovery_frames::{self, MEMBERSHIP, PartialMessages, UNREACHABLE};
use crate::error::communicator_name::OfCommunicator;
use crate::error::{Error, Peer, Place, Result};
use crate::health::Peers;
use crate::health::last_vote::LAST_VOTE_BYTES;
use crate::recovery::membership::{
    Body, Cause, Evidence, Input, LastVotes, Member, Message, Outputs, Ranks, Settings, Time,
    Verdict, decode, encode,
};
use crate::sync::{Instant, WaitNotice, rank_list};
use crate::transport::tcp::keep_up_streams;

/// Time limits of the state machine for up to [`FEW_RANKS`], in milliseconds.
const SETTINGS: Settings =
    Settings { grace: 20, answer_timeout: 2_000, settling: 2_000, uniform: false };
/// The most time that survivors have to connect, up to [`FEW_RANKS`] of them.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// More ranks than these have proportionally more time to answer and to connect: each has messages
/// for all others, and many may share few CPUs. Among 112 ranks on two CPUs, an agreement took
/// 1.6 s and the connecting 4 s.
const FEW_RANKS: usize = 32;
/// How often the driver looks for deaths, and how much longer that takes for each rank: a look asks
/// after all of them. With 0.1 ms for each, 112 ranks on two CPUs spent a tenth of the time on
/// looks while they connected.
const DEATH_POLL_INTERVAL: Duration = Duration::from_millis(5);
const DEATH_POLL_PER_RANK: Duration = Duration::from_micros(400);

/// The most messages of other kinds that are kept, on average of each rank. A rank sends one or two
/// for each attempt to make a membership, of which there is one in two seconds.
const MOST_MESSAGES: usize = 1 << 10;

/// A time limit among so many ranks, of which [`FEW_RANKS`] have `limit`.
pub(crate) fn limit_among(ranks: usize, limit: Duration) -> Duration {
    limit * ranks.max(FEW_RANKS) as u32 / FEW_RANKS as u32
}

/// The most time that so many survivors have to connect.
pub(crate) fn connect_limit(ranks: usize) -> Duration {
    limit_among(ranks, CONNECT_LIMIT)
}

fn millis(time: Duration) -> Time {
    Time::try_from(time.as_millis()).unwrap_or(Time::MAX)
}

/// A message of a recovery that is not the state machine's.
#[derive(Debug)]
pub(crate) struct RecoveryMessage {
    pub(crate) from: usize,
    pub(crate) kind: u32,
    /// Zeros may follow the message.
    pub(crate) bytes: Vec<u8>,
    pub(crate) arrived: Instant,
}

/// The membership's state machine of one communicator, with its inputs and outputs.
#[derive(Debug)]
pub(crate) struct MembershipDriver {
    pub(super) member: Member,
    began: Instant,
    /// The evidence against each rank that the machine has, and whether a last vote came with it.
    pub(super) reported: Vec<Option<(Evidence, bool)>>,
    /// The ranks whose hosts this one has found unreachable, and the last report of that.
    pub(super) unreachable: Ranks,
    pub(super) last_report: LossReport,
    /// When the driver looks for deaths again.
    next_look: Instant,
    timer: Option<Time>,
    verdicts: VecDeque<Verdict>,
    /// The verdict with which the machine ended.
    ended: Option<Verdict>,
    partial_messages: PartialMessages,
    /// Set when the program aborts the call.
    abort: Arc<AtomicBool>,
    /// The place of the current call, for errors.
    at: Box<Place>,
    pub(super) me: Box<Peer>,
    /// The recovery messages of other kinds, which are not the state machine's.
    pub(crate) other_messages: Vec<RecoveryMessage>,
}

impl MembershipDriver {
    /// The driver of a communicator, whose calls end alike at all ranks if it is `uniform`. `None`
    /// for more ranks than a membership has.
    pub(crate) fn new(
        rank_info: &RankInfo,
        uniform: bool,
        abort: Arc<AtomicBool>,
        at: Box<Place>,
    ) -> Option<Self> {
        let (me, size) = (rank_info.rank, rank_info.peers.len());
        let all = Ranks::first(u32::try_from(size).ok()?)?;
        let among = |limit| millis(limit_among(size, Duration::from_millis(limit)));
        let [answer_timeout, settling] = [SETTINGS.answer_timeout, SETTINGS.settling].map(among);
        let settings = Settings { answer_timeout, settling, uniform, ..SETTINGS };
        let member = Member::new(me as u32, all, settings)?;
        Some(Self {
            member,
            began: Instant::now(),
            reported: vec![None; size],
            unreachable: Ranks::NONE,
            last_report: LossReport::default(),
            next_look: Instant::now(),
            timer: None,
            verdicts: VecDeque::new(),
            ended: None,
            partial_messages: PartialMessages::among(size),
            abort,
            at,
            me: Box::new(rank_info.peers[me].clone()),
            other_messages: Vec::new(),
        })
    }

    pub(crate) fn set_place(&mut self, at: Box<Place>) {
        self.at = at;
    }

    /// Sets the time that a rank may take to report its last call: the timeout of calls, which the
    /// program may change.
    pub(crate) fn set_settling(&mut self, timeout: Duration) {
        let least = Duration::from_millis(SETTINGS.settling);
        let least = limit_among(self.reported.len(), least);
        self.member.set_settling(millis(timeout.max(least)));
    }

    /// An error if the program has aborted the call.
    pub(crate) fn check_abort(&self) -> Result<()> {
        if self.abort.load(Ordering::Relaxed) {
            return Err(Error::Aborted { at: self.at.clone(), by: self.me.clone() });
        }
        Ok(())
    }

    fn now(&self) -> Time {
        millis(self.began.elapsed())
    }

    pub(crate) fn time(&self, until: Instant) -> Time {
        millis(until.saturating_duration_since(self.began))
    }

    pub(crate) fn step(&mut self, peers: &mut Peers, from: Option<usize>, input: Input<'_>) {
        let before = self.member.last_votes().clone();
        let Outputs { replies, sends, verdicts, timer } = self.member.step(self.now(), input);
        let votes = self.member.last_votes();
        if *votes != before {
            // The vote is published before any peer can receive the messages that follow from it.
            peers.publish_last_vote(&encode_last_vote(votes));
        }
        let replies = replies.into_iter().filter_map(|message| Some((from?, message)));
        let sends = sends.into_iter().map(|(to, message)| (to as usize, message));
        for (to, message) in replies.chain(sends) {
            let controls = peers.control_channels();
            // A rank without a channel finds the end of this one when it asks, or asks others.
            let is_goodbye = matches!(message.body, Body::Goodbye(_));
            if !is_goodbye || controls.is_in_use(to) {
                recovery_frames::send(controls, to, MEMBERSHIP, &encode(&message));
            }
        }
        let is_final =
            |it: &&Verdict| matches!(it, Verdict::QuorumLost { .. } | Verdict::Evicted { .. });
        if self.ended.is_none() {
            self.ended = verdicts.iter().find(is_final).cloned();
        }
        if verdicts.iter().any(|verdict| matches!(verdict, Verdict::Membership { .. })) {
            // A decision that no call has waited for is out of date.
            self.verdicts.retain(|verdict| !matches!(verdict, Verdict::Membership { .. }));
        }
        self.verdicts.extend(verdicts);
        self.timer = timer.or(self.timer);
    }

    /// Handles arrived messages, new deaths and due timers; sleeps a little if there are none.
    pub(crate) fn poll(&mut self, peers: &mut Peers) {
        let messages = peers.control_channels().receive_recovery();
        let is_idle = messages.is_empty();
        for (from, (kind, frame)) in messages {
            match self.partial_messages.add(from, (kind, &frame)) {
                Some((MEMBERSHIP, bytes)) => {
                    if let Some(message) = decode(&bytes) {
                        self.step(peers, Some(from), Input::Message(from as u32, &message));
                    }
                }
                Some((UNREACHABLE, bytes)) => note_unreachable(peers, &bytes),
                Some((kind, bytes))
                    if self.other_messages.len() < MOST_MESSAGES * self.reported.len() =>
                {
                    let arrived = Instant::now();
                    self.other_messages.push(RecoveryMessage { from, kind, bytes, arrived });
                }
                Some(_) | None => {}
            }
        }
        if Instant::now() >= self.next_look {
            let ranks = self.reported.len();
            let interval = DEATH_POLL_INTERVAL + DEATH_POLL_PER_RANK * ranks as u32;
            self.next_look = Instant::now() + interval;
            keep_up_streams();
            self.look_for_deaths(peers);
        }
        let now = self.now();
        if self.timer.is_some_and(|due| due <= now) {
            self.timer = None;
            self.step(peers, None, Input::Tick);
        } else if is_idle && self.verdicts.is_empty() {
            let look = self.next_look.saturating_duration_since(Instant::now());
            let timer = self.timer.map_or(look, |due| Duration::from_millis(due - now));
            // The system counts a sleep in whole milliseconds, and takes less than one for none.
            peers.control_channels().sleep(look.min(timer).max(Duration::from_millis(1)));
        }
    }

    /// Sends the goodbye of this rank, with its last vote.
    pub(crate) fn leave(&mut self, peers: &mut Peers) {
        self.step(peers, None, Input::Leave);
    }

    /// Drops verdicts that no call of this rank waits for.
    pub(crate) fn discard_verdicts(&mut self) {
        self.verdicts.clear();
    }

    /// True once the machine has ended, without a quorum or evicted.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The cause for which the membership is revoked, if it is.
    pub(crate) fn revoked(&self) -> Option<Cause> {
        self.member.revoked()
    }

    /// Waits for a verdict that `wanted` accepts. Another verdict that ends the wait is an error,
    /// and so is `limit`, which comes after the deadline that the machine has.
    pub(crate) fn verdict<T>(
        &mut self,
        call: &'static str,
        peers: &mut Peers,
        limit: Instant,
        wanted: impl Fn(&Verdict) -> Option<T>,
    ) -> Result<T> {
        let done = self.wait_for_verdict(call, peers, limit, wanted);
        if done.is_err() {
            self.step(peers, None, Input::Withdraw);
        }
        done
    }

    fn wait_for_verdict<T>(
        &mut self,
        call: &'static str,
        peers: &mut Peers,
        limit: Instant,
        wanted: impl Fn(&Verdict) -> Option<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let mut notice = WaitNotice::new();
        loop {
            while let Some(verdict) = self.verdicts.pop_front() {
                if let Some(wanted) = wanted(&verdict) {
                    return Ok(wanted);
                }
                if let Some(error) = self.error_of(call, &verdict, began) {
                    return Err(error);
                }
            }
            if let Some(error) = self.ended.as_ref().and_then(|it| self.error_of(call, it, began)) {
                return Err(error);
            }
            if Instant::now() > limit {
                let missing = self.member.awaited().iter().map(|rank| rank as usize).collect();
                return Err(Error::NotAll { call, missing, after: began.elapsed() });
            }
            self.check_abort()?;
            notice.tell_if_due(|waited| self.wait_notice(call, waited));
            self.poll(peers);
        }
    }

    /// Which ranks keep this one waiting in a call.
    fn wait_notice(&self, call: &str, waited: Duration) -> String {
        let missing: Vec<_> = self.member.missing().iter().map(|rank| rank as usize).collect();
        let (rank, name) = (self.me.rank, OfCommunicator(self.at.communicator.as_deref()));
        match missing.as_slice() {
            [] => format!(
                "rank {rank}{name} has waited {waited:.0?} in {call} for the others to agree"
            ),
            missing => format!(
                "rank {rank}{name} has waited {waited:.0?} in {call} for {}, which have to make \
                 this call too",
                rank_list(missing)
            ),
        }
    }

    /// The error of a verdict for a call that waits for another one; `None` if the call waits on.
    fn error_of(&self, call: &'static str, verdict: &Verdict, began: Instant) -> Option<Error> {
        let ranks = |ranks: &Ranks| ranks.iter().map(|rank| rank as usize).collect();
        let size = self.reported.len();
        match verdict {
            Verdict::TimedOut { missing } => {
                Some(Error::NotAll { call, missing: ranks(missing), after: began.elapsed() })
            }
            Verdict::QuorumLost { live } => {
                Some(Error::QuorumLost { call, live: ranks(live), size })
            }
            // The others go on with a membership for which this rank has not waited.
            Verdict::Evicted { epoch } | Verdict::Closed { epoch } => {
                Some(Error::Evicted { call, epoch: *epoch })
            }
            _ => None,
        }
    }
}

/// The words of the participants of a vote that fit into its published bytes, for 512 ranks.
const PUBLISHED_WORDS: usize = 8;

/// The last vote of this rank as the bytes that survivors read after its death.
fn encode_last_vote(votes: &LastVotes) -> [u8; LAST_VOTE_BYTES] {
    let body = Body::Goodbye(votes.within(PUBLISHED_WORDS));
    let (mut bytes, vote) = ([0; LAST_VOTE_BYTES], encode(&Message { epoch: 0, slot: 0, body }));
    bytes[..vote.len()].copy_from_slice(&vote);
    bytes
}

/// The last vote of a dead rank from its published bytes, which are zeros if the rank never voted.
pub(crate) fn decode_last_vote(vote: &[u8; LAST_VOTE_BYTES]) -> LastVotes {
    match decode(vote).map(|message| message.body) {
        Some(Body::Goodbye(votes)) => votes,
        _ => LastVotes::default(),
    }
}
