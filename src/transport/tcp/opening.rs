//! How a link gets its streams: each is opened at its first use, by the sender of the link or of
//! its first message.

use std::net::TcpStream;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::transport::Fault;

/// A stream of a link that is open, or is being connected.
#[derive(Debug)]
pub struct OpenedStream<K> {
    /// A non-blocking stream. The system may still connect it, and takes no bytes until then.
    pub stream: Arc<TcpStream>,
    /// The key of this direction, on an encrypted link.
    pub key: Option<K>,
    /// The bytes that this end sends before its first slot.
    pub greeting: Vec<u8>,
}

/// Opens the streams of one end of a link; `K` is the key of its direction.
pub trait OpenStreams<K>: Send {
    /// Stream number `index` of the link, from 0; `None` if the peer has not opened it yet. Never
    /// waits, and gives each stream once.
    ///
    /// # Errors
    /// If the system refuses; [`Fault::NoMemory`] at a limit of this process.
    fn open(&mut self, index: usize) -> Result<Option<OpenedStream<K>>, Fault>;

    /// Checks that the peer may still open a stream that it has not opened.
    ///
    /// # Errors
    /// If it has closed its communicator.
    fn check_peer(&mut self) -> Result<(), Fault>;

    /// Adds the descriptors to poll until the peer opens a stream.
    fn incoming(&self, fds: &mut Vec<RawFd>);

    /// Sleeps until the peer has opened a stream, one of `outgoing` can take bytes, or `limit` has
    /// passed; may return early.
    fn sleep(&self, limit: Duration, outgoing: &[RawFd]);
}

/// Streams that are open, for tests: each with its key on an encrypted link.
#[cfg(any(test, feature = "internals"))]
#[derive(Debug)]
pub struct Connected<K>(Vec<Option<OpenedStream<K>>>);

#[cfg(any(test, feature = "internals"))]
impl<K: Send + 'static> Connected<K> {
    /// What a link over these streams is made of, encrypted if there are keys.
    #[must_use]
    pub fn over(
        streams: Vec<TcpStream>,
        keys: Vec<K>,
    ) -> (Box<dyn OpenStreams<K>>, super::StreamCount) {
        let count = super::StreamCount { streams: streams.len(), is_sealed: !keys.is_empty() };
        let keys = keys.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let opened = |(stream, key): (TcpStream, _)| {
            let stream = Arc::new(stream);
            Some(OpenedStream { stream, key, greeting: Vec::new() })
        };
        (Box::new(Self(streams.into_iter().zip(keys).map(opened).collect())), count)
    }
}

#[cfg(any(test, feature = "internals"))]
impl<K: Send> OpenStreams<K> for Connected<K> {
    fn open(&mut self, index: usize) -> Result<Option<OpenedStream<K>>, Fault> {
        let opened = self.0.get_mut(index).and_then(Option::take);
        if let Some(opened) = &opened {
            let set = opened.stream.set_nonblocking(true);
            set.map_err(|error| Fault::Lost(error.to_string()))?;
        }
        Ok(opened)
    }

    fn check_peer(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn incoming(&self, _fds: &mut Vec<RawFd>) {}

    fn sleep(&self, _limit: Duration, _outgoing: &[RawFd]) {}
}
