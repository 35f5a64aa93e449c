//! Nonblocking messages: a request owns its buffer and gives it back when it has ended.
//! Unsafe: the buffer stays at one address, which the pending message knows, until the request has
//! ended, whatever is dropped or forgotten meanwhile.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

use bytemuck::{cast_slice, cast_slice_mut};

use super::messenger::{Messenger, Source, Status, Tag};
use crate::element::{DataType, Element};
use crate::error::Result;
use crate::messages::{Awaited, Context, Messages, ReceiveBuffer, SendBuffer};

/// A message under way, with its buffer. If it is dropped, the message goes on, and the buffer is
/// dropped once the message has ended.
#[must_use = "the message's error is reported here alone"]
pub struct MessageRequest<B: Send + 'static> {
    messenger: Messenger,
    context: Context,
    awaited: Awaited,
    /// `None` once it was given back.
    buffer: Option<Leaked<B>>,
}

/// A value on the heap, known by a raw pointer from the start, as the pending message knows its
/// bytes: a `Box` would claim with each move that nobody else does.
struct Leaked<B>(NonNull<B>);

// SAFETY: it owns its value.
unsafe impl<B: Send> Send for Leaked<B> {}
// SAFETY: a shared one is not looked into once a message is pending.
unsafe impl<B: Send> Sync for Leaked<B> {}

impl<B> Leaked<B> {
    fn new(value: B) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    fn get(&self) -> &B {
        // SAFETY: the value lives as long as this owner.
        unsafe { self.0.as_ref() }
    }

    fn get_mut(&mut self) -> &mut B {
        // SAFETY: as above, and this borrow is the only one.
        unsafe { self.0.as_mut() }
    }

    fn into_inner(self) -> B {
        let pointer = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: the pointer came from a box, and this owner is not dropped.
        *unsafe { Box::from_raw(pointer.as_ptr()) }
    }
}

impl<B> Drop for Leaked<B> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, and its only owner ends here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Messenger {
    /// Starts to send `buf` to rank `to`, and returns at once.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// let ranks = Communicator::local(2)?;
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             let (messages, other) = (comm.messenger(), 1 - comm.rank());
    ///             let theirs = messages.irecv(vec![0_u64; 100_000], other, 0)?;
    ///             let mine = messages.isend(vec![comm.rank() as u64; 100_000], other, 0)?;
    ///             assert_eq!(theirs.wait()?.0, vec![other as u64; 100_000]);
    ///             mine.wait().map(drop)
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such rank, no link to it, or as many requests are pending as may be; and if
    /// no thread can be started. Other errors come from [`MessageRequest::wait`].
    pub fn isend<T, B>(&self, buf: B, to: usize, tag: u32) -> Result<MessageRequest<B>>
    where
        T: Element,
        B: AsRef<[T]> + Send + 'static,
    {
        self.start_send(buf, |buf| cast_slice::<T, u8>(buf.as_ref()), T::DTYPE, (to, tag))
    }

    /// As [`Self::isend`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::isend`]; and if `buf` is not whole elements.
    pub fn isend_bytes<B>(
        &self,
        buf: B,
        dtype: DataType,
        to: usize,
        tag: u32,
    ) -> Result<MessageRequest<B>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.start_send(buf, B::as_ref, dtype, (to, tag))
    }

    fn start_send<B: Send + 'static>(
        &self,
        buf: B,
        bytes: impl FnOnce(&B) -> &[u8],
        dtype: DataType,
        (to, tag): (usize, u32),
    ) -> Result<MessageRequest<B>> {
        const CALL: &str = "isend";
        let buf = Leaked::new(buf);
        let bytes = bytes(buf.get());
        let (context, envelope) = self.sending(CALL, bytes.len(), (dtype, to, tag))?;
        // SAFETY: the buffer is neither moved out nor dropped before the request has ended.
        let buffer = unsafe { SendBuffer::new(bytes) };
        let mut state = self.messages.lock_for(CALL)?;
        self.check_peer(&state, CALL, "to", to)?;
        self.messages.engage_worker(&mut state)?;
        state.make_room(to, bytes.len())?;
        let id = state.send(to, envelope, buffer).ok_or_else(|| Messages::too_many(context))?;
        let context = state.numbered(context);
        self.messages.tell_sleepers(&mut state);
        drop(state);
        Ok(self.request(context, Awaited::Send(id), buf))
    }

    /// Starts to receive into `buf`, as [`Self::recv`], and returns at once.
    ///
    /// # Errors
    /// As [`Self::isend`].
    pub fn irecv<T, B>(
        &self,
        buf: B,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<MessageRequest<B>>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'static,
    {
        let expected = (from.into(), tag.into());
        self.start_recv(buf, |buf| cast_slice_mut::<T, u8>(buf.as_mut()), T::DTYPE, expected)
    }

    /// As [`Self::irecv`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::irecv`]; and if `buf` is not whole elements.
    pub fn irecv_bytes<B>(
        &self,
        buf: B,
        dtype: DataType,
        from: Source,
        tag: Tag,
    ) -> Result<MessageRequest<B>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        self.start_recv(buf, B::as_mut, dtype, (from, tag))
    }

    fn start_recv<B: Send + 'static>(
        &self,
        buf: B,
        bytes: impl FnOnce(&mut B) -> &mut [u8],
        dtype: DataType,
        expected: (Source, Tag),
    ) -> Result<MessageRequest<B>> {
        const CALL: &str = "irecv";
        let mut buf = Leaked::new(buf);
        let bytes = bytes(buf.get_mut());
        let len = bytes.len();
        // SAFETY: the buffer is neither moved out nor dropped before the request has ended.
        let buffer = unsafe { ReceiveBuffer::new(bytes) };
        let mut state = self.messages.lock_for(CALL)?;
        let context = self.receiving(&state, CALL, (len, dtype), expected)?;
        self.messages.engage_worker(&mut state)?;
        let id = state.receive(context.expected, (dtype, len), buffer);
        let id = id.ok_or_else(|| Messages::too_many(context))?;
        let context = state.numbered(context);
        self.messages.tell_sleepers(&mut state);
        drop(state);
        Ok(self.request(context, Awaited::Receive(id), buf))
    }

    fn request<B: Send>(
        &self,
        context: Context,
        awaited: Awaited,
        buffer: Leaked<B>,
    ) -> MessageRequest<B> {
        MessageRequest { messenger: self.clone(), context, awaited, buffer: Some(buffer) }
    }
}

impl<B: Send> MessageRequest<B> {
    /// Waits until the message was sent or received, and gives the buffer back. After a timeout the
    /// message is given up.
    ///
    /// # Errors
    /// As [`Messenger::send`] and [`Messenger::recv`]. The buffer is dropped then.
    pub fn wait(self) -> Result<(B, Status)> {
        let timeout = self.messenger.timeout;
        self.wait_for(timeout)
    }

    /// As [`Self::wait`], for at most `timeout`.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_for(mut self, timeout: Duration) -> Result<(B, Status)> {
        let messages = &self.messenger.messages;
        messages.process.check(self.context.call)?;
        let peer = self.context.expected.source.map(|source| source as usize);
        let ended = messages.wait(messages.lock(), self.awaited, peer, timeout);
        // The request has ended or was withdrawn.
        let buffer = self.buffer.take();
        let status = self.messenger.ended(self.context, ended)?;
        match buffer {
            Some(buffer) => Ok((buffer.into_inner(), status)),
            None => unreachable!("only a wait takes the buffer, and it takes the request with it"),
        }
    }

    /// True if [`Self::wait`] would return at once. Makes progress, as a wait does.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.messenger.messages.has_ended(self.awaited)
    }

    /// Gives the message up, unless it has ended, and gives its buffer back. A receive that has met
    /// a send which is given up fails; a send that has met a receive which is given up does not
    /// notice. An end that has not met this one goes on waiting for another one.
    pub fn cancel(mut self) -> Option<B> {
        self.messenger.messages.cancel(self.awaited);
        Some(self.buffer.take()?.into_inner())
    }
}

impl<B: Send + 'static> Drop for MessageRequest<B> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.messenger.messages.adopt(self.awaited, Box::new(buffer));
        }
    }
}

impl<B: Send> fmt::Debug for MessageRequest<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageRequest").field("call", &self.context.call).finish_non_exhaustive()
    }
}
