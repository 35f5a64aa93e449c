//! How the links of one communicator get their streams over TCP: the sender of calls dials with its
//! first slot, and of two ranks with messages the one that sends first.
//! Law: a rank tells the peer over the control channel that it sends on a link; so the goodbye of a
//! rank that has not said so ends the wait for it.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::arrivals::LinkConnection;
use super::port::LinkPort;
use super::ways::Way;
use crate::bootstrap::auth::hello::{LinkStream, answer};
use crate::health::control_channel::Channels;
use crate::transport::aead::{OpeningKey, SealingKey};
use crate::transport::tcp::{
    self, ANSWER_LEN, AcceptStreams, DialStreams, NewerStream, OpenedStream, Redial,
};
use crate::transport::{Doorbell, Fault, LinkContent};

/// A rank that is reached over TCP.
#[derive(Clone, Debug)]
pub(super) struct FarRank {
    port: Arc<LinkPort>,
    channels: Arc<Channels>,
    /// In the communicator of the links.
    rank: usize,
    /// In the communicator that met.
    number: u32,
    /// A stream of calls that breaks is made anew.
    resumes: bool,
}

impl FarRank {
    /// This rank of the communicator that has these channels; `None` without a channel to it.
    pub(super) fn new(port: &Arc<LinkPort>, channels: &Arc<Channels>, rank: usize) -> Option<Self> {
        let number = channels.number(rank)? as u32;
        let (port, channels) = (Arc::clone(port), Arc::clone(channels));
        Some(Self { port, channels, rank, number, resumes: false })
    }

    /// As this rank, on another host: a stream of calls that breaks is made anew.
    pub(super) fn on_another_host(self, is_elsewhere: bool) -> Self {
        Self { resumes: is_elsewhere, ..self }
    }

    pub(super) fn port(&self) -> &Arc<LinkPort> {
        &self.port
    }

    /// True while the rank lives and has neither left nor failed, as far as is known.
    pub(super) fn is_there(&self) -> bool {
        self.channels.is_there(self.rank)
    }

    /// The name of a stream that this process dials.
    fn outward(&self, content: LinkContent, index: usize) -> LinkStream {
        let (communicator, index) = (self.channels.key(), index as u16);
        let (dialler, acceptor) = (self.port.me(), self.number);
        LinkStream { communicator, dialler, acceptor, content, index }
    }

    /// The name of a stream that the peer dials.
    fn inward(&self, content: LinkContent, index: usize) -> LinkStream {
        let (dialler, acceptor) = (self.number, self.port.me());
        LinkStream { dialler, acceptor, ..self.outward(content, index) }
    }

    /// Dials a stream: the connection, and the bytes that go out first.
    fn dial(&self, content: LinkContent, index: usize) -> Result<(LinkConnection, Vec<u8>), Fault> {
        let resumes = self.resumes && content == LinkContent::Calls;
        let (link, hello) = self.port.dial(self.outward(content, index), resumes)?;
        Ok((link, hello.to_vec()))
    }

    /// A stream that the peer has dialled, if it has come.
    fn take(&self, content: LinkContent, index: usize) -> Result<Option<LinkConnection>, Fault> {
        self.port.take(self.inward(content, index))
    }

    fn check_sender(&self, content: LinkContent) -> Result<(), Fault> {
        self.channels.check_sender(self.rank, content).map_err(Fault::Lost)
    }

    fn check_receiver(&self) -> Result<(), Fault> {
        self.channels.check_receiver(self.rank).map_err(Fault::Lost)
    }
}

/// The sending end of a link of calls.
pub(super) struct CallSender(pub(super) FarRank);

impl DialStreams for CallSender {
    fn dial(&mut self, index: usize) -> Result<OpenedStream<SealingKey>, Fault> {
        let Self(to) = self;
        let (LinkConnection { stream, sealer, .. }, hello) = to.dial(LinkContent::Calls, index)?;
        let name = to.outward(LinkContent::Calls, index);
        let way = to.resumes.then(|| Way::of_calls(to.clone(), name, &hello)).flatten();
        let way = way.map(|way| Box::new(way) as Box<dyn Redial>);
        if index == 0 {
            to.channels.announce_link(to.rank, LinkContent::Calls);
        }
        Ok(OpenedStream { stream, key: sealer, hello, way, resumed: None })
    }

    fn check_receiver(&mut self) -> Result<(), Fault> {
        self.0.check_receiver()
    }
}

/// The receiving end of a link of calls.
pub(super) struct CallReceiver {
    from: FarRank,
    /// The numbers of the streams that have not come.
    missing: Vec<usize>,
    /// The number of streams.
    streams: usize,
    doorbell: Doorbell,
}

impl CallReceiver {
    pub(super) fn new(from: FarRank, streams: usize) -> Self {
        let (doorbell, missing) = (from.port.doorbell(), (0..streams).collect());
        Self { from, missing, streams, doorbell }
    }
}

impl AcceptStreams for CallReceiver {
    fn accept(&mut self, index: usize) -> Result<Option<OpenedStream<OpeningKey>>, Fault> {
        let taken = self.from.take(LinkContent::Calls, index)?;
        if taken.is_some() {
            self.missing.retain(|&missing| missing != index);
            // The next sleep, if there is one, makes its descriptor anew.
            self.doorbell = self.from.port.doorbell();
        }
        let opened = |LinkConnection { stream, opener, resumes, .. }| OpenedStream {
            stream,
            key: opener,
            hello: Vec::new(),
            way: None,
            resumed: resumes.map(|it| (it.0.generation, it.1.to_vec())),
        };
        Ok(taken.map(opened))
    }

    fn accept_again(
        &mut self,
        index: usize,
        generation: u32,
    ) -> Result<Option<NewerStream>, Fault> {
        if !self.from.resumes {
            return Ok(None);
        }
        let name = self.from.inward(LinkContent::Calls, index);
        let taken = self.from.port.take_newer(name, Some(generation))?;
        Ok(taken.and_then(LinkConnection::into_newer).map(|(newer, _)| newer))
    }

    fn answer(&self, hello: &[u8], received: u64) -> [u8; ANSWER_LEN] {
        let secret = self.from.port.secret_with(self.from.number);
        secret.map_or([0; ANSWER_LEN], |secret| answer(secret, hello, received))
    }

    fn may_come_again(&self) -> bool {
        self.from.resumes && self.from.is_there()
    }

    fn check_sender(&mut self) -> Result<(), Fault> {
        self.from.check_sender(LinkContent::Calls)
    }

    fn incoming(&self, fds: &mut Vec<RawFd>) {
        fds.push(self.from.port.descriptor());
    }

    fn sleep(&self, limit: Duration, outgoing: &[RawFd]) {
        self.doorbell.sleep(&[self.from.port.descriptor()], outgoing, limit);
    }
}

impl Drop for CallReceiver {
    fn drop(&mut self) {
        for at in 0..self.streams {
            // A stream that has come may come again.
            if self.from.resumes || self.missing.contains(&at) {
                self.from.port.forget(self.from.inward(LinkContent::Calls, at));
            }
        }
    }
}

/// The stream of messages between two ranks. Each dials if it sends before the other's stream has
/// come; if both have dialled, each sends on its own.
struct MessagePair {
    with: FarRank,
    /// The stream that this rank has dialled.
    own: Option<LinkConnection>,
    /// The stream that the peer has dialled.
    theirs: Option<LinkConnection>,
    /// How this rank's own stream has ended, or why it could not dial.
    ended: Option<String>,
}

impl MessagePair {
    /// The stream that the peer has dialled, if it has come.
    fn theirs(&mut self) -> Result<Option<&mut LinkConnection>, Fault> {
        if self.theirs.is_none() {
            self.theirs = self.with.take(LinkContent::Messages, 0)?;
        }
        Ok(self.theirs.as_mut())
    }

    /// True if the peer sends on the stream that this rank has dialled.
    fn is_answered(&mut self) -> bool {
        let Some(own) = &self.own else { return false };
        match tcp::check_open(&own.stream) {
            Ok(is_answered) => is_answered,
            Err(fault) => {
                if let Fault::Lost(how) = fault {
                    self.ended.get_or_insert(how);
                }
                false
            }
        }
    }
}

impl Drop for MessagePair {
    fn drop(&mut self) {
        if self.theirs.is_none() {
            self.with.port.forget(self.with.inward(LinkContent::Messages, 0));
        }
    }
}

/// The two ends of a rank for messages with `peer`.
pub(super) fn message_ends(peer: FarRank) -> (MessageSender, MessageReceiver) {
    let pair =
        Arc::new(Mutex::new(MessagePair { with: peer, own: None, theirs: None, ended: None }));
    (MessageSender(Arc::clone(&pair)), MessageReceiver(pair))
}

fn lock(pair: &Mutex<MessagePair>) -> MutexGuard<'_, MessagePair> {
    pair.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending end of messages.
pub(super) struct MessageSender(Arc<Mutex<MessagePair>>);

impl DialStreams for MessageSender {
    fn dial(&mut self, index: usize) -> Result<OpenedStream<SealingKey>, Fault> {
        let pair = &mut *lock(&self.0);
        let (link, hello) = match pair.theirs()? {
            Some(theirs) => (theirs, Vec::new()),
            None => {
                let dialled = pair.with.dial(LinkContent::Messages, index);
                // The sender of a message may not look at this fault, but the next receive does.
                if let Err(Fault::Lost(how)) = &dialled {
                    pair.ended.get_or_insert(how.clone());
                }
                let (link, hello) = dialled?;
                (pair.own.insert(link), hello)
            }
        };
        let (stream, key) = (Arc::clone(&link.stream), link.sealer.take());
        pair.with.channels.announce_link(pair.with.rank, LinkContent::Messages);
        Ok(OpenedStream { stream, key, hello, way: None, resumed: None })
    }

    fn check_receiver(&mut self) -> Result<(), Fault> {
        lock(&self.0).with.check_receiver()
    }
}

/// The receiving end of messages.
pub(super) struct MessageReceiver(Arc<Mutex<MessagePair>>);

impl AcceptStreams for MessageReceiver {
    fn accept(&mut self, _index: usize) -> Result<Option<OpenedStream<OpeningKey>>, Fault> {
        let pair = &mut *lock(&self.0);
        if pair.theirs()?.is_none() && !pair.is_answered() {
            return Ok(None);
        }
        let link = pair.theirs.as_mut().or(pair.own.as_mut());
        let opened = |link: &mut LinkConnection| OpenedStream {
            stream: Arc::clone(&link.stream),
            key: link.opener.take(),
            hello: Vec::new(),
            way: None,
            resumed: None,
        };
        Ok(link.map(opened))
    }

    fn check_sender(&mut self) -> Result<(), Fault> {
        let pair = lock(&self.0);
        pair.with.check_sender(LinkContent::Messages)?;
        // After the peer's goodbye the end of its stream says nothing of one that is under way.
        match &pair.ended {
            Some(how) if pair.with.check_receiver().is_ok() => Err(Fault::Lost(how.clone())),
            _ => Ok(()),
        }
    }

    fn incoming(&self, fds: &mut Vec<RawFd>) {
        let pair = lock(&self.0);
        // All peers' streams come at one port.
        let port = pair.with.port.descriptor();
        if !fds.contains(&port) {
            fds.push(port);
        }
        // A stream that has ended would end each sleep at once.
        let own = pair.own.as_ref().filter(|_| pair.ended.is_none());
        let both = own.into_iter().chain(&pair.theirs);
        fds.extend(both.map(|link| link.stream.as_raw_fd()));
    }
}
