//! A blocking call of several messages, as the parts of one group: all are posted before any is
//! waited for, so no order of them can deadlock.
//! Unsafe: the call lends its buffers to requests, all of which end before the call does.
#![allow(unsafe_code)]

use std::time::Duration;

use super::wait::{Waiting, withdraw_all};
use super::{Awaited, Context, Messages, ReceiveBuffer, SendBuffer, State};
use crate::element::DataType;
use crate::error::Result;
use crate::matching::{Envelope, Expected, Outcome};

/// The bytes of one message of a call.
#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    Sent(&'a [u8]),
    Received(&'a mut [u8]),
}

/// One message of a call, to a rank or from it.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    pub(crate) bytes: Bytes<'a>,
    pub(crate) dtype: DataType,
    pub(crate) peer: usize,
}

impl Transfer<'_> {
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.bytes, Bytes::Sent(_))
    }

    pub(crate) fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Sent(bytes) => bytes.len(),
            Bytes::Received(bytes) => bytes.len(),
        }
    }
}

/// The requests of a call, withdrawn when the call ends in whatever way.
struct Requests<'a> {
    messages: &'a Messages,
    requests: &'a mut Vec<Waiting>,
}

impl Drop for Requests<'_> {
    fn drop(&mut self) {
        if self.requests.iter().any(|it| it.outcome.is_none()) {
            withdraw_all(self.requests, &mut self.messages.lock());
        }
        self.requests.clear();
    }
}

impl Messages {
    /// Sends and receives all of `transfers`, with this tag; messages in one direction between the
    /// same two ranks keep their order. `requests` is memory to use, empty before and after;
    /// `observer` as in [`Self::wait_for_all`].
    ///
    /// # Errors
    /// The first failure. The other messages that have not ended are given up then.
    pub(crate) fn exchange(
        &self,
        (call, tag): (&'static str, u32),
        transfers: &mut [Transfer<'_>],
        requests: &mut Vec<Waiting>,
        timeout: Duration,
        observer: &mut dyn FnMut(usize, Duration) -> bool,
    ) -> Result<()> {
        let context = |transfer: &Transfer<'_>| {
            let expected = Expected { source: Some(transfer.peer as u32), tag: Some(tag) };
            // The engine knows the number of the call.
            Context { call, number: 0, expected }
        };
        let batch = Requests { messages: self, requests };
        let mut state = self.lock_for(call)?;
        state.check_open(call)?;
        // No message goes if one of them would be too many.
        let room = state.endpoint.room();
        for (is_sent, room) in [(true, room.sends), (false, room.receives)] {
            let mut asked = transfers.iter().filter(|transfer| transfer.is_sent() == is_sent);
            if let Some(transfer) = asked.nth(room) {
                drop(state);
                return Err(Self::too_many(context(transfer)));
            }
        }
        for transfer in transfers.iter().filter(|transfer| transfer.is_sent()) {
            state.make_room(transfer.peer, transfer.len())?;
        }
        // A message of this rank to itself meets its receive at once.
        for is_sent in [false, true] {
            for transfer in transfers.iter_mut().filter(|it| it.is_sent() == is_sent) {
                let (peer, expected) = (transfer.peer, context(transfer).expected);
                let Some(awaited) = state.post(transfer, expected) else {
                    drop(state);
                    return Err(Self::too_many(context(transfer)));
                };
                batch.requests.push(Waiting::new(awaited, Some(peer)));
            }
        }
        let waited = self.wait_for_all(state, batch.requests, timeout, observer);
        let posted = [false, true].into_iter().flat_map(|is_sent| {
            transfers.iter().filter(move |transfer| transfer.is_sent() == is_sent)
        });
        let ends = || posted.clone().map(context).zip(batch.requests.iter().map(|it| it.outcome));
        let failure = ends().find(|(_, end)| !matches!(end, None | Some(Outcome::Done(_))));
        if let Some((context, Some(outcome))) = failure {
            return self.conclude(context, outcome).map(drop);
        }
        let Err(stop) = waited else { return Ok(()) };
        let late = ends().find(|(_, end)| end.is_none());
        late.map_or(Ok(()), |(context, _)| Err(self.stopped(context, stop)))
    }
}

impl State {
    /// Starts a message; `None` if too many are pending.
    fn post(&mut self, transfer: &mut Transfer<'_>, expected: Expected) -> Option<Awaited> {
        let (dtype, peer) = (transfer.dtype, transfer.peer);
        match &mut transfer.bytes {
            Bytes::Sent(bytes) => {
                let tag = expected.tag.unwrap_or_default();
                let envelope = Envelope { tag, dtype, bytes: bytes.len() as u64 };
                // SAFETY: the request ends, or is withdrawn, before `Messages::exchange` returns,
                // which has the buffer borrowed for as long.
                let buffer = unsafe { SendBuffer::new(bytes) };
                self.send(peer, envelope, buffer).map(Awaited::Send)
            }
            Bytes::Received(bytes) => {
                let len = bytes.len();
                // SAFETY: as above.
                let buffer = unsafe { ReceiveBuffer::new(bytes) };
                self.receive(expected, (dtype, len), buffer).map(Awaited::Receive)
            }
        }
    }
}
