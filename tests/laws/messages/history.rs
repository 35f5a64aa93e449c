//! The events of each message and each receive of a run, and those that must never happen to them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::program::{Form, Id, form, takes};
use ringreduce::matching::{Envelope, Expected, Outcome, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Outcome(Outcome),
    /// Its own rank has withdrawn it.
    Withdrawn,
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) to: u32,
    pub(crate) envelope: Envelope,
    pub(crate) is_eager: bool,
    /// The time at which the receiver learnt of it.
    pub(crate) arrived: Option<u64>,
    /// The time from which on no receive could meet it, if none had.
    pub(crate) gone: Option<u64>,
    pub(crate) mate: Option<Id>,
    pub(crate) end: Option<End>,
}

#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) expected: Expected,
    pub(crate) form: Form,
    pub(crate) posted: u64,
    /// The time from which on it could meet no message, if it had met none.
    pub(crate) gone: Option<u64>,
    pub(crate) mate: Option<Id>,
    /// Bytes that have come.
    pub(crate) received: u64,
    pub(crate) end: Option<End>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) messages: BTreeMap<Id, Message>,
    pub(crate) receives: BTreeMap<Id, Receive>,
}

impl History {
    /// True if a request has ended, or if the operation has none.
    pub(crate) fn has_ended(&self, id: Id) -> bool {
        let send = self.messages.get(&id).is_none_or(|it| it.end.is_some());
        send && self.receives.get(&id).is_none_or(|it| it.end.is_some())
    }

    pub(crate) fn ends(&mut self, id: Id, end: End) {
        let send = self.messages.get_mut(&id).map(|it| &mut it.end);
        let ended = send.or_else(|| self.receives.get_mut(&id).map(|it| &mut it.end)).unwrap();
        assert_eq!(ended.replace(end), None, "{id:?} has ended twice");
    }

    pub(crate) fn meets(&mut self, message: Id, receive: Id) {
        let sent = self.messages.get_mut(&message).unwrap();
        let posted = self.receives.get_mut(&receive).unwrap();
        assert_eq!(sent.to, receive.rank);
        assert!(takes(posted.expected, message.rank, sent.envelope.tag), "{sent:?} {posted:?}");
        assert_eq!(sent.mate.replace(receive), None, "{message:?} has met two receives");
        assert_eq!(posted.mate.replace(message), None, "{receive:?} has met two messages");
    }

    /// Notes that bytes of a message have come to a receive, from offset `at` on.
    pub(crate) fn delivers(&mut self, message: Id, receive: Id, at: u64, bytes: Range<u64>) {
        assert_eq!(self.messages[&message].mate, Some(receive), "{message:?} has met another one");
        let receive = self.receives.get_mut(&receive).unwrap();
        assert_eq!(receive.end, None, "bytes come to a receive that has ended");
        assert_eq!((receive.received, bytes.start), (at, at), "bytes of another place");
        receive.received = bytes.end;
    }

    fn takes(&self, receive: Id, message: Id) -> bool {
        let (receive, sent) = ((receive, &self.receives[&receive]), &self.messages[&message]);
        let is_there = sent.to == receive.0.rank && sent.arrived.is_some();
        is_there && takes(receive.1.expected, message.rank, sent.envelope.tag)
    }

    /// The time at which they met: as soon as both were there.
    fn met(&self, message: Id, receive: Id) -> u64 {
        let arrived = self.messages[&message].arrived.unwrap();
        arrived.max(self.receives[&receive].posted)
    }

    /// The time from which on a message could be met no more.
    fn message_gone(&self, id: Id) -> Option<u64> {
        let message = &self.messages[&id];
        message.mate.map(|receive| self.met(id, receive)).or(message.gone)
    }

    fn receive_gone(&self, id: Id) -> Option<u64> {
        let receive = &self.receives[&id];
        receive.mate.map(|message| self.met(message, id)).or(receive.gone)
    }

    /// The order that MPI keeps (MPI-4.1, section 3.5): messages of one rank do not overtake one
    /// another, nor do receives, and none is left beside a message that it takes.
    pub(crate) fn check_order(&self, is_dead: impl Fn(u32) -> bool) {
        let met = self.messages.iter().filter_map(|(&id, sent)| Some((id, sent.mate?)));
        for (message, receive) in met.filter(|it| !is_dead(it.1.rank)) {
            let is_before =
                |gone: Option<u64>| gone.is_some_and(|it| it < self.met(message, receive));
            let earlier = Id { at: 0, ..message }..message;
            for (&older, _) in self.messages.range(earlier).filter(|it| self.takes(receive, *it.0))
            {
                let gone = is_before(self.message_gone(older));
                assert!(gone, "{message:?} has overtaken {older:?} to {receive:?}");
            }
            let earlier = Id { at: 0, ..receive }..receive;
            for (&older, _) in self.receives.range(earlier).filter(|it| self.takes(*it.0, message))
            {
                let gone = is_before(self.receive_gone(older));
                assert!(gone, "{receive:?} has overtaken {older:?} to {message:?}");
            }
        }
        let there = self.messages.iter().filter(|it| it.1.arrived.is_some() && !is_dead(it.1.to));
        for (&message, sent) in there {
            let waits = |receive| self.receive_gone(receive).is_none();
            let taken = |receive| self.takes(receive, message) && waits(receive);
            let left = self.receives.keys().find(|receive| taken(**receive));
            let is_left = sent.mate.is_none() && sent.gone.is_none();
            assert!(!is_left || left.is_none(), "{message:?} does not meet {left:?}");
        }
    }

    /// How a send and a receive that met must have ended.
    pub(crate) fn check_ends(&self, is_dead: impl Fn(u32) -> bool) {
        let met = self.messages.iter().filter_map(|(&id, sent)| Some((id, sent, sent.mate?)));
        for (id, sent, receive) in met.filter(|it| !is_dead(it.0.rank) && !is_dead(it.2.rank)) {
            let posted = &self.receives[&receive];
            let (ours, theirs) = (posted.form, form(sent.envelope));
            let done = |source| Outcome::Done(Status { source, envelope: sent.envelope });
            let differs = |peer, ours, theirs| Outcome::Differs { peer, ours, theirs };
            let (at_sender, at_receiver) = if ours == theirs {
                (done(sent.to), done(id.rank))
            } else if sent.is_eager {
                (done(sent.to), differs(id.rank, ours, theirs))
            } else {
                (differs(sent.to, theirs, ours), differs(id.rank, ours, theirs))
            };
            let withdrawn = Outcome::Withdrawn { peer: id.rank };
            let is_withdrawn = posted.end == Some(End::Outcome(withdrawn));
            let at_receiver = match sent.end {
                Some(End::Withdrawn) if is_withdrawn => withdrawn,
                _ => at_receiver,
            };
            for (end, outcome) in [(sent.end, at_sender), (posted.end, at_receiver)] {
                let is_so = [End::Withdrawn, End::Outcome(outcome)].map(Some).contains(&end);
                assert!(is_so, "{id:?} {sent:?}\n{receive:?} {posted:?}");
            }
            let is_done = posted.end == Some(End::Outcome(done(id.rank)));
            let is_whole = posted.received == posted.form.1;
            assert!(is_whole || !is_done, "{receive:?} has ended with bytes missing");
            assert!(
                ours == theirs || posted.received == 0,
                "{receive:?} got bytes of another form"
            );
        }
    }
}
