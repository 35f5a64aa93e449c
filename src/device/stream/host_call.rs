//! The host's part of calls by way of the host: the communicator's call that is made on a piece of
//! both buffers.
//! Law: a host's call is a value, the same for all types of elements, so that the code around it is
//! compiled once.

use std::iter::zip;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use super::many::piece_ranges;
use super::pieces::within;
use crate::api::Communicator;
use crate::api::call::{Buffers, Call, Counts, Verb};
use crate::element::{DataType, Reduction};
use crate::error::Result;
use crate::matching::INTERNAL_TAG;
use crate::messages::{Bytes, Transfer};
use crate::schedule::Collective;

/// A call on the host. Counts and lengths are elements of the whole call's parts; those of an
/// all-to-all are sent to each rank, and received from each.
#[derive(Clone, Debug)]
pub(super) enum HostCall {
    /// A collective on equal parts.
    Even {
        call: Call<'static>,
        is_in_place: bool,
    },
    /// A collective on parts of these lengths.
    Parts(Call<'static>, Arc<[usize]>),
    Pairs(DataType, [Arc<[usize]>; 2]),
    Many {
        lens: Arc<[usize]>,
        dtype: DataType,
        op: Reduction,
    },
    Message(Call<'static>),
}

impl HostCall {
    /// Makes the call on a piece: `one` has the bytes of the buffer that is sent, or of the only
    /// one; `other` has those of the buffer that is received.
    pub(super) fn make(
        &self,
        comm: &mut Communicator,
        piece: &Range<usize>,
        one: &mut [u8],
        other: &mut [u8],
    ) -> Result<()> {
        match self {
            Self::Even { call, is_in_place: true } => comm.call(call, Buffers::InPlace(one)),
            Self::Even { call, is_in_place: false } => {
                comm.call(call, Buffers::OutOfPlace { send: one, recv: other })
            }
            Self::Parts(call, counts) => {
                let counts = piece_counts(counts, piece);
                let call = call.with(Counts::Parts(&counts));
                comm.call(&call, Buffers::OutOfPlace { send: one, recv: other })
            }
            // Ranks may have different numbers of pieces, so only the first one, which all have, is
            // a collective.
            Self::Pairs(dtype, counts) if piece.start > 0 => {
                pass_on(comm, *dtype, (one, other), counts, piece)
            }
            Self::Pairs(dtype, counts) => {
                let [send, recv] = counts.each_ref().map(|counts| piece_counts(counts, piece));
                let counts = Counts::Pairs { send: &send, recv: &recv };
                let call = Call::new(Collective::AllToAll, *dtype).with(counts);
                comm.call(&call, Buffers::OutOfPlace { send: one, recv: other })
            }
            Self::Many { lens, dtype, op } => {
                let mut rest = one;
                let bufs = piece_ranges(lens.iter().copied(), piece.clone()).map(|part| {
                    let (buf, more) = take(&mut rest).split_at_mut(part.len() * dtype.size());
                    rest = more;
                    buf
                });
                comm.all_reduce_buffers(bufs, *dtype, *op)
            }
            // An empty piece is no message.
            Self::Message(_) if one.is_empty() && other.is_empty() => Ok(()),
            Self::Message(call) => {
                // The shorter buffer may have ended in an earlier piece.
                let verb = match call.verb {
                    Verb::SendRecv { to, .. } if other.is_empty() => Verb::Send { to },
                    Verb::SendRecv { from, .. } if one.is_empty() => Verb::Recv { from },
                    verb => verb,
                };
                let call = Call::of(verb, call.dtype);
                comm.call(&call, Buffers::OutOfPlace { send: one, recv: other })
            }
        }
    }
}

/// The elements of each part that are in a piece.
pub(super) fn piece_counts(counts: &[usize], piece: &Range<usize>) -> Vec<usize> {
    counts.iter().map(|&count| within(piece, count)).collect()
}

/// The messages of an all-to-all after its first piece, between pairs of ranks that still have
/// some.
fn pass_on(
    comm: &mut Communicator,
    dtype: DataType,
    (mut send, mut recv): (&[u8], &mut [u8]),
    counts: &[Arc<[usize]>; 2],
    piece: &Range<usize>,
) -> Result<()> {
    let mut transfers = Vec::with_capacity(2 * comm.size());
    let [given, got] = counts.each_ref().map(|counts| piece_counts(counts, piece));
    for (peer, (given, got)) in zip(given, got).enumerate() {
        let sent = send.split_off(..given * dtype.size()).unwrap_or_default();
        let received = recv.split_off_mut(..got * dtype.size()).unwrap_or_default();
        let parts = [Bytes::Sent(sent), Bytes::Received(received)];
        let transfer = |bytes| Transfer { bytes, dtype, peer };
        transfers.extend(parts.map(transfer).into_iter().filter(|it| it.len() > 0));
    }
    comm.exchange(("all_to_all_v", INTERNAL_TAG), &mut transfers)
}
