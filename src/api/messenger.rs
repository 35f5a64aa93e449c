//! Messages between two ranks by rank and tag, from any thread. Nonblocking ones are in `request`.
//! Unsafe: a blocking call lends its buffer to a request that ends before the call does.
#![allow(unsafe_code)]

mod recv_vec;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::collective::{check_message, element_count};
use crate::element::{DataType, Element};
use crate::engine::linked_up_to;
use crate::error::{Result, argument_error};
use crate::matching::{self, Envelope, Expected, INTERNAL_TAG, Outcome};
use crate::messages::{Awaited, Context, Messages, ReceiveBuffer, SendBuffer, State, Stop};

/// The rank that a receive takes a message from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This rank.
    Rank(usize),
    /// Whichever rank sends first (`MPI_ANY_SOURCE`).
    Any,
}

/// The tag of the messages that a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// This tag.
    Is(u32),
    /// Any tag (`MPI_ANY_TAG`).
    Any,
}

impl From<usize> for Source {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Self {
        Self::Is(tag)
    }
}

/// A message that was sent, received or found (`MPI_Status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Status {
    /// The rank that sent it; of a send, the rank that it went to.
    pub rank: usize,
    /// Its tag.
    pub tag: u32,
    /// The type of its elements.
    pub dtype: DataType,
    /// Its length in bytes.
    pub bytes: usize,
}

impl Status {
    fn of(status: matching::Status) -> Self {
        let matching::Status { source, envelope: Envelope { tag, dtype, bytes } } = status;
        Self { rank: source as usize, tag, dtype, bytes: bytes as usize }
    }
}

/// Sends and receives messages between two ranks, from any thread and beside any collective. See
/// [`Communicator::messenger`].
#[derive(Clone)]
pub struct Messenger {
    pub(super) messages: Arc<Messages>,
    pub(super) timeout: Duration,
}

impl Communicator {
    /// A handle for messages between two ranks, which any thread may use at any time, also while
    /// this communicator is in a collective. Those with tag 0 meet [`Self::send`] and
    /// [`Self::recv`].
    ///
    /// A message has a tag. It is received by the first posted receive that takes its sender and
    /// tag; messages of one rank that a receive could take both are taken in the order in which
    /// they were sent (MPI-4.1, section 3.5). Type and length must be equal at both ends: a receive
    /// that does not know the length is [`Messenger::recv_vec`].
    ///
    /// A message of up to some KiB may be sent before its receive is posted (eager protocol); a
    /// longer one waits for the receive (rendezvous). So ranks that send long messages to each
    /// other and only then receive wait for ever; [`Messenger::irecv`] before the send helps.
    ///
    /// A rank that is lost fails the messages that need it and no others, even after a collective
    /// has failed: until they drop or revoke the communicator, the living can send to each other.
    ///
    /// While no thread of the rank waits for a message, threads of this library take what arrives
    /// and answer: one of the process, and one of each communicator whose messages move. A rank
    /// without a messenger takes 16 short messages of each other rank until it makes a call of its
    /// own.
    ///
    /// ```
    /// use ringreduce::{Communicator, Source, Tag};
    ///
    /// let ranks = Communicator::local(3)?;
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             let messages = comm.messenger();
    ///             if comm.rank() > 0 {
    ///                 return messages.send(&[comm.rank() as f32], 0, 7);
    ///             }
    ///             let mut value = [0.0_f32];
    ///             let first = messages.recv(&mut value, Source::Any, 7)?;
    ///             assert_eq!(value, [first.rank as f32]);
    ///             messages.recv(&mut value, 3 - first.rank, Tag::Any).map(drop)
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    #[must_use]
    pub fn messenger(&self) -> Messenger {
        let messages = Arc::clone(self.rank_info.messages.shared());
        messages.engage_watch();
        Messenger { messages, timeout: self.settings.timeout }
    }
}

impl Messenger {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.messages.me
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.messages.peers.len()
    }

    /// The ranks that are lost, as far as this rank has seen. A receive from any rank goes on while
    /// another rank is left, so a server asks now and then.
    #[must_use]
    pub fn lost(&self) -> Vec<usize> {
        self.messages.lock().lost()
    }

    /// A handle whose waits last for at most `timeout` each.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Sends `buf` to rank `to`. Returns once `buf` may be used again: a long message has met its
    /// receive by then, a short one may be on its way.
    ///
    /// # Errors
    /// If the peer is lost, or does not receive before the timeout; if its receive has another type
    /// or length; if there is no such rank, or no link to it.
    pub fn send<T: Element>(&self, buf: &[T], to: usize, tag: u32) -> Result<()> {
        self.send_bytes(cast_slice(buf), T::DTYPE, to, tag)
    }

    /// As [`Self::send`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::send`]; and if `buf` is not whole elements.
    pub fn send_bytes(&self, buf: &[u8], dtype: DataType, to: usize, tag: u32) -> Result<()> {
        const CALL: &str = "send";
        // SAFETY: the request has ended, or was withdrawn, when this call returns.
        let buffer = unsafe { SendBuffer::new(buf) };
        let (context, envelope) = self.sending(CALL, buf.len(), (dtype, to, tag))?;
        let mut state = self.messages.lock_for(CALL)?;
        self.check_peer(&state, CALL, "to", to)?;
        if to == self.rank() && !state.has_posted(self.rank(), tag) {
            let expected = "another rank, or this one with a receive posted before: a blocking \
                            send to itself waits for ever";
            return argument_error(CALL, "to", to, expected);
        }
        state.make_room(to, buf.len())?;
        let id = state.send(to, envelope, buffer).ok_or_else(|| Messages::too_many(context))?;
        let context = state.numbered(context);
        let ended = self.messages.wait(state, Awaited::Send(id), Some(to), self.timeout);
        self.ended(context, ended).map(drop)
    }

    /// Receives a message into `buf` from a rank, by its number or [`Source::Any`], with a tag, by
    /// its number or [`Tag::Any`].
    ///
    /// # Errors
    /// If the sender is lost, or no message comes before the timeout; if the message has another
    /// type or length than `buf`, which then stays as it was; if there is no such rank, or no link
    /// from it.
    pub fn recv<T: Element>(
        &self,
        buf: &mut [T],
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Status> {
        self.recv_bytes(cast_slice_mut(buf), T::DTYPE, from.into(), tag.into())
    }

    /// As [`Self::recv`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::recv`]; and if `buf` is not whole elements.
    pub fn recv_bytes(
        &self,
        buf: &mut [u8],
        dtype: DataType,
        from: Source,
        tag: Tag,
    ) -> Result<Status> {
        const CALL: &str = "recv";
        let bytes = buf.len();
        // SAFETY: the request has ended, or was withdrawn, when this call returns.
        let buffer = unsafe { ReceiveBuffer::new(buf) };
        let mut state = self.messages.lock_for(CALL)?;
        let context = self.receiving(&state, CALL, (bytes, dtype), (from, tag))?;
        let id = state.receive(context.expected, (dtype, bytes), buffer);
        let id = id.ok_or_else(|| Messages::too_many(context))?;
        let context = state.numbered(context);
        let source = context.expected.source.map(|source| source as usize);
        let ended = self.messages.wait(state, Awaited::Receive(id), source, self.timeout);
        self.ended(context, ended)
    }

    /// Waits for a message that no receive has met, and says what it is. It stays there, for
    /// whichever receive takes it first, unless its sender gives it up.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn probe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status> {
        let context = self.probing((from.into(), tag.into()))?;
        let awaited = Awaited::Message(context.expected);
        let source = context.expected.source.map(|source| source as usize);
        let state = self.messages.lock();
        let ended = self.messages.wait(state, awaited, source, self.timeout);
        self.ended(context, ended)
    }

    /// As [`Self::probe`], without waiting; `None` if there is no such message yet.
    ///
    /// # Errors
    /// As [`Self::recv`], but for the timeout.
    pub fn try_probe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Status>> {
        let context = self.probing((from.into(), tag.into()))?;
        let mut state = self.messages.lock();
        let found = self.messages.try_take(&mut state, Awaited::Message(context.expected));
        drop(state);
        found.map(|outcome| self.ended(context, Ok(outcome))).transpose()
    }

    fn probing(&self, (from, tag): (Source, Tag)) -> Result<Context> {
        self.receiving(&*self.messages.lock_for("probe")?, "probe", (0, DataType::U8), (from, tag))
    }

    /// The context and the envelope of a send.
    pub(super) fn sending(
        &self,
        call: &'static str,
        bytes: usize,
        (dtype, to, tag): (DataType, usize, u32),
    ) -> Result<(Context, Envelope)> {
        check_message(call, "buf", bytes, dtype)?;
        check_tag(call, tag)?;
        let expected = Expected { source: Some(to as u32), tag: Some(tag) };
        let context = Context { call, number: 0, expected };
        Ok((context, Envelope { tag, dtype, bytes: bytes as u64 }))
    }

    /// The context of a receive.
    pub(super) fn receiving(
        &self,
        state: &State,
        call: &'static str,
        (bytes, dtype): (usize, DataType),
        (from, tag): (Source, Tag),
    ) -> Result<Context> {
        element_count(call, "buf", bytes, dtype)?;
        if let Source::Rank(from) = from {
            self.check_peer(state, call, "from", from)?;
        }
        state.check_open(call)?;
        let source = match from {
            Source::Rank(rank) => Some(rank as u32),
            Source::Any => None,
        };
        let tag = match tag {
            Tag::Is(tag) => Some(check_tag(call, tag)?),
            Tag::Any => None,
        };
        let context = Context { call, number: 0, expected: Expected { source, tag } };
        Ok(state.numbered(context))
    }

    /// Refuses a peer that is no rank, or that there is no link to.
    pub(super) fn check_peer(
        &self,
        state: &State,
        call: &'static str,
        argument: &'static str,
        peer: usize,
    ) -> Result<()> {
        state.check_open(call)?;
        let size = self.size();
        if peer >= size {
            return argument_error(call, argument, peer, format!("a rank below the size, {size}"));
        }
        if peer == self.rank() || state.is_linked(peer) {
            return Ok(());
        }
        let expected = format!(
            "a neighbour on the ring or a rank at a distance of a power of two: {}",
            linked_up_to(self.messages.most_pairs)
        );
        argument_error(call, argument, peer, expected)
    }

    /// The message of a call, or its error.
    pub(super) fn ended(&self, context: Context, ended: Result<Outcome, Stop>) -> Result<Status> {
        match ended {
            Ok(outcome) => self.messages.conclude(context, outcome).map(Status::of),
            Err(stop) => Err(self.messages.stopped(context, stop)),
        }
    }
}

/// Refuses the tag of messages that are parts of a call.
fn check_tag(call: &'static str, tag: u32) -> Result<u32> {
    if tag == INTERNAL_TAG {
        return argument_error(call, "tag", tag, format!("at most {}", INTERNAL_TAG - 1));
    }
    Ok(tag)
}

impl fmt::Debug for Messenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Messenger");
        out.field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}
