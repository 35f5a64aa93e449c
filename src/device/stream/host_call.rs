//! The host's part of calls by way of the host: the communicator's call that is made on a piece of
//! both buffers.
//! Law: it is a value, whatever the type of the elements, so that the code around it is compiled
//! once.

use std::iter::zip;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use super::many::piece_ranges;
use super::pieces::within;
use crate::api::Communicator;
use crate::api::verb::Verb;
use crate::element::{DataType, Reduction};
use crate::error::Result;
use crate::matching::INTERNAL_TAG;
use crate::messages::{Bytes, Transfer};

/// A call on the host. Counts and lengths are elements of the whole call's parts; those of an
/// all-to-all are sent to each rank, and received from each.
#[derive(Clone, Debug)]
pub(super) enum HostCall {
    InPlace(Verb),
    OutOfPlace(Verb),
    OutOfPlaceV(Verb, Arc<[usize]>),
    AllToAllV(DataType, [Arc<[usize]>; 2]),
    Many { lens: Arc<[usize]>, dtype: DataType, op: Reduction },
    Send(DataType, usize),
    Recv(DataType, usize),
    SendRecv { dtype: DataType, to: usize, from: usize },
    Barrier,
}

impl HostCall {
    /// Makes the call on the bytes of a piece of both buffers.
    pub(super) fn make(
        &self,
        comm: &mut Communicator,
        piece: &Range<usize>,
        one: &mut [u8],
        other: &mut [u8],
    ) -> Result<()> {
        match self {
            Self::InPlace(verb) => comm.in_place(*verb, one),
            Self::OutOfPlace(verb) => comm.out_of_place(*verb, one, other),
            Self::OutOfPlaceV(verb, counts) => {
                comm.out_of_place_v(*verb, one, other, &piece_counts(counts, piece))
            }
            // A rank without further elements makes no more pieces, so that only the first is a
            // collective.
            Self::AllToAllV(dtype, counts) if piece.start > 0 => {
                pass_on(comm, *dtype, (one, other), counts, piece)
            }
            Self::AllToAllV(dtype, counts) => {
                let [given, got] = counts.each_ref().map(|counts| piece_counts(counts, piece));
                comm.all_to_all_v_bytes(one, &given, other, &got, *dtype)
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
            Self::Send(dtype, to) => send(comm, one, *dtype, *to),
            Self::Recv(dtype, from) => recv(comm, other, *dtype, *from),
            // The shorter buffer may have ended in an earlier piece.
            Self::SendRecv { dtype, to, .. } if other.is_empty() => send(comm, one, *dtype, *to),
            Self::SendRecv { dtype, from, .. } if one.is_empty() => {
                recv(comm, other, *dtype, *from)
            }
            Self::SendRecv { dtype, to, from } => {
                comm.send_recv_bytes(one, *to, other, *from, *dtype)
            }
            Self::Barrier => comm.barrier(),
        }
    }
}

/// Sends a piece; an empty one is no message.
fn send(comm: &mut Communicator, piece: &[u8], dtype: DataType, to: usize) -> Result<()> {
    if piece.is_empty() { Ok(()) } else { comm.send_bytes(piece, dtype, to) }
}

/// Receives a piece; an empty one is no message.
fn recv(comm: &mut Communicator, piece: &mut [u8], dtype: DataType, from: usize) -> Result<()> {
    if piece.is_empty() { Ok(()) } else { comm.recv_bytes(piece, dtype, from) }
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
