//! Receives of messages whose length the receiver does not know.
//! Unsafe: a blocking call lends its buffer to a request that ends before the call does.
#![allow(unsafe_code)]

use std::io;

use bytemuck::{Zeroable, cast_slice_mut};

use super::{Messenger, Source, Status, Tag};
use crate::element::{DataType, Element};
use crate::error::{Error, Result};
use crate::matching::Outcome;
use crate::messages::{Awaited, Messages, ReceiveBuffer};
use crate::sync::Instant;

impl Messenger {
    /// Receives a message of any length, from a rank and with a tag as [`Self::recv`] takes them.
    /// No other thread takes the message between the look at its length and the receive, as it may
    /// after a [`Self::probe`] (`MPI_Mprobe` and `MPI_Mrecv`).
    ///
    /// # Errors
    /// As [`Self::recv`], but for the length; and if there is no memory for the message.
    pub fn recv_vec<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<(Vec<T>, Status)> {
        let make = |bytes| zeroed::<T>(bytes / size_of::<T>());
        self.recv_new(T::DTYPE, (from.into(), tag.into()), make, |it| cast_slice_mut(it))
    }

    /// As [`Self::recv_vec`], with the type known at run time, to memory that `make` gives for a
    /// number of bytes.
    #[doc(hidden)]
    pub fn recv_new<M>(
        &self,
        dtype: DataType,
        (from, tag): (Source, Tag),
        make: impl Fn(usize) -> Option<M>,
        bytes: impl Fn(&mut M) -> &mut [u8],
    ) -> Result<(M, Status)> {
        let began = Instant::now();
        loop {
            let left = self.timeout.saturating_sub(began.elapsed());
            let found = self.with_timeout(left).probe(from, tag)?;
            let mut memory = make(found.bytes).ok_or_else(|| {
                let doing = format!("allocating {} bytes for a message", found.bytes);
                Error::io(doing, io::ErrorKind::OutOfMemory)
            })?;
            if let Some(status) = self.recv_found(bytes(&mut memory), dtype, found)? {
                return Ok((memory, status));
            }
        }
    }

    /// Receives the message that was found; `None` if another thread has taken it since.
    fn recv_found(
        &self,
        bytes: &mut [u8],
        dtype: DataType,
        found: Status,
    ) -> Result<Option<Status>> {
        const CALL: &str = "recv";
        let len = bytes.len();
        // SAFETY: the request has ended, or was withdrawn, when this call returns.
        let buffer = unsafe { ReceiveBuffer::new(bytes) };
        let mut state = self.messages.lock_for(CALL)?;
        let exact = (Source::Rank(found.rank), Tag::Is(found.tag));
        let context = self.receiving(&state, CALL, (len, dtype), exact)?;
        let first = self.messages.try_take(&mut state, Awaited::Message(context.expected));
        match first {
            Some(Outcome::Done(status)) if Status::of(status) == found => {}
            _ => return Ok(None),
        }
        let id = state.receive(context.expected, (dtype, len), buffer);
        let id = id.ok_or_else(|| Messages::too_many(context))?;
        let context = state.numbered(context);
        let ended = self.messages.wait(state, Awaited::Receive(id), Some(found.rank), self.timeout);
        self.ended(context, ended).map(Some)
    }
}

/// A vector of so many zeros; another rank has chosen the number.
fn zeroed<T: Zeroable + Clone>(len: usize) -> Option<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).ok()?;
    elements.resize(len, T::zeroed());
    Some(elements)
}
