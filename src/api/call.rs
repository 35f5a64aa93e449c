//! A call as a value: any collective or message, for programs that choose one at run time. The
//! table of verbs makes the typed methods from it.

use super::FoldOrder;
use crate::element::{DataType, Reduction};
use crate::error::{Result, argument_error};
use crate::kernel::Kernel;
use crate::schedule::Collective;

/// A collective, or a message between two ranks, without its buffers: what
/// [`Communicator::call`](crate::Communicator::call), [`Queue::call`](crate::Queue::call),
/// [`Group::call`](crate::Group::call) and `OnStream::call` make. A method such as
/// [`all_reduce`](crate::Communicator::all_reduce) makes the same call on typed buffers.
///
/// ```
/// use ringreduce::{Buffers, Call, Collective, Communicator, Counts, DataType, ReduceOp};
///
/// let mut comm = Communicator::local(1)?.remove(0);
/// let mut bytes = 7_u32.to_ne_bytes();
/// let sum = Call::new(Collective::AllReduce, DataType::U32).by(ReduceOp::Sum);
/// comm.call(&sum, Buffers::InPlace(&mut bytes))?;
///
/// // As `all_gather_v`: rank 0 gives two bytes.
/// let (send, mut recv) = ([1, 2], [0; 2]);
/// let gather = Call::new(Collective::AllGather, DataType::U8).with(Counts::Parts(&[2]));
/// comm.call(&gather, Buffers::OutOfPlace { send: &send, recv: &mut recv })?;
/// assert_eq!((u32::from_ne_bytes(bytes), recv), (7, send));
/// # Ok::<(), ringreduce::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Call<'a> {
    /// The collective or the message.
    pub verb: Verb,
    /// The type of the elements.
    pub dtype: DataType,
    /// The reduction. A call that reduces nothing does not look at it.
    pub op: Option<Reduction>,
    /// The lengths of the parts, where the buffers have a part for each rank.
    pub counts: Counts<'a>,
    /// The user's function behind `op`, and the order in which it folds.
    pub(crate) function: Option<(&'a Kernel<'a>, FoldOrder)>,
}

/// The operation of a [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// A collective.
    Collective(Collective),
    /// A message to a rank, of the buffer that is sent.
    Send {
        /// The receiver.
        to: usize,
    },
    /// A message from a rank, to the buffer that is received.
    Recv {
        /// The sender.
        from: usize,
    },
    /// One message each way.
    SendRecv {
        /// The receiver of the buffer that is sent.
        to: usize,
        /// The sender of the buffer that is received.
        from: usize,
    },
}

/// The lengths, in elements, of the parts that a buffer has for the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counts<'a> {
    /// All parts have the same length, which follows from the buffers.
    Equal,
    /// The length of each rank's part, which all ranks pass: as in
    /// [`all_gather_v`](crate::Communicator::all_gather_v).
    Parts(&'a [usize]),
    /// The lengths of this rank's own parts, to each rank and from each: as in
    /// [`all_to_all_v`](crate::Communicator::all_to_all_v).
    Pairs {
        /// Elements to each rank.
        send: &'a [usize],
        /// Elements from each rank.
        recv: &'a [usize],
    },
}

/// The buffers of a [`Call`]: bytes of the host's memory, or addresses on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers<S, R> {
    /// One buffer that is both read and written. Where the collective sends and receives different
    /// lengths (a reduce-scatter, an all-gather, the root of a gather or a scatter), the buffer is
    /// the longer side, and this rank's part of the buffer is the shorter side.
    InPlace(R),
    /// A buffer that is read and one that is written. A side that this rank does not use is not
    /// looked at and may be empty.
    OutOfPlace {
        /// The data that this rank sends.
        send: S,
        /// The buffer in which this rank receives.
        recv: R,
    },
}

impl<'a> Call<'a> {
    /// A collective on elements of this type.
    #[must_use]
    pub const fn new(collective: Collective, dtype: DataType) -> Self {
        Self::of(Verb::Collective(collective), dtype)
    }

    /// Any call on elements of this type.
    #[must_use]
    pub const fn of(verb: Verb, dtype: DataType) -> Self {
        Self { verb, dtype, op: None, counts: Counts::Equal, function: None }
    }

    /// This call with a reduction.
    #[must_use]
    pub fn by(self, op: impl Into<Reduction>) -> Self {
        Self { op: Some(op.into()), ..self }
    }

    /// This call with parts of these lengths.
    #[must_use]
    pub const fn with(self, counts: Counts<'a>) -> Self {
        Self { counts, ..self }
    }

    /// This call with a user's function, which reduces elements of `op`'s size.
    pub(super) fn by_function(
        self,
        op: Reduction,
        kernel: &'a Kernel<'a>,
        order: FoldOrder,
    ) -> Self {
        Self { op: Some(op), function: Some((kernel, order)), ..self }
    }

    /// The name of the method that makes this call.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self.verb, self.counts) {
            (Verb::Collective(collective), Counts::Parts(_) | Counts::Pairs { .. }) => {
                collective.name_of_uneven()
            }
            (verb, _) => verb.name(),
        }
    }
}

impl Verb {
    /// The collective; `None` for a message.
    #[must_use]
    pub const fn collective(self) -> Option<Collective> {
        if let Self::Collective(collective) = self { Some(collective) } else { None }
    }

    /// The name of the method for it, where all parts have the same length.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Collective(collective) => collective.name(),
            Self::Send { .. } => "send",
            Self::Recv { .. } => "recv",
            Self::SendRecv { .. } => "send_recv",
        }
    }

    /// As [`Collective::sides`]; a message is one block.
    #[must_use]
    pub fn sides(self, me: u32, size: u32) -> [usize; 2] {
        match self {
            Self::Collective(collective) => collective.sides(me, size),
            Self::Send { .. } => [1, 0],
            Self::Recv { .. } => [0, 1],
            Self::SendRecv { .. } => [1, 1],
        }
    }

    /// This verb with `peer` as the root of the collective, or as the other end of its messages;
    /// unchanged if it has neither.
    #[must_use]
    pub fn with_peer(self, peer: usize) -> Self {
        match self {
            Self::Collective(collective) => Self::Collective(collective.with_root(as_root(peer))),
            Self::Send { .. } => Self::Send { to: peer },
            Self::Recv { .. } => Self::Recv { from: peer },
            Self::SendRecv { .. } => Self::SendRecv { to: peer, from: peer },
        }
    }
}

impl From<Collective> for Verb {
    fn from(collective: Collective) -> Self {
        Self::Collective(collective)
    }
}

impl<'a> Buffers<&'a [u8], &'a mut [u8]> {
    /// The same buffers for a shorter time.
    pub(super) fn reborrow(&mut self) -> Buffers<&[u8], &mut [u8]> {
        match self {
            Self::InPlace(buf) => Buffers::InPlace(buf),
            Self::OutOfPlace { send, recv } => Buffers::OutOfPlace { send, recv },
        }
    }

    /// The bytes that a message sends.
    pub(super) fn sent(self) -> &'a [u8] {
        match self {
            Self::InPlace(buf) => buf,
            Self::OutOfPlace { send, .. } => send,
        }
    }

    /// The buffer in which a message is received.
    pub(super) fn received(self) -> &'a mut [u8] {
        match self {
            Self::InPlace(recv) | Self::OutOfPlace { recv, .. } => recv,
        }
    }
}

impl<S, R> Buffers<S, R> {
    /// The data to send and the buffer to receive in, of a call that does both.
    pub(crate) fn both(self, call: &'static str) -> Result<(S, R)> {
        match self {
            Self::OutOfPlace { send, recv } => Ok((send, recv)),
            Self::InPlace(_) => {
                let expected = "two buffers: one that is sent and one that is received";
                argument_error(call, "buffers", "one buffer", expected)
            }
        }
    }
}

/// A root as schedules number ranks. A root above `u32::MAX` becomes `u32::MAX`, which is never a
/// rank.
pub(crate) fn as_root(root: usize) -> u32 {
    u32::try_from(root).unwrap_or(u32::MAX)
}

/// Makes a [`Call`] from a row of the table of verbs and an element type.
macro_rules! call {
    ($dtype:expr, [$of:ident ($($op:ident)?) ($($root:ident)?)] $(, $counts:expr)?) => {
        $crate::api::call::Call::new(
            $crate::schedule::Collective::$of $({ root: $crate::api::call::as_root($root) })?,
            $dtype,
        )
        $(.by($op))?
        $(.with($crate::api::call::Counts::Parts($counts)))?
    };
}
pub(crate) use call;
