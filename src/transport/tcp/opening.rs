//! How a link gets its streams: each is opened at its first use, by the sender of the link or of
//! its first message.

use std::net::TcpStream;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::{ANSWER_LEN, Redial};
use crate::transport::aead::{OpeningKey, SealingKey};
use crate::transport::{Fault, poll};

/// A stream of a link that is open, or is being connected; `K` is the key of its direction.
#[derive(Debug)]
pub struct OpenedStream<K> {
    /// A non-blocking stream. The system may still connect it, and takes no bytes until then.
    pub stream: Arc<TcpStream>,
    /// The key of this direction, on an encrypted link.
    pub key: Option<K>,
    /// The bytes that this end sends before its first slot: the hello, if it has dialled.
    pub hello: Vec<u8>,
    /// How the sender makes the stream anew if it breaks; `None` where its end is final.
    pub way: Option<Box<dyn Redial>>,
    /// The generation and the hello of a connection that is not the stream's first one: its
    /// dialler waits for an answer.
    pub resumed: Option<(u32, Vec<u8>)>,
}

/// A connection that takes the place of a stream's earlier one.
#[derive(Debug)]
pub struct NewerStream {
    /// A non-blocking stream.
    pub stream: TcpStream,
    /// Its number among the connections of the stream.
    pub generation: u32,
    /// The hello, which the answer proves to have come.
    pub hello: Vec<u8>,
}

/// Opens the streams of the sending end of a link.
pub trait DialStreams: Send {
    /// Opens stream number `index` of the link, from 0; to be called once for each. Never waits for
    /// the peer's process, and for its host at most 1 s, where that has several addresses of which
    /// none is known to answer.
    ///
    /// # Errors
    /// If the system refuses; [`Fault::NoMemory`] at a limit of this process.
    fn dial(&mut self, index: usize) -> Result<OpenedStream<SealingKey>, Fault>;

    /// Checks that the peer has not closed its communicator, so that it may still receive. An open
    /// stream that the peer has not accepted does not show that.
    ///
    /// # Errors
    /// If it has.
    fn check_receiver(&mut self) -> Result<(), Fault>;
}

/// Gives the streams of the receiving end of a link.
pub trait AcceptStreams: Send {
    /// Stream number `index` of the link, from 0; `None` if the peer has not opened it yet. Never
    /// waits, and gives each stream once.
    ///
    /// # Errors
    /// [`Fault::NoMemory`] at a limit of this process.
    fn accept(&mut self, index: usize) -> Result<Option<OpenedStream<OpeningKey>>, Fault>;

    /// A connection of stream `index` that is newer than that of `generation`, if the peer has made
    /// one: it has found that one broken. Never waits.
    ///
    /// # Errors
    /// [`Fault::NoMemory`] at a limit of this process.
    fn accept_again(
        &mut self,
        _index: usize,
        _generation: u32,
    ) -> Result<Option<NewerStream>, Fault> {
        Ok(None)
    }

    /// The answer to the hello of a newer connection: this end has received so many bytes.
    fn answer(&self, _hello: &[u8], _received: u64) -> [u8; ANSWER_LEN] {
        [0; ANSWER_LEN]
    }

    /// True if the peer makes a stream anew that has broken, as far as is known now: it lives, and
    /// has not said that it left.
    fn may_come_again(&self) -> bool {
        false
    }

    /// Checks that the peer may still open a stream that has not come.
    ///
    /// # Errors
    /// If it has left and nothing of it is under way.
    fn check_sender(&mut self) -> Result<(), Fault>;

    /// Adds the descriptors to poll until the peer opens a stream.
    fn incoming(&self, fds: &mut Vec<RawFd>);

    /// Sleeps until the peer has opened a stream, one of `outgoing` can take bytes, or `limit` has
    /// passed; may return early. The links of messages sleep together, by [`Self::incoming`].
    fn sleep(&self, limit: Duration, outgoing: &[RawFd]) {
        let mut fds = Vec::new();
        self.incoming(&mut fds);
        poll::sleep(limit, fds, outgoing);
    }
}

/// Streams that are open, for tests: each with its key on an encrypted link.
#[cfg(any(test, feature = "internals"))]
#[derive(Debug)]
pub struct Connected<K>(Vec<Option<OpenedStream<K>>>);

#[cfg(any(test, feature = "internals"))]
impl<K> Connected<K> {
    /// The streams and their number, for a link that is encrypted if there are keys.
    #[must_use]
    pub fn over(streams: Vec<TcpStream>, keys: Vec<K>) -> (Box<Self>, super::StreamCount) {
        let count = super::StreamCount { streams: streams.len(), is_sealed: !keys.is_empty() };
        let keys = keys.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let opened = |(stream, key): (TcpStream, _)| {
            let stream = Arc::new(stream);
            Some(OpenedStream { stream, key, hello: Vec::new(), way: None, resumed: None })
        };
        (Box::new(Self(streams.into_iter().zip(keys).map(opened).collect())), count)
    }

    fn open(&mut self, index: usize) -> Result<OpenedStream<K>, Fault> {
        let lost = |why: &str| Fault::Lost(why.to_owned());
        let opened = self.0.get_mut(index).and_then(Option::take);
        let opened = opened.ok_or_else(|| lost("it has no such stream"))?;
        let set = opened.stream.set_nonblocking(true);
        set.map_err(|error| lost(&error.to_string())).map(|()| opened)
    }
}

#[cfg(any(test, feature = "internals"))]
impl DialStreams for Connected<SealingKey> {
    fn dial(&mut self, index: usize) -> Result<OpenedStream<SealingKey>, Fault> {
        self.open(index)
    }

    fn check_receiver(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

#[cfg(any(test, feature = "internals"))]
impl AcceptStreams for Connected<OpeningKey> {
    fn accept(&mut self, index: usize) -> Result<Option<OpenedStream<OpeningKey>>, Fault> {
        self.open(index).map(Some)
    }

    fn check_sender(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn incoming(&self, _fds: &mut Vec<RawFd>) {}
}
